"""`howsmooth bound`: every bound on a model's attention layers, compared with the measured constant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.lazy import deferred
from howsmooth.cli.options import (
    CHUNK_FIELDS,
    MODEL_HELP,
    SOLVER_FIELDS,
    loading_options,
    model_argument,
    output_options,
    spec_from_options,
    spec_options,
)
from howsmooth.cli.parameter_types import radius_option
from howsmooth.cli.runtime import runtime_options

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record

DEFAULTS = {"lengths": "32,128,512", "samples": 1}


@click.command(
    name="bound",
    short_help="Compare every bound with the measured constant.",
    help="Bound the Lipschitz constant of a model's attention layers, and measure how tight each bound is.\n\n"
    "    A bound holds for all inputs of n tokens in a ball of radius R, at the measured tokens X, or for every n; "
    f"the table shows which. For a bound that does not apply to a layer it gives the reason.\n\n    {MODEL_HELP}",
)
@model_argument()
@spec_options("inputs", *CHUNK_FIELDS, "layers", "heads", *SOLVER_FIELDS, "max_memory", **DEFAULTS)
@radius_option
@loading_options
@output_options("json", "csv", "plot", plot="all bounds against n")
@runtime_options()
def command(
    radius: str | float, json_path: str | None, csv_path: str | None, plot_path: str | None, **options: Any
) -> int:
    """Run `howsmooth bound` and return its exit code."""
    from howsmooth.cli.run import Computation, print_overview, run_command

    check_panel_count = deferred("howsmooth.report.charts:check_panel_count")
    bounds_figure = deferred("howsmooth.report.figure:bounds_figure")
    bounds_summary = deferred("howsmooth.report.measurement_tables:bounds_summary")

    spec = spec_from_options(options, **DEFAULTS)

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_model_and_text

        model, corpus, resolved = load_model_and_text(spec, needs_weights=True)

        from howsmooth.bounds import EVERY
        from howsmooth.studies import bound

        if plot_path:
            check_panel_count(resolved.estimates // len(resolved.lengths) // resolved.samples)
        print_overview(resolved, model, stderr)
        return Computation(
            model.name,
            resolved.estimates * len(EVERY),
            lambda progress: bound(model, corpus, resolved, radius=radius, progress=progress),
        )

    return run_command(
        outputs={"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        inputs={"--text": options["texts"]},
        prepare=prepare,
        record_noun="bound",
        table=bounds_summary,
        plot=bounds_figure,
    )
