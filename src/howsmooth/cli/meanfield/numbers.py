"""Lists of numbers that may be zero or infinite, and the files, the table and the picture around a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click


class Numbers(click.ParamType):
    """Comma-separated numbers from `least` on, duplicates dropped; `inf` or ∞ where it is allowed.

    >>> Numbers(least=1, infinite=True, example="2,inf").convert("2,inf", None, None)
    (2.0, inf)
    """

    name = "numbers"

    def __init__(self, *, least: float, example: str, most: float = 1e6, infinite: bool = False):
        self.least, self.most, self.infinite, self.example = least, most, infinite, example

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return self.example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        try:
            numbers = tuple(dict.fromkeys(float(piece.replace("∞", "inf")) for piece in value.split(",")))
        except ValueError:
            numbers = (math.nan,)
        if not all(self.least <= number <= self.most or (self.infinite and number == math.inf) for number in numbers):
            upper = f" to {self.most:g}" + (", or inf" if self.infinite else "")
            self.fail(f"expected comma-separated numbers from {self.least:g}{upper}, such as {self.example}, got "
                      f"{value!r}", param, ctx)
        return numbers


plot_option = click.option("--plot", "plot_path", metavar="FILE", help="Draw it (png, svg, pdf).")


def run_and_show(json_path: str | None, csv_path: str | None, plot_path: str | None, *,
                 work: Callable[[], tuple[str, int, Callable[[Callable], Iterable[dict]]]], table: Callable,
                 figure: Callable | None, thing: str, inputs: dict[str, str | None] | None = None) -> int:
    """Each record is written the moment it is there; then the table, and the picture if asked for.

    `work` gives a name, the number of records and what produces them given `step`; it is asked once all outputs are
    known to be good. No output may be one of the `inputs`, which may be one and the same.
    """
    from howsmooth.cli.outputs import check_writable, record_files, refuse_one_file_twice
    from howsmooth.cli.running import Run, console, say
    from howsmooth.report.figure import check_plot_path, save_figure

    for named in ({}, *({option: path} for option, path in (inputs or {}).items())):
        refuse_one_file_twice({**named, "--json": json_path, "--csv": csv_path, "--plot": plot_path})
    files = record_files(json_path, csv_path)
    if plot_path:
        check_plot_path(plot_path)
        check_writable(Path(plot_path), "--plot")
    notes = console(stderr=True)
    run = Run(files, notes, thing=thing)
    name, total, produce = work()
    try:
        run.collect(name, total, produce)
    finally:
        if run.records:
            shown = notes if "-" in (json_path, csv_path) else console()
            with run.writing("-", "the table"):
                shown.print(table(run.records))
        if run.records and plot_path:
            with run.writing(plot_path, "--plot"):
                save_figure(figure(run.records), plot_path)
                say(notes, f"drew {plot_path}")
        code = run.finish()
    return code
