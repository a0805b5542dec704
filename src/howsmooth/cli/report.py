"""`howsmooth report`: records as one HTML page, as CSV and as figures for a paper."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="report", short_help="Records as a page to look at, as CSV and as figures.")
@click.argument("places", metavar="STORE|JSON…", nargs=-1, required=True)
@click.option(
    "-o",
    "--report",
    "page_path",
    metavar="FILE.html",
    help="A page that needs nothing else.  [default: report.html, unless --tables or --figures ask for something else]",
)
@click.option("--tables", "csv_folder", metavar="DIR", help="Also each table as a CSV file.")
@click.option("--figures", "figure_folder", metavar="DIR", help="Also vector figures for a paper (pdf).")
@click.option("--title", metavar="TEXT", help="Title of the page.")
def command(places, page_path, csv_folder, figure_folder, title) -> int:
    """Write what was measured as one HTML file that needs nothing else: light, dark, offline, on paper.

    Takes stores of studies and what --json wrote, several of them together; - is stdin.
    """
    from howsmooth.cli.outputs import check_writable, refuse_one_file_twice, writable_folder, write_page, writing
    from howsmooth.cli.run import console, say

    if page_path is None and csv_folder is None and figure_folder is None:
        page_path = "report.html"
    if page_path is not None:
        for place in places:
            refuse_one_file_twice({"what is read": None if place == "-" else place, "--report": page_path})
        check_writable(Path(page_path), "--report")
    folders = {
        option: writable_folder(folder, option)
        for option, folder in (("--tables", csv_folder), ("--figures", figure_folder))
        if folder
    }
    if figure_folder:
        from howsmooth.report.figure import check_plot_path

        check_plot_path("growth.pdf", "--figures")

    from howsmooth.report.page_tables import tables_of
    from howsmooth.report.web_page import report_page, write_csv
    from howsmooth.studies.formats import read_records

    notes = console(stderr=True)
    read = read_records(places)
    for line in read.notes:
        say(notes, f"howsmooth: {line}", style="yellow")
    tables = tables_of(read.records)
    if page_path is not None:
        with writing(page_path, "--report"):
            size = write_page(Path(page_path), report_page(read.records, title=title, notes=read.notes, tables=tables))
        say(notes, f"wrote {len(read.records)} records to {page_path}, {size / 2**20:.1f} MiB")
    if "--tables" in folders:
        with writing(folders["--tables"], "--tables"):
            written = write_csv(tables, folders["--tables"])
        say(notes, f"wrote {', '.join(map(str, written))}")
    if "--figures" in folders:
        from howsmooth.report.paper import write_figures

        with writing(folders["--figures"], "--figures"):
            written = write_figures(read.records, folders["--figures"])
        say(notes, f"drew {', '.join(map(str, written))}")
    return 0
