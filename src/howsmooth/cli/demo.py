"""`howsmooth demo`: the two embedded models on the embedded text, with table, plot and page."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from howsmooth.cli.running import Run


@dataclass(frozen=True)
class Plan:
    """What the demo measures of one model: few enough layers and samples to end in a minute or two."""

    model: str
    layers: tuple[int, ...]
    lengths: tuple[int, ...]
    samples: int


PLANS = (
    Plan("minilm", layers=(0, 2, 5), lengths=(32, 64, 128, 256, 512), samples=2),
    Plan("smollm2", layers=(0, 10, 29), lengths=(32, 64, 128, 256, 512, 1024), samples=2),
)


@click.command(name="demo", short_help="Two embedded models: table, plot and page.")
@click.option(
    "--out", "folder", metavar="DIR", default="demo", show_default=True, help="Where the results go."
)
@click.option(
    "--svg", "svg_path", metavar="FILE", hidden=True, help="A picture of the table as the terminal shows it."
)
def command(folder: str, svg_path: str | None) -> int:
    """Measure the two embedded models on the embedded text; leave a plot, the records and a page."""
    from howsmooth.cli.outputs import RecordFile, check_writable, writable_folder
    from howsmooth.cli.running import Run, announce, console, say
    from howsmooth.report.figure import check_plot_path
    from howsmooth.report.table import summary

    out = writable_folder(folder, "--out")
    plot, lines, page_path = (out / name for name in ("growth.png", "measurements.jsonl", "index.html"))
    check_plot_path(str(plot), "the demo's plot")
    for path in (plot, page_path):
        check_writable(path, "--out")
    if svg_path:
        check_writable(Path(svg_path), "--svg")
    run = Run([RecordFile(str(lines), "--out", form="json")], console(stderr=True))

    from howsmooth.models import load
    from howsmooth.studies import Text, growth_of, measure, resolve

    text = Text.embedded()
    shown = console(record=svg_path is not None, width=98 if svg_path else None)
    try:
        for plan in PLANS:
            if run.interrupted or run.failures:
                break
            before = len(run.records)
            model = load(plan.model)
            settings = resolve(model, text, layers=plan.layers, lengths=plan.lengths, samples=plan.samples)
            announce(model, text, settings, run.notes)
            run.collect(model.name, settings.estimates, lambda step: measure(model, text, settings, step=step))
            fresh = run.records[before:]
            if fresh:
                with run.writing("-", "the table"):
                    shown.print(summary(fresh, growth_of(fresh)))
    finally:
        if run.records:
            _write_report(run, plot, page_path)
            for what, path in (("plot", plot), ("records", lines), ("page", page_path)):
                if str(path) not in run.failures:
                    with run.writing("-", "the table"):
                        say(shown, f"{what:8} {path}")
        if svg_path:
            with run.writing(svg_path, "--svg"):
                shown.save_svg(svg_path, title="howsmooth demo", code_format=_svg_without_web_fonts())
        code = run.finish()
    return code


def _svg_without_web_fonts() -> str:
    """Rich's frame for a terminal picture, less the fonts it would fetch from elsewhere."""
    import re

    from rich.console import CONSOLE_SVG_FORMAT

    return re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)


def _write_report(run: Run, plot: Path, page_path: Path) -> None:
    from howsmooth.cli.outputs import write_report
    from howsmooth.report.figure import growth_figure, save_figure
    from howsmooth.studies import growth_of

    with run.writing(plot, "--out"):
        save_figure(growth_figure(run.records, growth_of(run.records)), plot)
    with run.writing(page_path, "--out"):
        write_report(page_path, run.records)
