"""The figures of the documentation: each script writes into docs/images."""

from __future__ import annotations

from collections.abc import Iterable

from matplotlib.axes import Axes

from howsmooth.report.chart import Axis
from howsmooth.report.style import Theme, apply_theme
from howsmooth.report.texts import set_ticks


def format_length_axes(panel: Axes, lengths: Iterable[int], colours: Theme) -> None:
    """Set the theme, ticks at the lengths, and those of a logarithmic y-axis."""
    panel.set_xlabel("length n (tokens)")
    apply_theme(panel, colours)
    set_ticks(panel.xaxis, Axis("", ticks=sorted(set(lengths))))
    set_ticks(panel.yaxis, Axis("", "log"))
