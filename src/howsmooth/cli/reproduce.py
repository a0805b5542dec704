"""`howsmooth reproduce`: the paper's figures, as described beside as released."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from howsmooth.cli.options import spec_from, spec_options
from howsmooth.errors import InputError

STORE = "reproduce.sqlite"
FIGURES_OWN = dict.fromkeys(("models", "layers", "lengths", "samples", "tol"), "the figure's")


@click.command(name="reproduce", short_help="The paper's figures, made again.")
@click.argument("figures", nargs=-1, metavar="[FIGURE…|all]")
@spec_options("models", "layers", "lengths", "samples", "tol", **FIGURES_OWN)
@click.option("--out", "folder", metavar="DIR", default="reproduced", show_default=True, help="Folder for the results.")
@click.option("--data", metavar="DIR", help="Holds alice.txt and ag_news_test.csv.  [default: $HOWSMOOTH_DATA]")
@click.option("--gpt2-attention", metavar="FILE", help="GPT-2's attention layers (safetensors), for made inputs.")
@spec_options("workers")
@click.option("--quick", is_flag=True, help="A few short lengths and two samples in this process: minutes, not hours.")
def command(
    figures: tuple[str, ...], folder: str, data: str | None, gpt2_attention: str | None, quick: bool, **given: Any
) -> int:
    """Make the figures of "How Smooth Is Attention?" again, and the same for other models.

    FIGURE is text (Lip against n), radius (Lip against the mean radius), adversarial, norms (token norms against n),
    others (models the paper did not have), synthetic (GPT-2's true attention on noise), or all, the default.
    Nothing that is already in the folder's store is computed twice; what cannot be loaded becomes a missing panel.
    """
    from howsmooth.cli.main import EXIT_INTERRUPTED
    from howsmooth.cli.outputs import writable_folder
    from howsmooth.cli.run import console, say
    from howsmooth.report.figure import check_plot_path
    from howsmooth.studies.figures import figure_names, read_figure
    from howsmooth.studies.store import Store

    chosen = figure_names() if not figures or "all" in figures else list(dict.fromkeys(figures))
    declared = [read_figure(name) for name in chosen]
    if gpt2_attention is not None and not Path(gpt2_attention).is_file():
        raise InputError(f"expected a file for --gpt2-attention, got {gpt2_attention}; check the path")
    spec = spec_from(given)

    from howsmooth.cli.progress import Bar
    from howsmooth.report.reproduction import write_figure, write_index
    from howsmooth.studies.figures import Options, run_figure

    options = Options.of_spec(
        spec, [name for name in FIGURES_OWN if given[name] is not None], gpt2_attention=gpt2_attention, quick=quick
    )
    check_plot_path("figure.png", "the figures")
    if data is not None:
        if not Path(data).is_dir():
            raise InputError(f"expected a folder for --data, got {data}; name one that exists")
        os.environ["HOWSMOOTH_DATA"] = data
    notes, out, made = console(stderr=True), writable_folder(folder, "--out"), []
    with Store.write(out / STORE) as store:
        if store.recovered:
            say(notes, f"howsmooth: {store.recovered}", style="yellow")
        try:
            for figure in declared:
                with Bar(notes) as bar:
                    outcome = run_figure(
                        figure, store, options, progress=bar.show, log=lambda line: say(notes, line, style="dim")
                    )
                made.append((outcome, write_figure(outcome, out)))
                write_index(made, out)
        except KeyboardInterrupt:
            say(notes, "howsmooth: interrupted; the same command goes on from here")
            return EXIT_INTERRUPTED
    shown = console()
    for outcome, pictures in made:
        lacks = {(lack.model, lack.reason) for lack in outcome.missing}
        say(
            shown,
            f"{outcome.figure.name}: {len(outcome.records)} records, {len(pictures)} pictures"
            + (f", {len(lacks)} models missing" if lacks else ""),
        )
        for model, reason in sorted(lacks):
            say(shown, f"  missing {model}: {reason}", style="yellow")
    say(shown, f"index    {out / 'index.md'}, {out / 'index.html'}")
    return 0
