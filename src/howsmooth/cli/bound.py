"""`howsmooth bound`: every bound of a model's attention layers beside the measured constant."""

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
from howsmooth.cli.parsing import Radius


@click.command(
    name="bound",
    short_help="Every bound of the theory beside the measured constant.",
    help="Bound the Lipschitz constant of a model's attention layers, and measure how tight each bound is.\n\n"
    "    Bounds hold on all inputs of n tokens in a ball of radius R, at the measured tokens X, or whatever n is; "
    f"the table says which. A bound whose conditions a layer does not meet says so.\n\n    {MODEL}",
)
@click.argument("model", default="minilm")
@text_option
@layers_option
@heads_option
@lengths_option("32,128,512")
@samples_option(1)
@click.option(
    "--radius",
    type=Radius(),
    default="norm",
    show_default=True,
    help="Of the ball: what the normalisation in front can give at most, what the tokens have, or a number.",
)
@special_tokens_option
@tol_option(1e-3)
@confidence_option
@loading_options
@json_option
@csv_option
@click.option("--plot", "plot_path", metavar="FILE", help="All bounds against n as a figure (png, svg, pdf).")
def command(
    model,
    text_path,
    layers,
    heads,
    lengths,
    samples,
    radius,
    special_tokens,
    tol,
    confidence,
    seed,
    json_path,
    csv_path,
    plot_path,
    **loading,
) -> int:
    from howsmooth.cli.outputs import check_writable, record_files, refuse_one_file_twice
    from howsmooth.cli.running import Run, announce, console, say
    from howsmooth.report.bound_figure import bounds_figure, check_panels
    from howsmooth.report.bound_table import bounds_summary
    from howsmooth.report.figure import check_plot_path, save_figure

    outputs = {"--json": json_path, "--csv": csv_path, "--plot": plot_path}
    refuse_one_file_twice({"--text": None if text_path == "-" else text_path, **outputs})
    files = record_files(json_path, csv_path)
    if plot_path:
        check_plot_path(plot_path)
        check_writable(Path(plot_path), "--plot")
    text = read_text(text_path)

    from howsmooth.bounds import EVERY
    from howsmooth.studies import bound, resolve

    notes = console(stderr=True)
    loaded = load_chosen(model, seed=seed, **loading)
    settings = resolve(
        loaded,
        text,
        layers=layers,
        heads=heads,
        lengths=lengths,
        samples=samples,
        special_tokens=special_tokens == "add",
        tol=tol,
        confidence=confidence,
        seed=seed,
    )
    if plot_path:
        check_panels(len(settings.layers) * (1 if settings.heads is None else len(settings.heads)))
    announce(loaded, text, settings, notes)
    run = Run(files, notes, thing="bound")
    try:
        run.collect(
            loaded.name,
            settings.estimates * len(EVERY),
            lambda step: bound(loaded, text, settings, radius=radius, step=step),
        )
    finally:
        if run.records:
            shown = notes if "-" in (json_path, csv_path) else console()
            with run.writing("-", "the table"):
                shown.print(bounds_summary(run.records))
        if run.records and plot_path:
            with run.writing(plot_path, "--plot"):
                save_figure(bounds_figure(run.records), plot_path)
                say(notes, f"drew {plot_path}")
        code = run.finish()
    return code
