"""Pictures as data: what they show, independent of how it is drawn.

A `Picture` has panels: a `Chart` (axes, series, bands, annotations and texts), a `HeatMap` or coloured `Tokens`.
`howsmooth.report.draw` draws it, for a screen, a paper or slides, on a light or a dark background.

Example:
    >>> line = Series((8, 16), (1.0, 2.0), label="layer 0", linestyle="solid")
    >>> chart = Chart("A model", Axis("length n (tokens)", "log"), Axis("Lip", "log"), [line])
    >>> Picture([chart]).panels[0].series[0].medians()
    ([8, 16], [1.0, 2.0])
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

if TYPE_CHECKING:
    from howsmooth.fits import Law
    from howsmooth.report.style import Colouring


PALETTE_SIZE = 6  # categorical colours; more would be hard to distinguish
MAX_DETAILED_SERIES = PALETTE_SIZE  # with more series of samples, only their median lines are drawn
_REFERENCE_START = 0.72  # reference lines start at this multiple of the smallest y
_MESSAGE_HEIGHT = 2.0  # inches, of a panel that contains only a message
_REFERENCE_STOP = 1.1  # and stop at this multiple of the largest y

LIPSCHITZ = "‖D$_X$f‖$_2$"

Scale: TypeAlias = Literal["linear", "log", "symlog", "exponents"]
LineStyle: TypeAlias = Literal["", "solid", "dashed", "dotted", "dashdot"]
# int: index into the categorical palette; float: position in [0, 1] on a sequential colour map;
# str: "foreground", "muted", "grid" or "background", colours of the theme, or "white".
Colour: TypeAlias = int | float | str


@dataclass(frozen=True)
class Axis:
    """One axis of a chart.

    Attributes:
        label: Axis label.
        scale: "linear", "log", or "symlog" (linear up to `linear_below`, logarithmic beyond). With "exponents" the data
            are base-10 exponents on a linear scale, and tick `k` is labelled `10^k`.
        ticks: Tick positions; if empty, the renderer chooses them.
        tick_labels: Labels for the positions 0, 1, 2, …, for a categorical axis.
        lower_limit: Lower end of the axis; if None, the renderer chooses it.
        upper_limit: Upper end of the axis; if None, the renderer chooses it.
        integer_ticks: Whether ticks are at integers only.
        linear_below: Absolute value up to which a "symlog" scale is linear.
    """

    label: str
    scale: Scale = "linear"
    ticks: Sequence[float] = ()
    tick_labels: Sequence[str] = ()
    lower_limit: float | None = None
    upper_limit: float | None = None
    integer_ticks: bool = False
    linear_below: float = 1.0


@dataclass(frozen=True)
class Series:
    """Data points with optional intervals, a line through them, and a fitted power law.

    NaN ends a line, so that one series may have several: all paths of the tokens of a cluster.

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
        marker_size: Diameter of markers on a screen, in points; if None, that of the style.
        marker_index: Index into the renderer's list of marker shapes; if None, the index of the series.
        linestyle: Style of the line; empty for no line.
        linewidth: Width of the line in points.
        steps: Whether the line keeps the value of a point until the next point.
        opacity: From 0 to 1; if None, that of the style.
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
    marker_size: float | None = None
    marker_index: int | None = None
    linestyle: LineStyle = ""
    linewidth: float = 1.8
    steps: bool = False
    opacity: float | None = None
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
    """A shaded area between two curves over the same x; without a colour it has that of the grid."""

    x: Sequence[float]
    lower: Sequence[float]
    upper: Sequence[float]
    label: str = ""
    colour: Colour = "grid"
    opacity: float = 0.55


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

    A new kind is a frozen dataclass derived from this class, and one function in `howsmooth.report.panels.DRAWN_BY`.
    """

    title: str

    def row_height(self, width: float, height: float) -> float:
        """Return the height in inches of a panel of some width, where the picture declares a height."""
        return height


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
        x_axis, y_axis: Its axes.
        series: Data series in the order of the legend.
        bands: Shaded areas behind the series.
        annotations: Texts at data points.
        reference_slopes: Powers of x for comparison, see `reference_lines`.
        legend_title: Title of the legend.
        legend_inside: Whether the legend is inside of the panel, where it hides least, instead of below it.
        equal_scales: Whether a unit is equally long on both axes.
        notes: Lines of text below the legend.
        short_notes: What is shown in their place where they would take more than two lines.
        corner_text: Text in the upper left corner of the panel.
        message: Text shown in place of a chart without data.
        samples: What a line through medians is of, such as "3 samples at each length".
        confidence: Confidence of the intervals in percent, such as "99.9 % sure".
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
    legend_inside: bool = False
    equal_scales: bool = False
    notes: Sequence[str] = ()
    short_notes: Sequence[str] = ()
    corner_text: str = ""
    message: str = ""
    samples: str = ""
    confidence: str = ""
    caption: str = ""
    caption_without_details: str = ""

    @property
    def is_detailed(self) -> bool:
        """Whether there are few enough series of samples to draw markers, intervals and laws."""
        return sum(series.has_samples for series in self.series) <= MAX_DETAILED_SERIES

    def statistic(self, *, as_band: bool = False) -> str:
        """Return which statistics lines, bars and bands show; empty for a chart without samples.

        Args:
            as_band: Whether samples are drawn as a band instead of markers with intervals.

        Example:
            >>> Chart("", Axis(""), Axis(""), samples="3 samples at each length", confidence="99.9 %").statistic()
            'Median of 3 samples at each length; bars: 99.9 % intervals'
        """
        if not self.samples:
            return ""
        single = self.samples.startswith("1 sample ")
        line = self.samples if single else f"Median of {self.samples}"
        if not self.is_detailed or (as_band and single):
            return line
        if as_band:
            return f"{line}; band: their range"
        return f"{line}; bars: {self.confidence} intervals" if self.confidence else f"{line}; bars: intervals"

    def reference_lines(self) -> list[tuple[Series, Annotation]]:
        """Return each reference slope as a line, with its label as an annotation at the right end.

        The lines start at the smallest x, just below the lowest point. They end at the largest x, or where they exceed
        the highest point.
        """
        points = [point for series in self.series for point in zip(series.x, series.y, strict=True)]
        xs, ys = ([point[k] for point in points if all(0 < value < math.inf for value in point)] for k in (0, 1))
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
    """A matrix of values as colours, with series drawn on top of it.

    Attributes:
        title: Title above the panel.
        x_axis, y_axis: Axes of the columns and of the rows.
        columns, rows: Labels, such as the index of a head and that of a layer; not used with `extent`.
        values: Values as `values[row][column]`; None where there is no value.
        caption: Text below the panel.
        scale: Scale of the colours.
        limits: Ends of the colours; maps of a picture with the same limits and label share a colour bar. If None, the
            smallest and the largest value.
        centre: The value that has the colour of the background, between two colours; needs `limits`.
        contour: Value at which a line is drawn.
        extent: Left, right, lower and upper end of the cells on continuous axes.
        upwards: Whether the first row is the lowest.
        equal_scales: Whether a unit is equally long on both axes.
        show_values: Whether numbers are written into the cells.
        bar_label: Label of the colour bar; without one there is no bar.
        series: Drawn on top: the coordinates of a cell are its column and its row, or those of `extent`.
    """

    title: str
    x_axis: Axis
    y_axis: Axis
    columns: Sequence[int | str]
    rows: Sequence[int | str]
    values: Sequence[Sequence[float | None]]
    caption: str = "Dark is small, bright is large."
    scale: Literal["log", "linear"] = "log"
    limits: tuple[float, float] | None = None
    centre: float | None = None
    contour: float | None = None
    extent: tuple[float, float, float, float] | None = None
    upwards: bool = False
    equal_scales: bool = False
    show_values: bool = False
    bar_label: str = LIPSCHITZ
    series: Sequence[Series] = ()

    def range(self) -> tuple[float, float] | None:
        """Return the ends of the colours; None if no value can be drawn."""
        if self.limits is not None:
            return self.limits
        least = 0.0 if self.scale == "log" else -math.inf
        shown = [value for row in self.values for value in drawable(row) if value > least]
        return (min(shown), max(shown)) if shown else None

    def cells(self) -> tuple[list[float], list[float]]:
        """Return the x of the centre of each column and the y of the centre of each row."""
        width, height = len(self.values[0]), len(self.values)
        left, right, low, high = self.extent or (-0.5, width - 0.5, -0.5, height - 0.5)
        xs = [left + (j + 0.5) * (right - left) / width for j in range(width)]
        return xs, [low + (i + 0.5) * (high - low) / height for i in range(height)]


@dataclass(frozen=True)
class Tokens(Panel):
    """A text whose tokens are coloured by one number each, with the scale above it.

    Attributes:
        words: The tokens, as they are written.
        colouring: The numbers and the scale of their colours.
    """

    words: Sequence[str]
    colouring: Colouring

    LINE: ClassVar[float] = 0.24  # inches, the height of a line
    CHARACTER: ClassVar[float] = 0.602 * 9 / 72  # inches, the width of a character in a font of 9 points

    @property
    def title(self) -> str:  # type: ignore[override]
        """What the numbers are."""
        return self.colouring.title

    def places(self, width: float) -> list[tuple[float, int]]:
        """Return the left end in inches and the line of each token in a width in inches."""
        x, line, found = 0.0, 0, []
        for word in self.words:
            length = len(word) * self.CHARACTER
            if x > 0 and x + length > width:
                x, line = 0.0, line + 1
            found.append((x, line))
            x += length + self.CHARACTER
        return found

    def row_height(self, width: float, height: float) -> float:
        """Return the height of all lines, with the title and the scale."""
        return self.LINE * (self.places(width)[-1][1] + 4.2 if self.words else 4.2)


def drawable(values: Iterable[float | None], missing: float | None = math.nan, *, positive: bool = False) -> list[Any]:
    """Return values, with another in place of those that no axis can show: matplotlib computes margins around them.

    Example:
        >>> drawable([1.0, None, math.inf, 1e-300, 0.0, 10**20])
        [1.0, nan, nan, nan, 0.0, 1e+20]
    """

    def is_shown(v: float) -> bool:
        return 1e-290 <= (v if positive else abs(v)) <= 1e290 or (v == 0 and not positive)

    return [float(v) if v is not None and is_shown(v) else missing for v in values]
