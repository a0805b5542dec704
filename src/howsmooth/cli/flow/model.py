"""`howsmooth flow model`: the tokens of a text through the true layers of a model."""

from __future__ import annotations

import click

from howsmooth.cli.choosing import (
    MODEL,
    confidence_option,
    csv_option,
    json_option,
    lengths_option,
    load_chosen,
    loading_options,
    read_text,
    samples_option,
    special_tokens_option,
    text_option,
    tol_option,
)
from howsmooth.cli.parsing import IntegerList, NumberList
from howsmooth.errors import InputError


@click.command(
    name="model",
    short_help="Real depth: do tokens cluster, how do perturbations grow?",
    help="Follow the tokens of a text through the layers of a model: how they are spread after each (directions, norms,"
    " clusters; with and without the token that draws most attention), and how much a perturbation of the first tokens"
    f" can have grown, beside the product of what each layer allows alone.\n\n    {MODEL}",
)
@click.argument("model", default="minilm")
@text_option
@lengths_option("32")
@samples_option(1)
@click.option("--depths", type=IntegerList(word="all", least=1, example="1,2,6"),
              help="After how many layers to look at growth.  [default: all up to 12 layers, else a few]")
@click.option("--no-growth", is_flag=True, help="Leave perturbations out: one forward pass is all it takes.")
@click.option("--tolerances", type=NumberList(example="0.1,0.3,0.6"), default="0.1,0.3,0.6", show_default=True,
              help="Tokens whose directions are closer than this are together; opposite ones are 2 apart.")
@click.option("--tokens", type=click.Choice(["all", "no-special", "no-first"]), default="all", show_default=True,
              help="Which tokens a perturbation may move.")
@special_tokens_option
@tol_option(1e-2)
@confidence_option
@loading_options
@json_option
@csv_option
@click.option("--plot", "plot_path", metavar="FILE", help="Spread and growth along depth as a figure (png, svg, pdf).")
@click.option("--page", "page_path", metavar="FILE", help="The tokens in motion, as one HTML page to play with.")
@click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Of the plot.")
def command(model, text_path, lengths, samples, depths, no_growth, tolerances, tokens, special_tokens, tol, confidence,
            seed, json_path, csv_path, plot_path, page_path, theme, **loading) -> int:
    from pathlib import Path

    from howsmooth.cli.outputs import check_writable, record_files, refuse_one_file_twice
    from howsmooth.cli.running import Run, console, say
    from howsmooth.report.depth_figure import depth_figure
    from howsmooth.report.depth_table import depth_tables
    from howsmooth.report.figure import check_plot_path, save_figure
    from howsmooth.report.flow_page import check_page_path

    if no_growth and depths is not None:
        raise InputError("expected --depths or --no-growth, got both; leave one of the two out")
    refuse_one_file_twice({"--text": None if text_path == "-" else text_path, "--json": json_path, "--csv": csv_path,
                           "--plot": plot_path, "--page": page_path})
    files = record_files(json_path, csv_path)
    for path, option, check in ((plot_path, "--plot", check_plot_path), (page_path, "--page", check_page_path)):
        if path is not None:
            check(path)
            check_writable(Path(path), option)
    text = read_text(text_path)

    from howsmooth.studies import depth_settings, pass_through

    notes = console(stderr=True)
    loaded = load_chosen(model, seed=seed, **loading)
    settings = depth_settings(
        loaded, text, depths=() if no_growth else depths, lengths=lengths, samples=samples, tolerances=tolerances,
        tokens=tokens, special_tokens=special_tokens == "add", tol=tol, confidence=confidence, seed=seed)
    run, passages = Run(files, notes, thing="depth"), []

    def produce(step):
        for passage in pass_through(loaded, text, settings):
            passages.append(passage)
            yield from passage.records(loaded, text, settings, step)

    try:
        run.collect(loaded.name, len(lengths) * samples * (loaded.layers + 1), produce)
    finally:
        # Whatever ended the loop, what was computed is shown.
        if run.records:
            shown = notes if "-" in (json_path, csv_path) else console()
            with run.writing("-", "the table"):
                shown.print(depth_tables(run.records))
        if run.records and plot_path:
            with run.writing(plot_path, "--plot"):
                save_figure(depth_figure(run.records, theme=theme), plot_path)
                say(notes, f"drew {plot_path}")
        if run.records and page_path:
            with run.writing(page_path, "--page"):
                _write_page(page_path, passages, run.records)
                say(notes, f"wrote {page_path}")
        code = run.finish()
    return code


def _write_page(path: str, passages, records) -> None:
    from pathlib import Path

    from howsmooth.report.flow_page import depth_scene, flow_page
    from howsmooth.studies.depth import picture

    scenes = []
    for passage in passages:
        seen = [r for r in records if (r["n"], r["sample"]) == (passage.n, passage.sample)]
        if seen:
            scenes.append(depth_scene(seen, *picture(passage), passage.chunk.words))
    Path(path).write_text(flow_page(scenes), encoding="utf-8")
