"""Legends: below a panel, inside of it, or one for all panels of a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.records.arrays import evenly_spaced
from howsmooth.report.chart import Chart
from howsmooth.report.style import Style, Theme, legend_options
from howsmooth.report.texts import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
