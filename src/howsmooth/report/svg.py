"""Small charts as inline SVG, for notebooks: no script, and colours of the page's theme by CSS classes.

The classes are those of the report: `grid`, `muted`, `foreground` and `sharebar`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from html import escape

from howsmooth.report.chart import Axis, Chart, Series
from howsmooth.report.colours import PALETTE, SHARE_DECADES, intensities
from howsmooth.report.rows import magnitude, number

_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 12, 26, 34  # margins in pixels
_LEGEND_WIDTH = 116
_MAX_NAMED = 6
_MAX_TICKS = 6
_DASHES = {"dashed": "5 3", "dotted": "1 3", "dashdot": "5 2 1 2"}

Scale = Callable[[float], float]


def small_chart(chart: Chart, *, width: int = 520, height: int = 230) -> str:
    """Return a chart as SVG: a line for each series, through the medians of samples, and names at the right.

    Reference slopes, bands, laws and intervals are left out: `Measurements.plot` and the report draw them.

    Args:
        chart: The chart.
        width: Width in pixels.
        height: Height in pixels.

    Returns:
        The `<svg>` element; empty if there is nothing to draw.

    Example:
        >>> chart = Chart("A", Axis("n", "log"), Axis("Lip", "log"), [Series((8, 16), (1.0, 2.0), label="layer 0")])
        >>> "layer 0" in small_chart(chart) and small_chart(chart).startswith("<svg")
        True
    """
    lines = [_points(series) for series in chart.series]
    xs, ys = ([value for line in lines for value in line[i]] for i in (0, 1))
    if not xs:
        return ""
    right = width - _RIGHT - (_LEGEND_WIDTH if any(series.label for series in chart.series) else 0)
    x = _scale(chart.x_axis, xs, _LEFT, right)
    y = _scale(chart.y_axis, ys, height - _BOTTOM, _TOP)
    parts = _grid(chart, x, y, xs, ys, right, height)
    named = 0
    for index, (series, (points_x, points_y)) in enumerate(zip(chart.series, lines, strict=True)):
        colour = PALETTE[index % len(PALETTE)]
        points = [(x(a), y(b)) for a, b in zip(points_x, points_y, strict=True)]
        dash = f' stroke-dasharray="{_DASHES[series.linestyle]}"' if series.linestyle in _DASHES else ""
        drawn = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.4" fill="{colour}"/>' for a, b in points[:40]]
        if series.label and named < _MAX_NAMED:
            at = _TOP + 8 + 16 * named
            parts.append(f'<circle cx="{right + 12}" cy="{at - 4}" r="3.5" fill="{colour}"/>')
            parts.append(f'<text x="{right + 20}" y="{at}">{_typeset(series.label)}</text>')
            named += 1
    more = sum(bool(series.label) for series in chart.series) - named
    if more:
        parts.append(f'<text class="muted" x="{right + 20}" y="{_TOP + 8 + 16 * named}">and {more} more</text>')
    return _svg(parts, width, height, f"{chart.title}: {_plain(chart.y_axis.label)} against {chart.x_axis.label}")


def position_strip(
    values: Sequence[float],
    label: str,
    *,
    decades: float = SHARE_DECADES,
    as_percent: bool = False,
    width: int = 520,
    height: int = 96,
) -> str:
    """Return bars of the values by position on the logarithmic scale of the token colours, as SVG.

    Args:
        values: One value for each token.
        label: What the values are, for the accessible name.
        decades: Range of the scale below the largest value.
        as_percent: Whether values are shares.
        width: Width in pixels.
        height: Height in pixels.

    Returns:
        The `<svg>` element; empty if no value is positive.
    """
    top = max(values, default=0.0)
    if not 0 < top < math.inf:
        return ""
    bottom, right = height - 20, width - _RIGHT
    bins = max(1, min(len(values), (right - _LEFT) // 2))
    peaks = [0.0] * bins
    for index, intensity in enumerate(intensities(values, decades)):
        at = index * bins // len(values)
        peaks[at] = max(peaks[at], intensity)
    parts = []
    for part in (1.0, 0.5, 0.0):
        value = top * 10 ** (-(1 - part) * decades)
        shown = f"{number(100 * value, 2)} %" if as_percent else number(value, 2)
        y = bottom - part * (bottom - 10)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{shown}</text>')
    wide = (right - _LEFT) / bins
    for at, peak in enumerate(peaks):
        if peak > 0:
            tall = peak * (bottom - 10)
            parts.append(
                f'<rect class="sharebar" x="{_LEFT + at * wide:.1f}" y="{bottom - tall:.1f}" '
                f'width="{max(1.0, wide - 1):.1f}" height="{tall:.1f}"/>'
            )
    ends = ((0, "start", _LEFT), (len(values) - 1, "end", right)) if len(values) > 1 else ((0, "start", _LEFT),)
    parts += [f'<text x="{x}" y="{height - 5}" text-anchor="{anchor}">{i}</text>' for i, anchor, x in ends]
    parts.append(f'<text class="muted" x="{(_LEFT + right) / 2}" y="{height - 5}" text-anchor="middle">position</text>')
    return _svg(parts, width, height, f"{label} by position, log scale")


def log_mark(log_value: float, log_range: tuple[float, float], *, side: str, width: int = 180) -> str:
    """Return a line with a mark at a value on a logarithmic scale, for a cell of a table of bounds.

    Args:
        log_value: Natural logarithm of the value.
        log_range: Logarithms at the ends of the scale, the same for all rows.
        side: "lower" or "upper" for a bound, "at" for a measured value.
        width: Width in pixels.
    """
    low, high = log_range
    span = high - low or 1.0
    at = 6 + (width - 12) * min(1.0, max(0.0, (log_value - low) / span))
    arrow = {"lower": f"M{at},2 l7,5 l-7,5 z", "upper": f"M{at},2 l-7,5 l7,5 z"}.get(side)
    colour = PALETTE[0] if side == "lower" else PALETTE[1]
    mark = f'<path d="{arrow}" fill="{colour}"/>' if arrow else f'<circle class="mark" cx="{at}" cy="7" r="4"/>'
    return _svg([f'<line class="grid" x1="6" x2="{width - 6}" y1="7" y2="7"/>', mark], width, 14, magnitude(log_value))


def _points(series: Series) -> tuple[list[float], list[float]]:
    if series.has_samples:
        return series.medians()
    return list(series.x), list(series.y)


def _scale(axis: Axis, values: Sequence[float], start: float, stop: float) -> Scale:
    transform: Scale = math.log if axis.scale == "log" else float
    low, high = transform(min(values)), transform(max(values))
    pad = 0.04 * (high - low) or 0.5
    low, high = low - pad, high + pad
    return lambda value: start + (transform(value) - low) / (high - low) * (stop - start)


def _grid(
    chart: Chart, x: Scale, y: Scale, xs: Sequence[float], ys: Sequence[float], right: int, height: int
) -> list[str]:
    parts = []
    for tick in _ticks(chart.y_axis, ys):
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick:,.6g}</text>')
    for tick in _ticks(chart.x_axis, xs):
        parts.append(f'<text x="{x(tick):.1f}" y="{height - 18}" text-anchor="middle">{tick:,.6g}</text>')
    label, middle = _typeset(chart.x_axis.label), (_LEFT + right) / 2
    parts.append(f'<text class="muted" x="{middle}" y="{height - 3}" text-anchor="middle">{label}</text>')
    parts.append(f'<text class="muted" x="4" y="12">{_typeset(chart.y_axis.label)}</text>')
    return parts


def _ticks(axis: Axis, values: Sequence[float]) -> list[float]:
    """Return at most `_MAX_TICKS` ticks between the smallest and the largest value."""
    low, high = min(values), max(values)
    if axis.ticks:
        ticks = [tick for tick in axis.ticks if low <= tick <= high]
    elif axis.scale == "log" and high > 3 * low:
        digits = (1, 2, 3, 5, 7) if high < 10 * low else (1, 2, 5) if high < 100 * low else (1,)
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [tick for power in powers for digit in digits if low <= (tick := digit * 10.0**power) <= high]
    else:
        step = 10.0 ** math.floor(math.log10((high - low) / _MAX_TICKS or 1.0))
        step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (factor * step) < _MAX_TICKS)
        ticks = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    ticks = ticks or [low, high] if low < high else [low]
    return ticks[:: math.ceil(len(ticks) / _MAX_TICKS)]


_SCRIPT = re.compile(r"\$([_^])\{?([^}$]*)\}?\$")  # sub- and superscripts as charts write them


def _typeset(label: str) -> str:
    """Return a label with its sub- and superscripts as SVG text."""
    parts, end = [], 0
    for match in _SCRIPT.finditer(label):
        shift = "sub" if match[1] == "_" else "super"
        parts.append(escape(label[end : match.start()]))
        parts.append(f'<tspan baseline-shift="{shift}" font-size="70%">{escape(match[2])}</tspan>')
        end = match.end()
    return "".join(parts) + escape(label[end:])


def _plain(label: str) -> str:
    return _SCRIPT.sub(r"\2", label)


def _svg(parts: Sequence[str], width: int, height: int, label: str) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )
