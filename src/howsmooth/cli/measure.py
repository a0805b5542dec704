"""`howsmooth measure`: the local Lipschitz constants of a model's attention on a text."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.options import CHUNKS, MODEL, SOLVER, loading_options, output_options, spec_from, spec_options

FIELDS = (
    "inputs",
    *CHUNKS,
    "cutting",
    "map",
    "layers",
    "heads",
    "tokens",
    "quantities",
    *SOLVER,
    "max_memory",
    "product_dtype",
    "stop",
    "max_steps",
)


@click.command(
    name="measure",
    short_help="Measure the attention layers of a model on a text.",
    help="Measure the local Lipschitz constant of a model's attention layers, on a text or on random tokens.\n\n"
    f"    {MODEL}",
)
@click.argument("model", default="minilm")
@spec_options(*FIELDS)
@loading_options
@output_options(
    "json", "csv", "plot", "report", json="records that it holds are not computed again", plot="growth with length"
)
def command(
    json_path: str | None, csv_path: str | None, plot_path: str | None, report_path: str | None, **given: Any
) -> int:
    from howsmooth.cli.options import one_model
    from howsmooth.cli.run import announce, run_and_show
    from howsmooth.fits import growth_laws
    from howsmooth.report.figure import growth_figure
    from howsmooth.report.measurement_tables import summary
    from howsmooth.report.web_page import report_page
    from howsmooth.studies.formats import measured_before

    spec = spec_from(given, name="measure")

    def work(notes, kept):
        from howsmooth.studies.plan import prepare_model
        from howsmooth.studies.run import records_of

        model, corpus, resolved = one_model(spec)
        plan = prepare_model(resolved, model, corpus)
        announce(resolved, model, notes, plan)
        return model.name, plan.count, lambda progress: records_of(plan, kept, progress=progress)

    return run_and_show(
        {"--json": json_path, "--csv": csv_path, "--plot": plot_path, "--report": report_path},
        inputs={"--text": given["texts"]},
        work=work,
        thing="estimate",
        table=lambda records: summary(records, growth_laws(records)),
        plot=lambda records: growth_figure(records, growth_laws(records)),
        page=report_page,
        read=measured_before,
    )
