"""Charts as data: what a chart shows, independent of how it is drawn.

A `Chart` describes one panel: axes, series, bands, annotations and texts. `figure.py` draws it
with matplotlib (light, dark, and at the column width of a paper); `embedding.py` puts that on a page.

Example:
    >>> line = Series((8, 16), (1.0, 2.0), label="layer 0", linestyle="solid")
    >>> chart = Chart("A model", Axis("length n (tokens)", "log"), Axis("Lip", "log"), [line])
    >>> chart.to_json()["series"]
    [{'x': [8, 16], 'y': [1.0, 2.0], 'label': 'layer 0', 'linestyle': 'solid'}]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from statistics import median
from typing import Any, Literal, TypeAlias

from howsmooth.fits import Law

PALETTE_SIZE = 6  # categorical colours; more would be hard to distinguish
MAX_DETAILED_SERIES = PALETTE_SIZE  # with more series of samples, only their median lines are drawn
_JSON_DIGITS = 7  # significant digits of plotted numbers; the tables of the report keep all digits
_REFERENCE_START = 0.72  # reference lines start at this multiple of the smallest y
_MESSAGE_HEIGHT = 2.0  # inches, of a panel that contains only a message
_REFERENCE_STOP = 1.1  # and stop at this multiple of the largest y

Scale: TypeAlias = Literal["linear", "log", "exponents"]
LineStyle: TypeAlias = Literal["", "solid", "dashed", "dotted", "dashdot"]
# int: index into the categorical palette; float: position in [0, 1] on a sequential colour map;
# str: "foreground" or "muted", colours of the theme.
Colour: TypeAlias = int | float | str


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes:
        label: Axis label.
        scale: "linear" or "log". With "exponents" the data are base-10 exponents on a linear scale, and tick `k` is
            labelled `10^k`.
        ticks: Tick positions; if empty, the renderer chooses them.
        tick_labels: Labels for the positions 0, 1, 2, …, for a categorical axis.
        lower_limit: Lower end of the axis; if None, the renderer chooses it.
        upper_limit: Upper end of the axis; if None, the renderer chooses it.
        integer_ticks: Whether ticks are at integers only.
    """

    label: str
    scale: Scale = "linear"
    ticks: Sequence[float] = ()
    tick_labels: Sequence[str] = ()
    lower_limit: float | None = None
    upper_limit: float | None = None
    integer_ticks: bool = False


@dataclass(frozen=True)
class Series:
    """Data points with optional intervals, a line through them, and a fitted power law.

    Attributes:
        x: Horizontal coordinates.
        y: Vertical coordinates, one for each x.
        lower: Lower ends of the intervals; empty if there are no intervals.
        upper: Upper ends of the intervals; None where a point is only a lower bound.
        label: Legend entry; empty for none.
        has_samples: Whether the points are samples, possibly several at one x. The line then connects their medians,
            and a chart with more than `MAX_DETAILED_SERIES` such series draws only these lines.
        show_markers: Whether points are drawn as markers.
        hollow_markers: Whether markers are outlines without fill.
        marker_index: Index into the renderer's list of marker shapes; if None, the index of the series.
        linestyle: Style of the line; empty for no line.
        linewidth: Width of the line in points.
        colour: See `Colour`; if None, chosen by the index of the series.
        law: Fitted law `y = C x^alpha`, drawn only if `law.shown`.
        law_linestyle: Style of the line of the law.
        omitted_count: Number of values left out because they are zero or missing and the scale is logarithmic.
        horizontal_intervals: Whether `lower` and `upper` are intervals for x instead of y.
        name: What the series is called where it has no legend entry; by default the label.
        details: What else a page says about each point, such as the status of a solve.
    """

    x: Sequence[float]
    y: Sequence[float]
    lower: Sequence[float | None] = ()
    upper: Sequence[float | None] = ()
    label: str = ""
    has_samples: bool = False
    show_markers: bool = False
    hollow_markers: bool = False
    marker_index: int | None = None
    linestyle: LineStyle = ""
    linewidth: float = 1.8
    colour: Colour | None = None
    law: Law | None = None
    law_linestyle: LineStyle = "dashed"
    omitted_count: int = 0
    horizontal_intervals: bool = False
    name: str = ""
    details: Sequence[str] = ()

    def medians(self) -> tuple[list[float], list[float]]:
        """Return the distinct x in ascending order, and the median of y at each."""
        y_by_x = self._y_by_x()
        return list(y_by_x), [median(values) for values in y_by_x.values()]

    def ranges(self) -> tuple[list[float], list[float]]:
        """Return the smallest and the largest y at each distinct x, in ascending order of x."""
        y_by_x = self._y_by_x()
        return [min(values) for values in y_by_x.values()], [max(values) for values in y_by_x.values()]

    def _y_by_x(self) -> dict[float, list[float]]:
        groups: dict[float, list[float]] = {}
        for x, y in zip(self.x, self.y, strict=True):
            groups.setdefault(x, []).append(y)
        return dict(sorted(groups.items()))


