"""`howsmooth measure`: the local Lipschitz constants of a model's attention on a text."""

from __future__ import annotations

from pathlib import Path

import click

from howsmooth.cli.choosing import (
    MODEL,
    confidence_option,
    csv_option,
    heads_option,
    json_option,
    layers_option,
    lengths_option,
    load_chosen,
    loading_options,
    read_text,
    samples_option,
    special_tokens_option,
    text_option,
    tol_option,
)
from howsmooth.cli.parsing import Bytes
from howsmooth.errors import InputError


@click.command(
    name="measure",
    short_help="Measure the attention layers of a model on a text.",
    help=f"Measure the local Lipschitz constant of a model's attention layers on a text.\n\n    {MODEL}",
)
@click.argument("model", default="minilm")
@text_option
@layers_option
@heads_option
@lengths_option("64,128,256")
@samples_option(4)
@click.option(
    "--map",
    "map_name",
    type=click.Choice(["attention", "head", "normed", "block", "layer"]),
    help="Attention, each head alone, with the normalisation, with the residual, or the whole Transformer layer.  "
    "[default: attention, or head with --heads]",
)
@click.option(
    "--tokens",
    type=click.Choice(["all", "no-special", "no-first"]),
    default="all",
    show_default=True,
    help="Which tokens a perturbation may move.",
)
@special_tokens_option
@tol_option(1e-3)
@confidence_option
@click.option("--max-memory", type=Bytes(), metavar="4G", help="Memory that one solve may take.")
@click.option(
    "--products",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="On a GPU: half precision for speed; float32 for lengths at which a float64 twin takes too long.",
)
@loading_options
@json_option
@csv_option
@click.option("--plot", "plot_path", metavar="FILE", help="Growth with length as a figure (png, svg, pdf).")
@click.option("--report", "report_path", metavar="FILE.html", help="A page that needs nothing else.")
def command(
    model,
    text_path,
    layers,
    heads,
    lengths,
    samples,
    map_name,
    tokens,
    special_tokens,
    tol,
    confidence,
    max_memory,
    products,
    seed,
    json_path,
    csv_path,
    plot_path,
    report_path,
    **loading,
) -> int:
    from howsmooth.cli.outputs import check_writable, record_files, refuse_one_file_twice, write_report
    from howsmooth.cli.running import Run, announce, console, say
    from howsmooth.report.figure import check_plot_path, growth_figure, save_figure
    from howsmooth.report.table import summary

    if heads is not None and map_name not in (None, "head"):
        raise InputError(
            f"expected --heads only with --map head, got --map {map_name}; leave one of the two out"
        )
    if products is not None and map_name in ("normed", "block", "layer"):
        raise InputError(
            f"expected --products only with attention and its heads, got --map {map_name}; leave one of the two out"
        )
    if map_name == "head" and heads is None:
        heads = "all"
    outputs = {"--json": json_path, "--csv": csv_path, "--plot": plot_path, "--report": report_path}
    # stdin and stdout may both be -, but no result may overwrite the text it came from.
    refuse_one_file_twice({"--text": None if text_path == "-" else text_path, **outputs})
    files = record_files(json_path, csv_path)
    if plot_path:
        check_plot_path(plot_path)
        check_writable(Path(plot_path), "--plot")
    if report_path:
        check_writable(Path(report_path), "--report")
    text = read_text(text_path)

    from howsmooth.studies import growth_of, measure, resolve

    notes = console(stderr=True)
    loaded = load_chosen(model, seed=seed, **loading)
    settings = resolve(
        loaded,
        text,
        layers=layers,
        heads=heads,
        kind=map_name if map_name in ("normed", "block", "layer") else None,
        lengths=lengths,
        samples=samples,
        tokens=tokens,
        special_tokens=special_tokens == "add",
        tol=tol,
        confidence=confidence,
        max_memory=max_memory,
        products=products,
        seed=seed,
    )
    announce(loaded, text, settings, notes)
    run = Run(files, notes)
    try:
        run.collect(loaded.name, settings.estimates, lambda step: measure(loaded, text, settings, step=step))
    finally:
        # Whatever ended the loop, what was computed is shown.
        growth = growth_of(run.records)
        if run.records:
            shown = notes if "-" in (json_path, csv_path) else console()
            with run.writing("-", "the table"):
                shown.print(summary(run.records, growth))
        if run.records and plot_path:
            with run.writing(plot_path, "--plot"):
                save_figure(growth_figure(run.records, growth), plot_path)
                say(notes, f"drew {plot_path}")
        if run.records and report_path:
            with run.writing(report_path, "--report"):
                write_report(Path(report_path), run.records)
                say(notes, f"wrote the report {report_path}")
        code = run.finish()
    return code
