"""Worst cases and certified balls on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from rich.table import Table
from rich.text import Text

from howsmooth.report.bound_rows import magnitude, times
from howsmooth.report.rows import interval, model_name, number
from howsmooth.report.table import confidence_text, plain_table

_SETS = {"norm": "all that the normalisation in front can put out", "ball": "the ball of radius R",
         "sphere": "the sphere of radius R", "near": "all tokens within ε of the text's"}
_SHOWN_MASSES = 4


def worst_case_table(records: Sequence[dict[str, Any]]) -> Table:
    """What ascent found, beside the text's own constant, the best start and the smallest upper bound."""
    first = records[0]
    where = _SETS[first["within"]]
    table = plain_table(Text(f"{model_name(first['model'])}: the largest Lip that ascent found in {where}",
                             style="bold cyan"))
    heads = first["head"] is not None
    _places(table, heads)
    table.add_column("on text", justify="right", style="dim")
    table.add_column("best start", justify="right", style="dim")
    table.add_column("found", justify="right", style="bold green")
    table.add_column(f"interval, {confidence_text(records)}", no_wrap=True)
    table.add_column("over text", justify="right")
    table.add_column("upper bound", justify="right", style="dim")
    table.add_column("tokens per place", no_wrap=True)
    for record in records:
        masses = record["masses"]
        crowd = " + ".join(map(str, masses[:_SHOWN_MASSES])) + (" + …" if len(masses) > _SHOWN_MASSES else "")
        over = "" if record["over_text"] is None else times(log(record["over_text"]))
        table.add_row(*_place(record, heads), number(record["on_text"]["value"]), number(record["best_start"]),
                      number(record["value"]), interval(record["lower"], record["upper"]),
                      over, magnitude(record["upper_bound"]["log_value"]), crowd)
    return table


def ball_table(records: Sequence[dict[str, Any]]) -> Table:
    """Certified above, found below, and how far apart the two are."""
    table = plain_table(Text(f"{model_name(records[0]['model'])}: Lip for all tokens within ε of the text's",
                             style="bold cyan"))
    heads = records[0]["head"] is not None
    _places(table, heads)
    table.add_column("ε", justify="right", style="bold")
    table.add_column("at the text", justify="right", style="dim")
    table.add_column("≥ found", justify="right", style="bold green")
    table.add_column("≤ certified", justify="right", style="bold green")
    table.add_column("apart", justify="right")
    table.add_column("by", no_wrap=True)
    table.add_column("vacuous from ε =", justify="right", style="dim")
    for index, record in enumerate(records):
        same = index + 1 < len(records) and _place(records[index + 1], heads) == _place(record, heads)
        apart = "" if record["tightness"] is None else times(log(record["tightness"]))
        table.add_row(*_place(record, heads), f"{record['eps']:g}", number(record["centre"]["value"]),
                      number(record["found"]["value"]), magnitude(record["log_certified"], 4), apart, record["method"],
                      number(record["vacuous_eps"], 2), end_section=not same)
    return table


def _places(table: Table, heads: bool) -> None:
    table.add_column("layer", justify="right")
    if heads:
        table.add_column("head", justify="right")
    table.add_column("n", justify="right")


def _place(record: dict[str, Any], heads: bool) -> list[str]:
    return [str(record["layer"]), *([str(record["head"])] if heads else []), str(record["n"])]
