"""`howsmooth bound`: every bound of a model's attention layers beside the measured constant."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.options import CHUNKS, MODEL, SOLVER, loading_options, output_options, spec_from, spec_options
from howsmooth.cli.parameter_types import radius_option

DEFAULTS = {"lengths": "32,128,512", "samples": 1}


@click.command(
    name="bound",
    short_help="Every bound of the theory beside the measured constant.",
    help="Bound the Lipschitz constant of a model's attention layers, and measure how tight each bound is.\n\n"
    "    Bounds hold on all inputs of n tokens in a ball of radius R, at the measured tokens X, or whatever n is; "
    f"the table says which. A bound whose conditions a layer does not meet says so.\n\n    {MODEL}",
)
@click.argument("model", default="minilm")
@spec_options("inputs", *CHUNKS, "layers", "heads", *SOLVER, "max_memory", **DEFAULTS)
@radius_option
@loading_options
@output_options("json", "csv", "plot", plot="all bounds against n")
def command(
    radius: str | float, json_path: str | None, csv_path: str | None, plot_path: str | None, **given: Any
) -> int:
    from howsmooth.cli.options import one_model
    from howsmooth.cli.run import announce, run_and_show
    from howsmooth.report.charts import check_panels
    from howsmooth.report.figure import bounds_figure
    from howsmooth.report.measurement_tables import bounds_summary

    spec = spec_from(given, **DEFAULTS)

    def work(notes, kept):
        from howsmooth.bounds import EVERY
        from howsmooth.studies import bound

        model, corpus, resolved = one_model(spec)
        if plot_path:
            check_panels(resolved.estimates // len(resolved.lengths) // resolved.samples)
        announce(resolved, model, notes)
        return (
            model.name,
            resolved.estimates * len(EVERY),
            lambda progress: bound(model, corpus, resolved, radius=radius, progress=progress),
        )

    return run_and_show(
        {"--json": json_path, "--csv": csv_path, "--plot": plot_path},
        inputs={"--text": given["texts"]},
        work=work,
        thing="bound",
        table=bounds_summary,
        plot=bounds_figure,
    )
