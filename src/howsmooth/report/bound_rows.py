"""What a table or a figure shows of bounds: one row per map and bound, one cell per length."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from howsmooth.report.rows import number

LARGEST_PLAIN = 1e6  # beyond, a bound is shown as a power of ten
LOG10 = math.log(10)


@dataclass(frozen=True)
class BoundRow:
    """One bound of one map; `cells` has the record of the most sensitive sample at each length."""

    layer: int
    head: int | None
    bound: str
    side: str
    holds: str
    cells: dict[int, dict[str, Any]]

    @property
    def height(self) -> float:
        """Where the bound stands among the others: its mean log-ratio to the measured constant."""
        return sum(cell["log_ratio"] for cell in self.cells.values()) / len(self.cells)


def worst_samples(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each map, length and bound the record of the sample with the largest measured constant."""
    worst: dict[tuple, dict[str, Any]] = {}
    for record in records:
        key = (record["model"], record["layer"], record["head"], record["n"], record["bound"])
        if key not in worst or record["measured"]["value"] > worst[key]["measured"]["value"]:
            worst[key] = record
    return list(worst.values())


def bound_rows(records: Iterable[dict[str, Any]]) -> dict[tuple[int, int | None], list[BoundRow]]:
    """The rows of each map (layer, head) of one model: lower bounds first, each side by height; refusals left out."""
    cells: dict[tuple, dict[int, dict[str, Any]]] = {}
    for record in worst_samples(records):
        if record["refused"] is None:
            key = (record["layer"], record["head"], record["bound"], record["side"], record["holds"])
            cells.setdefault(key, {})[record["n"]] = record
    maps: dict[tuple[int, int | None], list[BoundRow]] = {}
    for key, at in cells.items():
        maps.setdefault(key[:2], []).append(BoundRow(*key, cells=at))
    for rows in maps.values():
        rows.sort(key=lambda row: (row.side != "lower", row.height))
    return dict(sorted(maps.items(), key=lambda item: (item[0][0], -1 if item[0][1] is None else item[0][1])))


def refusals(records: Iterable[dict[str, Any]]) -> dict[str, list[str]]:
    """Why bounds refused → which ones, the most common reason first."""
    reasons: dict[str, dict[str, None]] = {}
    for record in records:
        if record["refused"] is not None:
            reasons.setdefault(record["refused"], {})[record["bound"]] = None
    return {why: list(names) for why, names in sorted(reasons.items(), key=lambda item: -len(item[1]))}


def magnitude(log_value: float, digits: int = 3) -> str:
    """A number given by its logarithm, as plain as its size allows.

    >>> magnitude(math.log(65.3)), magnitude(math.log(26912)), magnitude(5000.0), magnitude(-math.inf)
    ('65.3', '26,900', '10^2171', '0')
    """
    if log_value == -math.inf:
        return "0"
    if log_value >= math.log(LARGEST_PLAIN):
        return f"10^{log_value / LOG10:.0f}"
    value = math.exp(log_value)
    return number(value, digits) if value < 1000 else f"{float(f'{value:.{digits}g}'):,.0f}"


def times(log_ratio: float) -> str:
    """A ratio given by its logarithm.

    >>> times(math.log(6.04)), times(math.log(0.123)), times(5000.0)
    ('×6.0', '×0.12', '×10^2171')
    """
    if not math.isfinite(log_ratio):
        return "×0" if log_ratio < 0 else "×∞"
    return f"×{magnitude(log_ratio, 3 if log_ratio > math.log(99.5) else 2)}"

