"""`howsmooth report`: records as one HTML page, as CSV tables and as figures for a paper."""

from __future__ import annotations

from pathlib import Path

import click

from howsmooth.cli.options import STYLE_HELP, STYLE_NAMES


@click.command(name="report", short_help="Write records as an HTML page, CSV tables and figures.")
@click.argument("paths", metavar="STORE|JSON…", nargs=-1, required=True)
@click.option(
    "-o",
    "--report",
    "page_path",
    metavar="FILE.html",
    help="A self-contained HTML page.  [default: report.html, unless --tables or --figures is given]",
)
@click.option("--tables", "csv_folder", metavar="DIR", help="Also write each table as a CSV file.")
@click.option("--figures", "figure_folder", metavar="DIR", help="Also write vector figures for a paper (pdf).")
@click.option("--style", type=click.Choice(STYLE_NAMES), default="paper", show_default=True, help=STYLE_HELP)
@click.option("--title", metavar="TEXT", help="Title of the page.")
def command(
    paths: tuple[str, ...],
    page_path: str | None,
    csv_folder: str | None,
    figure_folder: str | None,
    style: str,
    title: str | None,
) -> int:
    """Write records as one self-contained HTML file with a light and a dark theme, for offline use and printing.

    Takes one or more stores of studies and files written by --json; - is stdin.
    """
    from howsmooth.cli.loading import show_loading
    from howsmooth.cli.outputs import check_distinct_files, check_writable, translate_write_errors, write_page
    from howsmooth.cli.run import make_console, print_line
    from howsmooth.questions.fields import make_folder
    from howsmooth.report.style import check_plot_path
    from howsmooth.studies.formats import read_records

    if page_path is None and csv_folder is None and figure_folder is None:
        page_path = "report.html"
    if page_path is not None:
        for path in paths:
            check_distinct_files({"the input": None if path == "-" else path, "--report": page_path})
        check_writable(Path(page_path), "--report")
    if figure_folder:
        check_plot_path("growth.pdf", "--figures")

    stderr = make_console(stderr=True)
    with show_loading(stderr, ", ".join(paths)):
        read = read_records(paths)

        from howsmooth.report.page_tables import tables_of
        from howsmooth.report.plan_tables import show_bytes
        from howsmooth.report.rows import counted
        from howsmooth.report.web_page import report_page, write_csv
    folders = {  # not before there are records to write
        option: make_folder(folder, option)
        for option, folder in (("--tables", csv_folder), ("--figures", figure_folder))
        if folder
    }
    for line in read.notes:
        print_line(stderr, f"howsmooth: {line}", style="yellow")
    tables = tables_of(read.records)
    if page_path is not None:
        with translate_write_errors(page_path, "--report"):
            size = write_page(Path(page_path), report_page(read.records, title=title, notes=read.notes, tables=tables))
        print_line(stderr, f"wrote {counted(len(read.records), 'record')} to {page_path}, {show_bytes(size)}")
    if "--tables" in folders:
        with translate_write_errors(folders["--tables"], "--tables"):
            written = write_csv(tables, folders["--tables"])
        print_line(stderr, f"wrote {', '.join(map(str, written))}")
    if "--figures" in folders:
        from howsmooth.report.paper import write_figures

        with translate_write_errors(folders["--figures"], "--figures"):
            written = write_figures(read.records, folders["--figures"], style)
        print_line(stderr, f"drew {', '.join(map(str, written))}")
    return 0
