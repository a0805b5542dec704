"""Texts of a figure: lines that fit, powers and formulas as matplotlib writes them, ticks of axes, legends."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from howsmooth.records.arrays import evenly_spaced
from howsmooth.report.style import Style, Theme, legend_options

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis, YAxis
    from matplotlib.figure import Figure

    from howsmooth.report.chart import Axis, Chart


_MAX_NOTE_LINES = 2  # below a panel
_MAX_LINES = 3  # of a title or a note
_MAX_LABEL_LINES, _LABEL_WIDTH = 2, 44  # of a legend entry: longer ones are broken, and end in "…"
_FORMULA = re.compile(r"(\$[^$]*[_^\\{][^$]*\$)")


def characters(width: float, size: float) -> int:
    """Return how many characters of a font size, in points, fit into a width in inches."""
    return max(20, round(width * 72 / (0.62 * size)))


def wrap(text: str, width: float, size: float, most: int = _MAX_LINES) -> str:
    """Break the lines of a text so that they fit into a width in inches, and typeset it.

    Args:
        text: The text.
        width: The width in inches.
        size: Font size in points.
        most: Largest number of lines; a longer text ends in "…".
    """
    room = characters(width, size)
    lines = [part for line in text.split("\n") for part in textwrap.wrap(line, room) or [""]]
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: room - 1] + "…"]
    return "\n".join(map(typeset, lines))


def typeset(text: str) -> str:
    r"""Write powers and roots in the notation of matplotlib; a dollar sign that starts no formula stays one.

    Names of models and files may have any characters, which must neither fail nor become a formula.

    Example:
        >>> typeset("n^0.25"), typeset("$5 and $6"), typeset("$x^$")
        ('n$^{0.25}$', '\\$5 and \\$6', '\\$x^\\$')
    """
    text = re.sub(r"(?<=\w)\^(-?[\d.]+\d|\d)", r"$^{\1}$", text).replace("√n", "$\\sqrt{n}$")
    if "$" not in text:
        return text
    return "".join(
        part if index % 2 and _is_formula(part) else re.sub(r"\\?\$", r"\\$", part)
        for index, part in enumerate(_FORMULA.split(text))
    )


@lru_cache(maxsize=1024)
def _is_formula(text: str) -> bool:
    from matplotlib.mathtext import MathTextParser

    try:
        MathTextParser("path").parse(text)
    except ValueError:
        return False
    return True


def notes_of(chart: Chart, width: float, size: float, *, as_band: bool) -> list[str]:
    """Return the lines below a chart, broken to a width in inches; the short ones if the notes take more than two."""
    found = [wrap(note, width, size) for note in chart.notes]
    if chart.short_notes and sum(note.count("\n") + 1 for note in found) > _MAX_NOTE_LINES:
        found = [wrap(note, width, size) for note in chart.short_notes]
    statistic = chart.statistic(as_band=as_band)
    return [*found, *([wrap(statistic, width, size)] if statistic else [])]


def fit_label(label: str, length: float, size: float) -> str:
    """Break the label of an axis at the double space nearest its middle if it is longer than a length in inches."""

    def shown(text: str) -> int:
        return len(re.sub(r"\$[_^]\{?([^$}]*)\}?\$", r"\1", text))

    parts = label.split("  ")
    if shown(label) <= characters(length, size):
        return typeset(label)
    if len(parts) == 1:
        return wrap(label, 1.4 * length, size, 1)
    broken = ["  ".join(parts[:k]) + "\n" + "  ".join(parts[k:]) for k in range(1, len(parts))]
    return wrap(min(broken, key=lambda text: max(map(shown, text.split("\n")))), 1.5 * length, size, 2)


def shorten(text: str, room: int = _LABEL_WIDTH) -> str:
    """Typeset a text; one that is much longer than some characters is broken into at most two lines.

    Example:
        >>> print(shorten("a " * 40, 20))
        a a a a a a a a a a
        a a a a a a a a a a…
    """
    lines = [
        part for line in text.split("\n") for part in (textwrap.wrap(line, room) if len(line) > 1.5 * room else [line])
    ]
    most = _MAX_LABEL_LINES + text.count("\n")
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: room - 1] + "…"]
    return "\n".join(map(typeset, lines))


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


NOTES_BELOW = 3.4  # where notes begin below a panel, in heights of its axis label
_MAX_ENTRIES = 12  # of the legend of a panel, which would otherwise be larger than the panel


def draw_legend(panel: Axes, chart: Chart, colours: Theme, style: Style, note_lines: int) -> None:
    """Draw the legend of a chart below its notes, or inside of the panel.

    Args:
        panel: The panel, in which the chart is drawn.
        chart: The chart.
        colours: Colours, a value of `THEMES`.
        style: Sizes.
        note_lines: Number of lines of the notes.
    """
    entries = _entries([panel])
    if not entries:
        return
    options: dict[str, Any] = {"loc": "best"}
    if not chart.legend_inside:
        centred = style.legend_columns > 1
        below = (NOTES_BELOW if centred else 3.2) * style.label_size / style.legend_size + 1.3 * note_lines
        options = {
            "handlelength": 2.2,
            "ncols": min(style.legend_columns, 2),
            "loc": "upper center" if centred else "upper left",
            "bbox_to_anchor": (0.5 if centred else -0.08, 0.0),
            "borderaxespad": below,
            "labelspacing": 0.35,
        }
    total = len(panel.get_legend_handles_labels()[1])
    title = chart.legend_title or (f"{len(entries)} of {total} named" if total > len(entries) >= _MAX_ENTRIES else "")
    legend = panel.legend(
        entries.values(), entries.keys(), title=shorten(title) or None, **options, **legend_options(colours, style)
    )
    _identify(legend, list(entries.values()))
    legend.get_title().set(color=colours["muted"], fontsize=style.legend_size)


def draw_shared_legend(figure: Any, panels: Sequence[Axes], columns: int, colours: Theme, style: Style) -> None:
    """Draw one legend below all panels; equal entries of several panels appear once."""
    entries = _entries(panels, min(2, len(panels)) * _MAX_ENTRIES)
    if entries:
        legend = figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=min(columns, 3),
            **legend_options(colours, style),
        )
        _identify(legend, list(entries.values()))


def _entries(panels: Sequence[Axes], most: int = _MAX_ENTRIES) -> dict[str, Any]:
    """Return the handle of each label in the legends of panels, at most some, at equal steps."""
    found: dict[str, Any] = {}
    for panel in panels:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if len(found) <= most:
        return found
    labels = list(found)
    return {labels[i]: found[labels[i]] for i in evenly_spaced(len(labels), most)}


def _identify(legend: Any, handles: Sequence[Any]) -> None:
    """Give the entries of a legend the ids of their series."""
    for handle, key, text in zip(handles, legend.legend_handles, legend.get_texts(), strict=True):
        if gid := (handle.get_gid() or "").removesuffix("-key"):
            if handle.get_gid() != gid:
                handle.set_gid(None)  # an empty line, for the legend alone
            key.set_gid(f"{gid}-key")
            text.set_gid(f"{gid}-legend")
