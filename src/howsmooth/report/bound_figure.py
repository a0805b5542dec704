"""Bounds against n: the measured constant with its interval, and every bound that fits on the scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.report.bound_rows import BoundRow, bound_rows, magnitude
from howsmooth.report.figure import THEMES, dress
from howsmooth.report.rows import map_name, model_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_PANELS = 12
_IN_SIGHT = math.log(1e5)  # times the measured constant: a bound further up is named beside the panel, not drawn
_LINES = ("-", "--", ":", "-.")


def check_panels(maps: int) -> None:
    """Refuse a figure with more panels than can be read."""
    if maps > _MOST_PANELS:
        raise InputError(f"expected at most {_MOST_PANELS} maps in one figure, got {maps}; choose some with "
                         "--layers or --heads")


def bounds_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """One panel per map of one model; upper bounds above the measured points, lower bounds beneath."""
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    maps = bound_rows(records)
    check_panels(len(maps))
    columns = min(3, len(maps))
    lines = math.ceil(len(maps) / columns)
    figure = Figure(figsize=(max(6.4, 4.6 * columns), 4.2 * lines + 1.6), dpi=160, layout="constrained",
                    facecolor=colours["paper"])
    panels = figure.subplots(lines, columns, squeeze=False, sharey=True).flatten()
    names = list(dict.fromkeys(row.bound for rows in maps.values() for row in rows if _drawn(row)))
    # Neighbours differ in colour and in dashes: some bounds coincide.
    palette = colours["maps"]
    styles = {name: (palette[i % len(palette)], _LINES[i % len(_LINES)]) for i, name in enumerate(names)}
    for panel, (key, rows) in zip(panels, maps.items(), strict=False):
        _draw(panel, rows, styles, colours)
        panel.set_title(map_name(*key), color=colours["ink"], fontsize=11, fontweight="bold", loc="left")
    for panel in panels[len(maps):]:
        panel.set_visible(False)
    handles = {label: handle for panel in panels[:len(maps)]
               for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(columns, 3), frameon=False,
                  labelcolor=colours["ink"], fontsize=9)
    figure.suptitle(f"{model_name(records[0]['model'])}: bounds and the measured constant", color=colours["ink"],
                    fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def _drawn(row: BoundRow) -> bool:
    return all(abs(cell["log_ratio"]) < _IN_SIGHT for cell in row.cells.values())


def _extreme(rows: list[BoundRow], lengths: list[int], side: str, which: Any) -> list[float] | None:
    """The sharpest bound of one side on the whole ball at each length; None where there is none in sight."""
    chosen = [row for row in rows if row.side == side and row.holds == "on B_R^n" and _drawn(row)]
    if not all(any(n in row.cells for row in chosen) for n in lengths):
        return None
    return [math.exp(which(row.cells[n]["log_value"] for row in chosen if n in row.cells)) for n in lengths]


def _draw(panel: Any, rows: list[BoundRow], styles: dict, colours: dict) -> None:
    cells = {n: cell for row in rows for n, cell in row.cells.items()}
    lengths = sorted(cells)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    measured = [cells[n]["measured"] for n in lengths]
    values = [m["value"] for m in measured]
    ends = ([m["value"] - m["lower"] for m in measured],
            [max(0.0, (m["upper"] if m["upper"] is not None and m["upper"] < 1e300 else m["value"]) - m["value"])
             for m in measured])
    panel.errorbar(lengths, values, yerr=ends, fmt="o-", color=colours["ink"], markersize=5, linewidth=1.8, capsize=2,
                   zorder=4, label="measured on the text")
    low = _extreme(rows, lengths, "lower", max)
    high = _extreme(rows, lengths, "upper", min)
    if low and high:
        panel.fill_between(lengths, low, high, color=colours["grid"], alpha=0.55, linewidth=0, zorder=0,
                           label="the constant on B_R^n lies here")
    away = []
    for row in rows:
        if not _drawn(row):
            away.append(row)
            continue
        colour, line = styles[row.bound]
        at = sorted(row.cells)
        panel.plot(at, [math.exp(row.cells[n]["log_value"]) for n in at], line, color=colour, linewidth=1.6,
                   marker="_" if len(lengths) == 1 else None, markersize=14, markeredgewidth=2,
                   label=f"{'≥' if row.side == 'lower' else '≤'} {row.bound}, {row.holds}")
    if away:
        told = "\n".join(f"{row.bound} {magnitude(row.cells[lengths[-1]]['log_value'])}" for row in away)
        panel.annotate(f"off the scale, at n = {lengths[-1]}:\n{told}", (0, -0.2), xycoords="axes fraction",
                       va="top", fontsize=7.5, color=colours["faint"], annotation_clip=False)
    dress(panel, list(cells.values()), colours)
    if len(lengths) == 1:
        panel.set_xlim(lengths[0] / 2, lengths[0] * 2)
