"""`howsmooth measure`: the local Lipschitz constants of a model's attention layers on a text."""

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
from howsmooth.cli.runtime import runtime_options

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record

# Fields of `howsmooth.studies.Spec` that are options of this command, in the order of its help.
MEASURE_FIELDS = (
    "inputs",
    "images",
    "audio",
    *CHUNK_FIELDS,
    "cutting",
    "map",
    "layers",
    "heads",
    "tokens",
    "quantities",
    *SOLVER_FIELDS,
    "max_memory",
    "product_dtype",
    "stop",
    "max_steps",
)


@click.command(
    name="measure",
    short_help="Measure the attention layers of a model on a text.",
    help="Measure the local Lipschitz constant of a model's attention layers, on a text or on random tokens.\n\n"
    f"    {MODEL_HELP}",
)
@model_argument()
@spec_options(*MEASURE_FIELDS)
@loading_options
@output_options(
    "json",
    "csv",
    "plot",
    "report",
    json="records already in the file are not computed again",
    plot="growth with length",
)
@runtime_options()
def command(
    json_path: str | None, csv_path: str | None, plot_path: str | None, report_path: str | None, **options: Any
) -> int:
    """Run `howsmooth measure` and return its exit code."""
    # These modules load torch, matplotlib or rich; imported here, they do not slow down `--help`.
    from howsmooth.cli.run import Computation, print_overview, run_command

    growth_laws = deferred("howsmooth.fits:growth_laws")
    growth_figure = deferred("howsmooth.report.figure:growth_figure")
    summary = deferred("howsmooth.report.measurement_tables:summary")
    report_page = deferred("howsmooth.report.web_page:report_page")
    from howsmooth.studies.formats import read_measurements

    spec = spec_from_options(options, name="measure")

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        """Load the model, plan its tasks and print an overview of them."""
        from howsmooth.cli.loading import load_model_and_text

        model, corpus, resolved_spec = load_model_and_text(spec)

        from howsmooth.studies.plan import prepare_model
        from howsmooth.studies.run import records_of

        plan = prepare_model(resolved_spec, model, corpus, from_files=True)
        print_overview(resolved_spec, model, stderr, plan)
        return Computation(
            name=model.name,
            total=plan.count,
            records=lambda progress: records_of(plan, existing_records, progress=progress),
        )

    return run_command(
        outputs={"--json": json_path, "--csv": csv_path, "--plot": plot_path, "--report": report_path},
        inputs={"--text": options["texts"]},
        prepare=prepare,
        record_noun="estimate",
        table=lambda records: summary(records, growth_laws(records)),
        plot=lambda records: growth_figure(records, growth_laws(records)),
        page=report_page,
        live_table=lambda records: summary(records, {}),  # a law is fitted once, at the end
        read_existing=read_measurements,
    )
