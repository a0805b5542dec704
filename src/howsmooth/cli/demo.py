"""`howsmooth demo`: the two embedded models on the embedded text, with table, plot and page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from howsmooth.cli.run import Run

# Few enough layers and samples to end in a minute or two.
SPECS = (
    {"models": "minilm", "layers": [0, 2, 5], "lengths": "32..512*2", "samples": 2},
    {"models": "smollm2", "layers": [0, 10, 29], "lengths": "32..1024*2", "samples": 2},
)


@click.command(name="demo", short_help="Two embedded models: table, plot and page.")
@click.option("--out", "folder", metavar="DIR", default="demo", show_default=True, help="Folder for the results.")
@click.option("--svg", "svg_path", metavar="FILE", hidden=True, help="A picture of the table as the terminal shows it.")
def command(folder: str, svg_path: str | None) -> int:
    """Measure the two embedded models on the embedded text; leave a plot, the records and a page."""
    from howsmooth.cli.outputs import RecordFile, check_writable, writable_folder, write_page, write_screen
    from howsmooth.cli.run import Run, console, say
    from howsmooth.report.figure import check_plot_path, growth_figure, save_figure
    from howsmooth.report.measurement_tables import summary

    out = writable_folder(folder, "--out")
    plot, lines, page = (out / name for name in ("growth.png", "measurements.jsonl", "index.html"))
    check_plot_path(str(plot), "the demo's plot")
    for path in (plot, page):
        check_writable(path, "--out")
    if svg_path:
        check_writable(Path(svg_path), "--svg")
    run = Run([RecordFile(str(lines), "--out", form="json")], console(stderr=True))

    from howsmooth.fits import growth_laws
    from howsmooth.report.web_page import report_page

    shown = console(record=svg_path is not None, width=98 if svg_path else None)
    try:
        for declared in SPECS:
            fresh = _measure(run, declared)
            if fresh:
                with run.writing("-", "the table"):
                    shown.print(summary(fresh, growth_laws(fresh)))
            if run.interrupted or run.failures:
                break
    finally:
        if run.records:
            with run.writing(plot, "--out"):
                save_figure(growth_figure(run.records, growth_laws(run.records)), plot)
            with run.writing(page, "--out"):
                write_page(page, report_page(run.records))
            for what, path in (("plot", plot), ("records", lines), ("page", page)):
                if str(path) not in run.failures:
                    with run.writing("-", "the table"):
                        say(shown, f"{what:8} {path}")
        if svg_path:
            with run.writing(svg_path, "--svg"):
                write_screen(svg_path, shown, "howsmooth demo")
        code = run.finish()
    return code


def _measure(run: Run, declared: dict[str, Any]) -> list[dict[str, Any]]:
    """Run one of the two specs; its records."""
    from howsmooth.cli.options import one_model
    from howsmooth.cli.run import announce
    from howsmooth.studies.plan import prepare_model
    from howsmooth.studies.run import records_of
    from howsmooth.studies.spec import spec_of

    before = len(run.records)
    model, corpus, spec = one_model(spec_of({**declared, "name": "demo"}))
    plan = prepare_model(spec, model, corpus)
    announce(spec, model, run.notes, plan)
    run.collect(model.name, plan.count, lambda progress: records_of(plan, progress=progress))
    return run.records[before:]
