"""`howsmooth flow model`: the tokens of a text through the true layers of a model."""

from __future__ import annotations

from typing import Any

import click

from howsmooth.cli.flow.options import theme_option
from howsmooth.cli.options import CHUNKS, MODEL, SOLVER, loading_options, output_options, spec_from, spec_options
from howsmooth.cli.parameter_types import NumberList
from howsmooth.errors import InputError

DEFAULTS = {"lengths": "32", "samples": 1, "tol": 1e-2}


@click.command(
    name="model",
    short_help="Real depth: do tokens cluster, how do perturbations grow?",
    help="Follow the tokens of a text through the layers of a model: how they are spread after each (directions, norms,"
    " clusters; with and without the token that draws most attention), and how much a perturbation of the first tokens"
    f" can have grown, beside the product of what each layer allows alone.\n\n    {MODEL}",
)
@click.argument("model", default="minilm")
@spec_options(*CHUNKS, "tokens", *SOLVER, **DEFAULTS)
@click.option(
    "--depths",
    type=NumberList(integer=True, word="all", least=1, example="1,2,6"),
    help="After how many layers to look at growth.  [default: all up to 12 layers, else a few]",
)
@click.option("--no-growth", is_flag=True, help="Leave perturbations out: one forward pass is all it takes.")
@click.option(
    "--together",
    "tolerances",
    type=NumberList(example="0.1,0.3,0.6"),
    default="0.1,0.3,0.6",
    show_default=True,
    help="Tokens closer than this are together: by their directions; opposite ones are 2 apart.",
)
@loading_options
@output_options("json", "csv", "plot", "report", plot="spread and growth along depth", report="the tokens in motion")
@theme_option
def command(
    depths: Any,
    no_growth: bool,
    tolerances: tuple[float, ...],
    json_path: str | None,
    csv_path: str | None,
    plot_path: str | None,
    report_path: str | None,
    theme: str,
    **given: Any,
) -> int:
    from howsmooth.cli.run import run_and_show
    from howsmooth.report.flow_figures import depth_figure
    from howsmooth.report.flow_page import check_page_path, depth_page
    from howsmooth.report.flow_tables import depth_tables

    if no_growth and depths is not None:
        raise InputError("expected --depths or --no-growth, got both; leave one of the two out")
    if report_path:
        check_page_path(report_path, "--report")
    spec, trajectories = spec_from(given, **DEFAULTS), []

    def work(notes, kept):
        from howsmooth.cli.options import one_model
        from howsmooth.studies import chosen_depths, depth_trajectories

        model, corpus, resolved = one_model(spec)
        chosen = chosen_depths(model, corpus, resolved, depths=() if no_growth else depths, tolerances=tolerances)

        def produce(progress):
            for trajectory in depth_trajectories(model, corpus, resolved):
                trajectories.append(trajectory)
                yield from trajectory.records(model, corpus, resolved, chosen, progress)

        return model.name, len(spec.lengths) * spec.samples * (model.layers + 1), produce

    return run_and_show(
        {"--json": json_path, "--csv": csv_path, "--plot": plot_path, "--report": report_path},
        inputs={"--text": given["texts"]},
        work=work,
        thing="depth",
        table=depth_tables,
        plot=lambda records: depth_figure(records, theme=theme),
        page=lambda records: depth_page(trajectories, records),
    )
