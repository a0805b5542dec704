"""`howsmooth demo`: measure the two embedded models on the embedded text, with table, plot and page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.options import chosen_style, style_option
from howsmooth.cli.runtime import runtime_options
from howsmooth.questions import find_question

if TYPE_CHECKING:
    from howsmooth.cli.outputs import Record
    from howsmooth.cli.run import CommandRun

# Few layers and samples, so that the demo takes a minute or two.
SPECS: tuple[dict[str, Any], ...] = (
    {"models": "minilm", "layers": [0, 2, 5], "lengths": "32..512*2", "samples": 2},
    {"models": "smollm2", "layers": [0, 10, 29], "lengths": "32..1024*2", "samples": 2},
)


@click.command(name="demo", short_help="Measure two embedded models: table, plot and page.")
@click.option("--out", "folder", metavar="DIR", default="demo", show_default=True, help="Folder for the results.")
@style_option
@click.option(
    "--svg", "svg_path", metavar="FILE", hidden=True, help="An SVG image of the table as the terminal shows it."
)
@runtime_options()
def command(folder: str, svg_path: str | None) -> int:
    """Measure the two embedded models on the embedded text; write a plot, the records and a page."""
    from rich.console import Group

    from howsmooth.cli.loading import load_torch
    from howsmooth.cli.outputs import RecordFile, check_writable, save_console_svg, write_page
    from howsmooth.cli.run import CommandRun, make_console, print_line
    from howsmooth.questions.fields import make_folder
    from howsmooth.report.style import check_plot_path

    out = make_folder(folder, "--out")
    plot_path, records_path, page_path = (out / name for name in ("growth.png", "measurements.jsonl", "index.html"))
    check_plot_path(str(plot_path), "the demo's plot")
    for path in (plot_path, page_path):
        check_writable(path, "--out")
    if svg_path:
        check_writable(Path(svg_path), "--svg")
    records_file = RecordFile(str(records_path), "--out", format="json")
    click.get_current_context().with_resource(records_file.locked())
    run = CommandRun(find_question("measure"), [records_file], make_console(stderr=True))
    load_torch(run.stderr)

    from howsmooth.report.charts import growth_picture
    from howsmooth.report.figure import draw, save_figure
    from howsmooth.report.measurement_tables import measure_tables
    from howsmooth.report.style import figure_style
    from howsmooth.report.web_page import report_page

    stdout = make_console(record=svg_path is not None, width=98 if svg_path else None)
    try:
        for spec_values in SPECS:
            records = _measure(run, spec_values)
            if records:
                with run.defer_write_errors("-", "the table"):
                    stdout.print(Group(*measure_tables(records)))
            if run.interrupted or run.write_errors:
                break
    finally:
        if run.records:
            with run.defer_write_errors(plot_path, "--out"), figure_style(chosen_style()):
                save_figure(draw(growth_picture(run.records)), plot_path)
            with run.defer_write_errors(page_path, "--out"):
                write_page(page_path, report_page(run.records))
            for name, path in (("plot", plot_path), ("records", records_path), ("page", page_path)):
                if str(path) not in run.write_errors:
                    with run.defer_write_errors("-", "the table"):
                        print_line(stdout, f"{name:8} {path}")
        if svg_path:
            with run.defer_write_errors(svg_path, "--svg"):
                save_console_svg(svg_path, stdout, "howsmooth demo")
        code = run.finish()
    return code


def _measure(run: CommandRun, spec_values: dict[str, Any]) -> list[Record]:
    """Measure one of the specs and return its records."""
    from howsmooth.cli.loading import load_model_and_text
    from howsmooth.cli.run import print_overview
    from howsmooth.questions.spec import spec_of
    from howsmooth.studies.plan import prepare_model

    count_before = len(run.records)
    model, corpus, spec = load_model_and_text(spec_of({**spec_values, "name": "demo"}))
    plan = prepare_model(spec, model, corpus, from_files=True)
    print_overview(spec, model, run.stderr, plan)
    run.collect(model.name, plan)
    return run.records[count_before:]
