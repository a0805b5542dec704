"""Distances between measures of tokens on the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from howsmooth.report.rows import model_name, number
from howsmooth.report.table import plain_table

_KINDS = {"W": "tokens without places", "d": "tokens with times"}


def distance_table(records: Sequence[dict[str, Any]]) -> Table:
    """One row per layer, length and exponent: the distance before and after attention, and their quotient."""
    first = records[0]
    names = first.get("texts") or first.get("files")
    who = f"{names[0]} and {names[1]}" if names[0] != names[1] else f"two pieces of {names[0]}"
    model = "" if first["model"] is None else f"{model_name(first['model'])}: "
    table = plain_table(Text(f"{model}how far apart are {who}, {_KINDS[first['distance']]}", style="bold cyan"))
    with_layer, with_after = first["layer"] is not None, any(record["after"] for record in records)
    if with_layer:
        table.add_column("layer", justify="right")
    table.add_column("n", justify="right", style="bold")
    table.add_column("distance", no_wrap=True)
    table.add_column("before" if with_after else "value", justify="right", style="bold green")
    if with_after:
        table.add_column("after attention", justify="right", style="bold green")
        table.add_column("quotient", justify="right")
    table.add_column("by", style="dim", no_wrap=True)
    table.add_column("gap", justify="right", style="dim")
    reasons = sorted({record["before"]["reason"] for record in records if record["before"].get("reason")})
    if reasons:
        table.caption = Text(f"∞: their times differ ({'; '.join(reasons)})", style="yellow")
        table.caption_justify = "left"
    for index, record in enumerate(records):
        size = str(record["n"]) if record["n"] == record["m"] else f"{record['n']}, {record['m']}"
        cells = [str(record["layer"])] * with_layer + [size, symbol(record["distance"], record["p"])]
        cells.append(_value(record["before"]))
        if with_after:
            cells += [_value(record["after"]), "" if record["quotient"] is None else number(record["quotient"])]
        found = [part for part in (record["before"], record["after"]) if part]
        gap = max((part["gap"] for part in found), default=0.0)
        by = found[0].get("method") or f"{found[0]['slices']} slices"
        same = index + 1 < len(records) and records[index + 1]["layer"] == record["layer"]
        table.add_row(*cells, by, "" if math.isnan(gap) else f"{gap:.0e}", end_section=not same)
    return table


def symbol(distance: str, p: float | str) -> str:
    """The distance as it is written.

    >>> symbol("W", 2.0), symbol("d", "inf"), symbol("W", 1.5)
    ('W₂', 'd_∞', 'W_1.5')
    """
    if p == "inf":
        return f"{distance}_∞"
    return f"{distance}{'₀₁₂₃₄₅₆₇₈₉'[int(p)]}" if p == int(p) and p < 10 else f"{distance}_{p:g}"


def _value(part: dict[str, Any]) -> str:
    return "∞" if part["value"] == "inf" else number(part["value"], 6)
