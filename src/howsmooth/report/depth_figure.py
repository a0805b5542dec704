"""Real depth in one picture: norms, directions, clusters and growth, a row for each model."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from howsmooth.report.depth_table import piece
from howsmooth.report.figure import THEMES
from howsmooth.report.flow_figure import plain
from howsmooth.report.rows import model_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAP = 0.6  # how far the state after the final norm stands from the last layer
_TITLES = ("Size of tokens", "Directions", "Clusters of directions", "Growth of a perturbation")


def depth_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Four panels for each model; several pieces of text are drawn over each other."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    colours = THEMES[theme]
    models = list(dict.fromkeys(record["model"] for record in records))
    grown = any(record["own"] is not None for record in records)
    wide = 4 if grown else 3
    figure = Figure(figsize=(4.1 * wide, 0.5 + 3.6 * len(models)), dpi=140, layout="constrained",
                    facecolor=colours["paper"])
    panels = figure.subplots(len(models), wide, squeeze=False)
    for row, model in zip(panels, models, strict=True):
        runs = [list(group) for _, group in groupby((r for r in records if r["model"] == model), key=piece)]
        for index, run in enumerate(runs):
            _sizes(row[0], run, colours, named=index == 0)
            _directions(row[1], run, colours, named=index == 0)
            _clusters(row[2], run, colours, named=index == 0)
            if grown:
                _growth(row[3], run, colours, named=index == 0)
        lengths = sorted({r["n"] for run in runs for r in run})
        for panel, title in zip(row, _TITLES, strict=False):
            plain(panel, colours)
            panel.set_title(title, color=colours["ink"], fontsize=10.5, fontweight="bold", loc="left")
            panel.set_xlabel("layers passed" + (", norm" if runs[0][-1]["normed"] else ""), color=colours["ink"])
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            if panel.get_legend_handles_labels()[0]:
                panel.legend(frameon=False, labelcolor=colours["ink"], fontsize=8, handlelength=2.4)
        row[0].set_ylabel(f"{model_name(model)}, n = {', '.join(map(str, lengths))}", color=colours["ink"],
                          fontsize=11, fontweight="bold")
    return figure


def place(record: dict[str, Any]) -> float:
    """Where a record stands on the axis of depth."""
    return record["depth"] + (_GAP if record["normed"] else 0.0)


def _line(panel: Any, run: Sequence[dict], values: Sequence[float | None], style: str, colour: str, name: str | None,
          **more: Any) -> None:
    points = [(place(r), v) for r, v in zip(run, values, strict=True) if v is not None]
    if points:
        panel.plot(*zip(*points, strict=True), style, color=colour, label=name, linewidth=1.7, markersize=4, **more)


def _sizes(panel: Any, run: Sequence[dict], colours: dict, named: bool) -> None:
    blue, orange = colours["maps"][:2]
    _line(panel, run, [r["norm"] for r in run], "o-", blue, "median norm" if named else None)
    _line(panel, run, [r["largest_norm"] for r in run], ":", blue, "largest norm" if named else None)
    if run[0]["sink"] is not None:
        _line(panel, run, [r["sink_norm"] for r in run], "--", orange, "sink of attention" if named else None)
    _log(panel)


def _directions(panel: Any, run: Sequence[dict], colours: dict, named: bool) -> None:
    blue, orange, green = colours["maps"][:3]
    for key, colour, name in (("cosine", blue, "mean cosine of two tokens"), ("to_mean", orange, "distance from mean"),
                              ("effective_rank", green, "effective rank / n")):
        for suffix, style in (("", "o-"), ("_without_sink", "--")):
            values = [r[key + suffix] for r in run]
            if key == "effective_rank":
                values = [None if v is None else v / (run[0]["n"] - (suffix != "")) for v in values]
            _line(panel, run, values, style, colour, name if named and not suffix else None)
    if named and run[0]["sink"] is not None:
        panel.plot([], [], "--", color=colours["faint"], label="without the sink")
    panel.set_ylim(min(0.0, panel.get_ylim()[0]), 1.05)


def _clusters(panel: Any, run: Sequence[dict], colours: dict, named: bool) -> None:
    for index, (tol, colour) in enumerate(zip(run[0]["tolerances"], colours["maps"], strict=False)):
        _line(panel, run, [r["clusters"][index] for r in run], "o-", colour, f"closer than {tol:g}" if named else None)
    _line(panel, run, [r["distinct"] for r in run], ":", colours["faint"], "different tokens" if named else None)
    panel.set_ylim(0, max(panel.get_ylim()[1], 1.08 * run[0]["n"]))


def _growth(panel: Any, run: Sequence[dict], colours: dict, named: bool) -> None:
    blue, orange, green, pink = colours["maps"][:4]
    known = [r for r in run if r["value"] is not None]
    _line(panel, run, [r["product"] for r in run], "--", orange, "product of layers" if named else None)
    _line(panel, known, [r["value"] for r in known], "o-", blue, "σ₁ of all layers so far" if named else None)
    panel.fill_between([place(r) for r in known], [r["lower"] for r in known],
                       [min(r["upper"], 1e300) for r in known], color=blue, alpha=0.25, linewidth=0)
    _line(panel, known, [r["relative"] for r in known], "s-", green, "relative to the tokens" if named else None)
    _line(panel, run, [r["own"] for r in run], ".", pink, "each layer alone" if named else None)
    _log(panel)


def _log(panel: Any) -> None:
    """Powers of ten, or 1, 2, 5 between them where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    panel.set_yscale("log")
    low, high = panel.get_ylim()
    if high < 100 * low:
        panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.yaxis.set_minor_locator(NullLocator())
