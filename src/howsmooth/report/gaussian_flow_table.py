"""Gaussian flows, densities and rates on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from howsmooth.report.rows import number
from howsmooth.report.table import plain_table

_ROWS = 10


def moments_table(record: dict[str, Any], title: str, beside: dict[str, Any] | None = None) -> Table:
    """About ten of the saved times: the mean's norm, the eigenvalues of the covariance, the distance of particles."""
    import numpy

    table = plain_table(_title(title))
    table.add_column("t", justify="right", style="bold")
    table.add_column("|mean|", justify="right")
    table.add_column("eigenvalues of the covariance", style="bold green", no_wrap=True)
    if beside is not None:
        table.add_column(f"{beside['n']} particles: to the flow", justify="right")
        table.add_column("W₂ of moments", justify="right")
    values = numpy.linalg.eigvalsh(numpy.array(record["covariances"]))[:, ::-1]
    last = len(record["times"]) - 1
    for k in dict.fromkeys(round(last * share / (_ROWS - 1)) for share in range(_ROWS)):
        cells = [f"{record['times'][k]:.4g}", number(float(numpy.linalg.norm(record["means"][k]))),
                 "  ".join(number(float(value), 4) for value in values[k][:5]) + ("  …" if record["d"] > 5 else "")]
        if beside is not None:
            there = k < len(beside["coupled"])
            cells += [number(beside[key][k], 3) if there else "" for key in ("coupled", "moments")]
        table.add_row(*cells)
    return table


def census_table(found: Sequence[dict[str, Any]], title: str) -> Table:
    """How many runs ended how: none is left out."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for record in found:
        groups.setdefault((record["status"], record["rank"], record["shape_rank"]), []).append(record)
    table = plain_table(_title(title))
    for heading, style in (("runs", "bold green"), ("ended", ""), ("rank of S", ""), ("rank of S/‖S‖", ""),
                           ("not settled", "dim")):
        table.add_column(heading, justify="left" if heading == "ended" else "right", style=style)
    for (status, rank, shape), records in sorted(groups.items(), key=lambda item: -len(item[1])):
        open_runs = sum(not record["settled"] for record in records)
        table.add_row(str(len(records)), status, str(rank), str(shape), str(open_runs or ""))
    return table


def rate_table(record: dict[str, Any], title: str) -> Table:
    """Distances of particles to the limit, in the mean over repeats, beside what sampling alone leaves."""
    table = plain_table(_title(title))
    table.add_column("n", justify="right", style="bold")
    if record["runs"][0]["at_start"] is not None:
        table.add_column(f"{record['distance']} at t = 0", justify="right")
    table.add_column(f"{record['distance']} at t = {record['until']:g}", justify="right", style="bold green")
    table.add_column("fit", justify="right", style="dim")
    rate = record["rate"]
    for n in dict.fromkeys(run["n"] for run in record["runs"]):
        runs = [run for run in record["runs"] if run["n"] == n]
        known = [key for key in ("at_start", "distance") if runs[0][key] is not None]
        cells = [sum(run[key] for run in runs) / len(runs) for key in known]
        table.add_row(str(n), *(number(cell, 3) for cell in cells),
                      number(rate["constant"] * n ** rate["exponent"], 3))
    return table


def _title(text: str) -> Text:
    """Bold, on one line even where the table is narrower."""
    return Text(text, style="bold cyan", no_wrap=True, overflow="ignore")
