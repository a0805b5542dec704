"""`howsmooth measure`: the local Lipschitz constants of a model's attention layers on a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.options import (
    CHUNK_FIELDS,
    MODEL_HELP,
    SOLVER_FIELDS,
    load_model_and_text,
    loading_options,
    output_options,
    spec_from_options,
    spec_options,
)

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.cli.outputs import Record

# Fields of `howsmooth.studies.Spec` that are options of this command, in the order of its help.
MEASURE_FIELDS = (
    "inputs",
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
@click.argument("model", default="minilm")
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
def command(
    json_path: str | None, csv_path: str | None, plot_path: str | None, report_path: str | None, **options: Any
) -> int:
    """Run `howsmooth measure` and return its exit code."""
    # These modules load torch, matplotlib or rich; imported here, they do not slow down `--help`.
    from howsmooth.cli.run import Computation, print_overview, run_command
    from howsmooth.fits import growth_laws
    from howsmooth.report.figure import growth_figure
    from howsmooth.report.measurement_tables import summary
    from howsmooth.report.web_page import report_page
    from howsmooth.studies.formats import read_measurements

    spec = spec_from_options(options, name="measure")

    def prepare(stderr: Console, existing_records: list[Record]) -> Computation:
        """Load the model, plan its tasks and print an overview of them."""
        from howsmooth.studies.plan import prepare_model
        from howsmooth.studies.run import records_of

        model, corpus, resolved_spec = load_model_and_text(spec)
        plan = prepare_model(resolved_spec, model, corpus)
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
        read_existing=read_measurements,
    )
