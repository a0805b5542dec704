"""Ticks of axes: where they are, how they are written, and labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.report.texts import shorten

if TYPE_CHECKING:
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

    from howsmooth.report.chart import Axis

_DENSITIES = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0))  # leading digits, from few to many
_FEWEST, _MOST = 3, 8  # ticks of a logarithmic axis
_LABEL_GAP = 0.35  # smallest gap between two labels on an x-axis, in heights of a label


def tick_text(value: float) -> str:
    r"""Write the label of a tick: a decimal, or a power of ten if that is shorter.

    Example:
        >>> tick_text(16), tick_text(0.05), tick_text(20000.0), tick_text(1e6), tick_text(2e7), tick_text(-3.0)
        ('16', '0.05', '20,000', '$10^{6}$', '$2\\cdot10^{7}$', '−3')
    """
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        decimal = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
        return decimal.replace("-", "−")
    power = math.floor(math.log10(abs(value)) + 1e-9)
    digits = value / 10**power
    leading = "" if math.isclose(digits, 1) else f"{digits:.3g}\\cdot"
    return f"${leading}10^{{{power}}}$"


def log_ticks(low: float, high: float) -> list[float]:
    """Return ticks for a logarithmic axis from low to high: three to eight at round numbers.

    Over many decades, only every k-th power of ten is taken. Where the ends are so close that there are no three
    round numbers in between, ticks are evenly spaced.

    Example:
        >>> log_ticks(3.0, 40.0), log_ticks(1.0, 1e4), log_ticks(1040.0, 1410.0)
        ([3.0, 10.0, 30.0], [1.0, 10.0, 100.0, 1000.0, 10000.0], [1100.0, 1200.0, 1300.0, 1400.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    slack = 1e-9  # a limit that is a tick itself may be rounded
    for digits in _DENSITIES:
        ticks = [float(f"{digit}e{power}") for power in powers for digit in digits]
        ticks = [tick for tick in ticks if low * (1 - slack) <= tick <= high * (1 + slack)]
        if len(ticks) > _MOST:
            step = math.ceil(len(ticks) / _MOST)
            return ticks[::step]
        if len(ticks) >= _FEWEST:
            return ticks
    from matplotlib.ticker import MaxNLocator

    return [float(tick) for tick in MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(low, high) if low <= tick <= high]


def length_ticks(lengths: Sequence[float], at_most: int = 9) -> list[float]:
    """Return the lengths that get a tick: all, or the powers of two among them, or some at equal steps.

    Example:
        >>> length_ticks([8, 16, 20, 32]), length_ticks(list(range(1, 65)))
        ([8, 16, 20, 32], [1, 2, 4, 8, 16, 32, 64])
    """
    ticks = list(lengths)
    if len(ticks) > at_most:
        powers = [n for n in ticks if n > 0 and math.log2(n).is_integer()]
        ticks = powers if len(powers) > 2 else ticks
    return ticks[:: math.ceil(len(ticks) / at_most)] if ticks else []


def set_log_ticks(axis: XAxis | YAxis, low: float, high: float) -> None:
    """Set the ticks of a logarithmic axis that shows the values from low to high."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
    axis.set_ticks(log_ticks(low, high))
    axis.set_minor_locator(NullLocator())


def set_ticks(axis: Any, declared: Axis) -> None:
    """Set the ticks of an axis whose limits are known, as it declares them."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

    if declared.tick_labels:
        axis.set_ticks(range(len(declared.tick_labels)), [shorten(label) for label in declared.tick_labels])
    elif declared.scale == "exponents":
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axis.set_major_formatter(FuncFormatter(lambda power, _: "1" if abs(power) < 1e-9 else f"$10^{{{power:.0f}}}$"))
    elif declared.ticks:
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))
        axis.set_ticks(length_ticks(declared.ticks))
    elif declared.scale == "log":
        set_log_ticks(axis, *axis.get_view_interval())
    else:
        if declared.scale == "linear":
            axis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10], integer=declared.integer_ticks))
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(round(value, 12))))
    axis.set_minor_locator(NullLocator())


def separate_tick_labels(figure: Figure) -> Figure:
    """Remove ticks whose labels would overlap the label before them, and return the figure.

    The figure is laid out first, and the boxes of the labels are measured.
    """
    figure.draw_without_rendering()
    for panel in figure.axes:
        for axis in (panel.xaxis, panel.yaxis):
            labels = visible_labels(axis)
            kept: list[tuple[float, str, Any]] = []
            for label in labels:
                if not kept or not overlap(kept[-1][2], label[2], axis.axis_name):
                    kept.append(label)
            if len(kept) < len(labels):
                axis.set_ticks([position for position, _, _ in kept], [text for _, text, _ in kept])
    return figure


def visible_labels(axis: XAxis | YAxis) -> list[tuple[float, str, Any]]:
    """Return position, text and box of each visible tick label of an axis that has been drawn, in order."""
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    labels = [
        (float(tick.get_loc()), tick.label1.get_text(), tick.label1.get_window_extent())
        for tick in axis.get_major_ticks()
        if tick.label1.get_visible() and low - slack <= tick.get_loc() <= high + slack
    ]
    along = "x0" if axis.axis_name == "x" else "y0"
    return sorted((label for label in labels if label[1]), key=lambda label: getattr(label[2], along))


def overlap(first: Any, second: Any, name: str) -> bool:
    """Return whether the box of a label overlaps or almost touches that of the label before it.

    Args:
        first: Box of the label that comes first along the axis.
        second: Box of the next label.
        name: "x" or "y", the axis that they belong to.
    """
    if name == "y":
        return bool(second.y0 < first.y1)
    return bool(second.x0 < first.x1 + _LABEL_GAP * first.height)
