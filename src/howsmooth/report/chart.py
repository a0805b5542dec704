"""A chart as data: what is drawn, on which axes, with which words. Renderers draw it and decide nothing about it.

`figure.py` draws charts with matplotlib (light, dark, and the style of a paper's column), `assets/plot.js` draws their
JSON on the offline page.

>>> line = Series((8, 16), (1.0, 2.0), name="layer 0", line="solid")
>>> Chart("A model", Axis("length n (tokens)", "log"), Axis("Lip", "log"), [line]).json()["series"]
[{'x': [8, 16], 'y': [1.0, 2.0], 'name': 'layer 0', 'line': 'solid'}]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from howsmooth.fits import Law

FEW = 6  # series that each get a colour, marks, intervals and a law; more are lines on an ordered scale of colours
_DIGITS = 7  # of a number in JSON: it is drawn, the tables of the page keep every digit


@dataclass(frozen=True)
class Axis:
    """scale: "linear", "log", or "powers" where values are logarithms to base 10 of what is meant."""

    label: str
    scale: str = "linear"
    ticks: Sequence[float] = ()  # empty: the renderer chooses
    names: Sequence[str] = ()  # of 0, 1, 2, …, instead of numbers
    low: float | None = None
    high: float | None = None
    whole: bool = False  # whole numbers alone


@dataclass(frozen=True)
class Series:
    """Points with their intervals, a line through them, and a fitted law.

    `lower` and `upper` are the ends of intervals; where an upper end is None the point is a lower bound alone. With
    `samples`, there may be several points at one x: the line goes through their medians, and a chart with more than
    `FEW` such series shows lines alone.
    """

    x: Sequence[float]
    y: Sequence[float]
    lower: Sequence[float | None] = ()
    upper: Sequence[float | None] = ()
    name: str = ""  # in the legend; empty: not there
    samples: bool = False
    marks: bool = False
    hollow: bool = False
    marker: int | None = None  # place among the renderer's shapes; None: of the series
    line: str = ""  # "", "solid", "dashed", "dotted", "dashdot"
    width: float = 1.8
    # Place in the palette (int), share of an ordered scale (float), "ink" or "faint"; None: by the place of the series.
    colour: int | float | str | None = None
    law: Law | None = None  # drawn and named only where it may be shown
    law_line: str = "dashed"
    omitted: int = 0  # values that are zero or missing and have no place on a log scale
    sideways: bool = False  # intervals run along x

    def medians(self) -> tuple[list[float], list[float]]:
        """The x in order, and the median of y at each."""
        at: dict[float, list[float]] = {}
        for x, y in zip(self.x, self.y, strict=True):
            at.setdefault(x, []).append(y)
        return sorted(at), [median(at[x]) for x in sorted(at)]

    def spread(self) -> tuple[list[float], list[float]]:
        """The least and the largest y at each x in order."""
        at: dict[float, list[float]] = {}
        for x, y in zip(self.x, self.y, strict=True):
            at.setdefault(x, []).append(y)
        return [min(at[x]) for x in sorted(at)], [max(at[x]) for x in sorted(at)]


@dataclass(frozen=True)
class Band:
    """The area between two curves."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    name: str = ""


@dataclass(frozen=True)
class Label:
    """Words at a point; `anchor` is where the point is: left, right or middle of them."""

    x: float
    y: float
    text: str
    anchor: str = "left"
    colour: int | str = "faint"


@dataclass(frozen=True)
class Slope:
    """A power of x to compare the series with, drawn from a corner below them; on log scales it is a line."""

    power: float
    name: str
    line: str = "dashed"


@dataclass(frozen=True)
class Chart:
    """One panel. `message` stands instead of a chart of which nothing is there; `notes` follow the legend."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series] = ()
    bands: Sequence[Band] = ()
    labels: Sequence[Label] = ()
    slopes: Sequence[Slope] = ()
    legend_title: str = ""
    notes: Sequence[str] = ()
    corner: str = ""
    message: str = ""
    caption: str = ""
    caption_of_many: str = ""

    @property
    def few(self) -> bool:
        return sum(series.samples for series in self.series) <= FEW

    def slope_lines(self) -> list[tuple[Series, Label]]:
        """Where the slopes are drawn, with their names at the ends."""
        points = [(x, y) for series in self.series for x, y in zip(series.x, series.y, strict=True)]
        if not points or min(points)[0] == max(points)[0]:
            return []
        first, last = min(x for x, _ in points), max(x for x, _ in points)
        base, most = 0.72 * min(y for _, y in points), max(y for _, y in points)
        placed = []
        for slope in self.slopes:
            reach = min(last, first * math.exp(min(600.0, math.log(1.1 * most / base) / slope.power)))
            end = base * (reach / first) ** slope.power
            placed.append(
                (
                    Series([first, reach], [base, end], line=slope.line, width=1.2, colour="faint"),
                    Label(reach, end, slope.name),
                )
            )
        return placed

    def json(self) -> dict[str, Any]:
        """What the page draws; fields that say nothing are left out."""
        return {"kind": "chart", **_json(self)}


@dataclass(frozen=True)
class HeatMap:
    """A value for each row and column on a log scale of colours; None where there is none."""

    title: str
    x: Axis
    y: Axis
    columns: Sequence[int]
    rows: Sequence[int]
    values: Sequence[Sequence[float | None]]
    caption: str = "Dark is small, bright is large."

    def json(self) -> dict[str, Any]:
        return {"kind": "heat", **_json(self), "values": self.values}  # with every digit: the page saves them as CSV


def _json(part: Any) -> Any:
    if hasattr(part, "as_record"):  # a law
        return {"constant": part.constant, "exponent": part.exponent} if part.shown else None
    if hasattr(part, "__dataclass_fields__"):
        found = {
            field.name: _json(getattr(part, field.name))
            for field in fields(part)
            if getattr(part, field.name) != field.default
        }
        return {name: value for name, value in found.items() if value is not None and value != []}
    if isinstance(part, (list, tuple, range)):
        return [_json(inner) for inner in part]
    if isinstance(part, float):
        return float(f"{part:.{_DIGITS}g}") if math.isfinite(part) else None
    return part