@dataclass(frozen=True)
class Band:
    """A shaded area between two curves over the same x."""

    x: Sequence[float]
    lower: Sequence[float]
    upper: Sequence[float]
    label: str = ""


@dataclass(frozen=True)
class Annotation:
    """A text at a data point; `align` is the horizontal alignment of the text relative to the point."""

    x: float
    y: float
    text: str
    align: Literal["left", "center", "right"] = "left"
    colour: Colour = "muted"


@dataclass(frozen=True)
class ReferenceSlope:
    """A power `x^exponent` drawn for comparison with the series; a straight line on log-log axes."""

    exponent: float
    label: str
    linestyle: LineStyle = "dashed"


class Panel:
    """What one panel of a picture shows: base of `Chart`, `HeatMap` and `Tokens`.

    A new kind is a frozen dataclass derived from this class, and one function in `howsmooth.report.figure.DRAWN_BY`.
    """

    title: str

    def row_height(self, width: float, height: float) -> float:
        """Return the height in inches of a panel of some width, where the picture declares a height."""
        return height

    def to_json(self) -> dict[str, Any]:
        """Return what is shown as JSON, without fields that have their default value."""
        return {"kind": type(self).__name__.lower(), **_to_json(self)}


@dataclass(frozen=True)
class Picture:
    """Panels and how they are arranged: what `howsmooth.report.draw` draws as one figure.

    Attributes:
        panels: The panels, row by row.
        columns: Largest number of panels in a row.
        width: Width of a panel on a screen, in inches.
        height: Height of a row of panels on a screen, in inches.
        title: Title above all panels.
        many_panels: Whether there are many small panels, which have smaller text on a screen.
        shared_legend: Whether there is one legend for all panels instead of one for each.
        mosaic: Rows of letters, separated by semicolons, for panels that span rows or columns: in "AB;AC" the first
            panel is as high as the other two; in place of `columns`.
        width_ratios: Widths of the columns of a mosaic relative to each other.
    """

    panels: Sequence[Panel]
    columns: int = 3
    width: float = 5.4
    height: float = 4.6
    title: str = ""
    many_panels: bool = False
    shared_legend: bool = False
    mosaic: str = ""
    width_ratios: Sequence[float] = ()

    @classmethod
    def of(cls, drawn: Picture | Sequence[Panel]) -> Picture:
        """Return a picture as it is, and panels in the default arrangement."""
        return drawn if isinstance(drawn, Picture) else cls(drawn)


