"""`howsmooth reproduce`: the paper's figures, as described beside as released."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.parsing import Count, Number
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from rich.console import Console

    from howsmooth.studies.figures import Options, Outcome
    from howsmooth.studies.store import Store

STORE = "reproduce.sqlite"


@click.command(name="reproduce", short_help="The paper's figures, made again.")
@click.argument("figures", nargs=-1, metavar="[FIGURE…|all]")
@click.option("--models", metavar="NAME,NAME", help="These models in place of the figures' own.")
@click.option("--layers", metavar="0,6", help="These layers of every model.")
@click.option("--lengths", metavar="16..512*2", help="These lengths in place of the figures' own.")
@click.option("--samples", type=Count(), metavar="COUNT", help="Inputs for each length.")
@click.option("--tol", type=Number(0, 1, open=True), help="Relative width of intervals.")
@click.option("--out", "folder", metavar="DIR", default="reproduced", show_default=True, help="Where all of it goes.")
@click.option("--data", metavar="DIR", help="Holds alice.txt and ag_news_test.csv.  [default: $HOWSMOOTH_DATA]")
@click.option("--gpt2-attention", metavar="FILE", help="GPT-2's attention layers (safetensors), for made inputs.")
@click.option("--workers", type=Count(0, 1024), metavar="COUNT",
              help="Processes; 0 is this one, which --quick takes.")
@click.option("--quick", is_flag=True, help="A few short lengths and two samples: minutes, not hours.")
def command(figures: tuple[str, ...], folder: str, data: str | None, **given: Any) -> int:
    """Make the figures of "How Smooth Is Attention?" again, and the same for other models.

    FIGURE is text (Lip against n), radius (Lip against the mean radius), adversarial, norms (token norms against n),
    others (models the paper did not have), synthetic (GPT-2's true attention on noise), or all, the default.
    Nothing that is already in the folder's store is computed twice; what cannot be loaded becomes a missing panel.
    """
    from howsmooth.cli.main import EXIT_INTERRUPTED
    from howsmooth.cli.outputs import writable_folder
    from howsmooth.cli.running import console, say
    from howsmooth.report.figure import check_plot_path
    from howsmooth.studies.figures import names, read_figure
    from howsmooth.studies.store import Store

    chosen = names() if not figures or "all" in figures else list(dict.fromkeys(figures))
    declared = [read_figure(name) for name in chosen]
    options, notes = _options(**given), console(stderr=True)
    check_plot_path("figure.png", "the figures")
    if data is not None:
        if not Path(data).is_dir():
            raise InputError(f"expected a folder for --data, got {data}; name one that exists")
        os.environ["HOWSMOOTH_DATA"] = data
    out, made = writable_folder(folder, "--out"), []
    with Store.write(out / STORE) as store:
        if store.recovered:
            say(notes, f"howsmooth: {store.recovered}", style="yellow")
        try:
            for figure in declared:
                outcome = _run(figure, store, options, notes)
                made.append((outcome, _write(outcome, out)))
                _write_index(made, out)
        except KeyboardInterrupt:
            say(notes, "howsmooth: interrupted; the same command goes on from here")
            return EXIT_INTERRUPTED
    shown = console()
    for outcome, pictures in made:
        lacks = {(lack.model, lack.reason) for lack in outcome.missing}
        say(shown, f"{outcome.figure.name}: {len(outcome.records)} records, {len(pictures)} pictures"
            + (f", {len(lacks)} models missing" if lacks else ""))
        for model, reason in sorted(lacks):
            say(shown, f"  missing {model}: {reason}", style="yellow")
    say(shown, f"index    {out / 'index.md'}, {out / 'index.html'}")
    return 0


def _options(models: str | None, layers: str | None, lengths: str | None, samples: int | None, tol: float | None,
             gpt2_attention: str | None, workers: int | None, quick: bool) -> Options:
    from howsmooth.cli.overriding import _list
    from howsmooth.studies.config import _range
    from howsmooth.studies.figures import Options

    if gpt2_attention is not None and not Path(gpt2_attention).is_file():
        raise InputError(f"expected a file for --gpt2-attention, got {gpt2_attention}; check the path")
    try:
        numbers = tuple(int(piece) for piece in layers.split(",")) if layers else None
        wanted = tuple(sorted(set(_range(lengths)))) if lengths else None
    except ValueError as error:
        raise InputError(f"--layers or --lengths: {error}; for example --layers 0,6 --lengths 16..256*2") from None
    if numbers and min(numbers) < 0:
        raise InputError(f"expected layers from 0, got {min(numbers)}; for example --layers 0,6")
    if wanted and wanted[0] < 2:
        raise InputError(f"expected lengths of at least 2, got {wanted[0]}; one token has nothing to attend to")
    return Options(models=tuple(_list(models or "")), layers=numbers, lengths=wanted, samples=samples, tol=tol,
                   gpt2_attention=gpt2_attention, workers=workers, quick=quick)


def _run(figure, store: Store, options: Options, notes: Console) -> Outcome:
    from howsmooth.cli.progress import Bar
    from howsmooth.cli.running import say
    from howsmooth.studies.figures import run_figure

    with Bar(notes) as bar:
        return run_figure(figure, store, options, progress=bar.show, note=lambda line: say(notes, line, style="dim"))


def _write(outcome: Outcome, out: Path) -> list[str]:
    """Records as JSON lines and the pictures; the names of the pictures."""
    from howsmooth.report.figure import save_figure
    from howsmooth.report.paper_figure import draw, sheets
    from howsmooth.studies.lines import json_line

    name = outcome.figure.name
    with open(out / f".{name}.partial", "w", encoding="utf-8") as stream:
        for record in (*outcome.records, *outcome.bounds):
            stream.write(json_line({**record, "figure": name}) + "\n")
    os.replace(out / f".{name}.partial", out / f"{name}.jsonl")
    pictures = sheets(outcome)
    for picture, panels in pictures.items():
        save_figure(draw(panels, outcome), out / f"{picture}.png")
    return list(pictures)


def _write_index(made: list[tuple[Outcome, list[str]]], out: Path) -> None:
    from howsmooth.report.paper_index import index_html, index_markdown

    (out / "index.md").write_text(index_markdown(made), encoding="utf-8")
    (out / "index.html").write_text(index_html(made), encoding="utf-8")
