"""Bounds on the terminal: for each map the lower ones, the measured constant, the upper ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from howsmooth.report.bound_rows import BoundRow, bound_rows, magnitude, refusals, times
from howsmooth.report.rows import map_name, model_name, number
from howsmooth.report.table import confidence_text, plain_table


def bounds_summary(records: Sequence[dict[str, Any]]) -> RenderableType:
    """One table per map, and what refused, with its reason."""
    parts: list[RenderableType] = []
    for model in dict.fromkeys(record["model"] for record in records):
        chosen = [record for record in records if record["model"] == model]
        for key, rows in bound_rows(chosen).items():
            parts.append(_table(model, key, rows))
        for reason, names in refusals(chosen).items():
            line = Text("Refused: ", style="yellow").append(reason, style="default")
            parts.append(line.append("\n  " + ", ".join(names), style="dim"))
    return Group(*parts)


def _table(model: str, key: tuple[int, int | None], rows: list[BoundRow]) -> Table:
    lengths = sorted({n for row in rows for n in row.cells})
    cells = {n: next(row.cells[n] for row in rows if n in row.cells) for n in lengths}
    radii = sorted({number(cell["R"], 3) for cell in cells.values()})
    table = plain_table(Text(f"{model_name(model)} {map_name(*key)}: bounds on the ball of radius R = "
                             f"{' … '.join(dict.fromkeys((radii[0], radii[-1])))}", style="bold cyan"))
    table.add_column("bound", no_wrap=True)
    table.add_column("holds", style="dim", no_wrap=True)
    for n in lengths:
        table.add_column(f"n = {n}", justify="right", no_wrap=True)
        table.add_column("", justify="right", style="dim", no_wrap=True)
    lower = [row for row in rows if row.side == "lower"]
    for row in lower:
        _add(table, row, lengths)
    measured = [text for n in lengths for text in (number(cells[n]["measured"]["value"]), "")]
    table.add_row(f"measured, {confidence_text([cells[lengths[0]]['measured']])}", "at X", *measured,
                  style="bold green")
    for row in rows[len(lower):]:
        _add(table, row, lengths)
    shares = cells[lengths[-1]]["argmax_share"]
    heads = f" (mean of {len(shares)} heads, {max(shares):.0%} in the most decided)" if len(shares) > 1 else ""
    decided = f"{sum(shares) / len(shares):.0%} of rows at n = {lengths[-1]} put 0.99 or more on one token{heads}"
    table.caption = Text(f"near the large-radius limit: {decided}".replace("%", " %"), style="dim")
    table.caption_justify = "left"
    return table


def _add(table: Table, row: BoundRow, lengths: list[int]) -> None:
    pairs = [(magnitude(row.cells[n]["log_value"]), times(row.cells[n]["log_ratio"])) if n in row.cells else ("", "")
             for n in lengths]
    mark = "≥" if row.side == "lower" else "≤"
    table.add_row(f"{mark} {row.bound}", row.holds, *(text for pair in pairs for text in pair))