@dataclass(frozen=True)
class Chart(Panel):
    """One panel with an x-axis and a y-axis.

    Attributes:
        title: Title above the panel.
        x_axis: Horizontal axis.
        y_axis: Vertical axis.
        series: Data series in the order of the legend.
        bands: Shaded areas behind the series.
        annotations: Texts at data points.
        reference_slopes: Powers of x for comparison, see `reference_lines`.
        legend_title: Title of the legend.
        notes: Lines of text below the legend.
        short_notes: What is shown in their place where they would take more than two lines.
        corner_text: Text in the upper left corner of the panel.
        message: Text shown in place of a chart without data.
        caption: Caption of a chart with `is_detailed`.
        caption_without_details: Caption of a chart that draws only median lines.
    """

    title: str
    x_axis: Axis
    y_axis: Axis
    series: Sequence[Series] = ()
    bands: Sequence[Band] = ()
    annotations: Sequence[Annotation] = ()
    reference_slopes: Sequence[ReferenceSlope] = ()
    legend_title: str = ""
    notes: Sequence[str] = ()
    short_notes: Sequence[str] = ()
    corner_text: str = ""
    message: str = ""
    caption: str = ""
    caption_without_details: str = ""

    @property
    def is_detailed(self) -> bool:
        """Whether there are few enough series of samples to draw markers, intervals and laws."""
        return sum(series.has_samples for series in self.series) <= MAX_DETAILED_SERIES

    def reference_lines(self) -> list[tuple[Series, Annotation]]:
        """Return each reference slope as a line, with its label as an annotation at the right end.

        The lines start at the smallest x, just below the lowest point. They end at the largest x, or where they exceed
        the highest point.
        """
        xs = [x for series in self.series for x in series.x]
        ys = [y for series in self.series for y in series.y]
        if not self.reference_slopes or not xs or min(xs) == max(xs):
            return []
        x_start, y_start = min(xs), _REFERENCE_START * min(ys)
        log_ratio = math.log(_REFERENCE_STOP * max(ys) / y_start)
        lines = []
        for slope in self.reference_slopes:
            x_stop = x_start * math.exp(min(600.0, log_ratio / slope.exponent))  # exp(600) is still finite
            x_end = min(max(xs), x_stop)
            y_end = y_start * (x_end / x_start) ** slope.exponent
            line = Series([x_start, x_end], [y_start, y_end], linestyle=slope.linestyle, linewidth=1.2, colour="muted")
            lines.append((line, Annotation(x_end, y_end, slope.label)))
        return lines

    def row_height(self, width: float, height: float) -> float:
        """Return the declared height; a message needs less."""
        return min(height, _MESSAGE_HEIGHT) if self.message else height


@dataclass(frozen=True)
class HeatMap(Panel):
    """A matrix of values on a logarithmic colour scale.

    Attributes:
        title: Title above the panel.
        x_axis: Axis of the columns.
        y_axis: Axis of the rows.
        columns: Label of each column, such as the index of a head or a length.
        rows: Label of each row, such as the index of a layer.
        values: Values as `values[row][column]`; None where there is no value.
        caption: Text below the panel.
    """

    title: str
    x_axis: Axis
    y_axis: Axis
    columns: Sequence[int]
    rows: Sequence[int]
    values: Sequence[Sequence[float | None]]
    caption: str = "Dark is small, bright is large."

    def to_json(self) -> dict[str, Any]:
        """Return the heat map as JSON for the HTML report, with unrounded values for its CSV export."""
        return {"kind": "heat", **_to_json(self), "values": self.values}


def _to_json(value: Any) -> Any:
    """Convert charts and their parts to JSON types; rounds floats and omits fields with default values."""
    if isinstance(value, Law):
        return {"constant": value.constant, "exponent": value.exponent} if value.shown else None
    if is_dataclass(value):
        converted = {
            field.name: _to_json(getattr(value, field.name))
            for field in fields(value)
            if getattr(value, field.name) != field.default
        }
        return {name: item for name, item in converted.items() if item is not None and item != []}
    if isinstance(value, (list, tuple, range)):
        return [_to_json(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_JSON_DIGITS}g}") if math.isfinite(value) else None
    return value
