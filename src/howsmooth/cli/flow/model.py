"""`howsmooth flow model`: the tokens of a text through the layers of a model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.options import (
    CHUNK_FIELDS,
    MODEL_HELP,
    SOLVER_FIELDS,
    loading_options,
    model_argument,
    output_options,
    spec_from_options,
    spec_options,
    theme_option,
)
from howsmooth.cli.parameter_types import NumberList
from howsmooth.cli.runtime import runtime_options
from howsmooth.errors import InputError
from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record
    from howsmooth.cli.run import ProgressCallback

DEFAULTS = {"lengths": "32", "samples": 1, "tol": 1e-2}


@click.command(
    name="model",
    short_help="The layers of a real model: clusters of tokens, growth of perturbations.",
    help="Follow the tokens of a text through the layers of a model: how they are distributed after each layer "
    "(directions, norms, clusters; with and without the token that receives most attention), and how much a "
    "perturbation of the input tokens can have grown, compared with the product of the constants of the "
    f"layers.\n\n    {MODEL_HELP}",
)
@model_argument()
@spec_options(*CHUNK_FIELDS, "tokens", *SOLVER_FIELDS, **DEFAULTS)
@click.option(
    "--depths",
    type=NumberList(integer=True, keyword="all", minimum=1, example="1,2,6"),
    help="Numbers of layers after which growth is measured.  [default: all up to 12 layers, else a few]",
)
@click.option(
    "--no-growth", is_flag=True, help="Do not measure the growth of perturbations: one forward pass is enough."
)
@click.option(
    "--together",
    "tolerances",
    type=NumberList(example="0.1,0.3,0.6"),
    default="0.1,0.3,0.6",
    show_default=True,
    help="Tokens closer than this form a cluster: distance of their directions, at most 2.",
)
@loading_options
@output_options("json", "csv", "plot", "report", plot="spread and growth along depth", report="the tokens in motion")
@theme_option
@runtime_options()
def command(
    depths: Any,
    no_growth: bool,
    tolerances: tuple[float, ...],
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
    report_path: str | None,
    theme: str,
    **options: Any,
) -> int:
    """Run `howsmooth flow model` and return its exit code."""
    from howsmooth.cli.run import Computation, run_command
    from howsmooth.report.output_paths import check_page_path

    depth_figure = deferred("howsmooth.report.flow_figures:depth_figure")
    depth_page = deferred("howsmooth.report.flow_page:depth_page")
    depth_tables = deferred("howsmooth.report.flow_tables:depth_tables")

    if no_growth and depths is not None:
        raise InputError("expected --depths or --no-growth, got both; leave one of the two out")
    if report_path:
        check_page_path(report_path, "--report")
    spec = spec_from_options(options, **DEFAULTS)
    trajectories: list[Any] = []

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        from howsmooth.cli.loading import load_model_with_text

        model, corpus, resolved = load_model_with_text(spec)

        from howsmooth.studies import chosen_depths, depth_trajectories

        chosen = chosen_depths(model, corpus, resolved, depths=() if no_growth else depths, tolerances=tolerances)

        def records(progress: ProgressCallback) -> Iterator[Record]:
            for trajectory in depth_trajectories(model, corpus, resolved):
                trajectories.append(trajectory)
                yield from trajectory.records(model, corpus, resolved, chosen, progress)

        return Computation(model.name, len(spec.lengths) * spec.samples * (model.layers + 1), records)

    return run_command(
        outputs={"--json": json_path, "--csv": csv_path, "--plot": plot_path, "--report": report_path},
        inputs={"--text": options["texts"]},
        prepare=prepare,
        record_noun="depth",
        table=depth_tables,
        plot=lambda records: depth_figure(records, theme=theme),
        page=lambda records: depth_page(trajectories, records),
    )
