"""The growth plot: Lip against n, both on log scales, with the fitted laws and the theory's slopes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.report.rows import map_name, model_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from howsmooth.lipschitz import Growth

MARKERS = ("o", "s", "^", "D", "v", "P")
_LEGEND_LIMIT = 12
# Okabe and Ito's palette without its yellow (too faint on white) and its black (invisible on a dark page).
THEMES = {
    "light": {
        "paper": "#ffffff",
        "ink": "#1f2328",
        "faint": "#8b949e",
        "grid": "#e4e7eb",
        "maps": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"),
    },
    "dark": {
        "paper": "#14181d",
        "ink": "#e3e7ec",
        "faint": "#7d8590",
        "grid": "#2a3038",
        "maps": ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#0072B2"),
    },
}


def check_plot_path(path: str, option: str = "--plot") -> None:
    """Refuse a plot that could not be drawn later: matplotlib missing, or a file type it cannot write."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
    except ImportError:
        raise InputError(
            f"expected matplotlib for {option}, got none installed; pip install 'howsmooth[plot]'"
        ) from None
    if Path(path).suffix.lstrip(".").lower() not in FigureCanvasAgg.get_supported_filetypes():
        raise InputError(f"expected a plot file ending in .png, .svg or .pdf for {option}, got {path!r}")


def growth_figure(
    records: Sequence[dict[str, Any]], growth: dict[tuple, Growth], *, theme: str = "light"
) -> Figure:
    """One panel per model; a point per sample with its interval, a line per fitted law."""
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    models = list(dict.fromkeys(record["model"] for record in records))
    maps = max(len({(r["layer"], r["head"]) for r in records if r["model"] == model}) for model in models)
    legend_lines = (min(maps, _LEGEND_LIMIT) + 1) // 2
    figure = Figure(
        figsize=(max(6.4, 5.4 * len(models)), 4.6 + 0.22 * legend_lines),
        dpi=160,
        layout="constrained",
        facecolor=colours["paper"],
    )
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for panel, model in zip(panels, models, strict=True):
        chosen = [record for record in records if record["model"] == model]
        _draw_panel(panel, chosen, {key[1:]: fit for key, fit in growth.items() if key[0] == model}, colours)
        panel.set_title(model_name(model), color=colours["ink"], fontsize=13, fontweight="bold", loc="left")
    panels[0].set_ylabel("local Lipschitz constant  ‖D$_X$f‖$_2$", color=colours["ink"], fontsize=11)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    figure.savefig(path, facecolor=figure.get_facecolor())


def _draw_panel(
    panel: Any, records: Sequence[dict[str, Any]], growth: dict[tuple, Growth], colours: dict
) -> None:
    positive = [record for record in records if record["value"] > 0]
    series = list(dict.fromkeys((record["layer"], record["head"]) for record in positive))
    series.sort(key=lambda key: (key[0], -1 if key[1] is None else key[1]))
    listed = set(_spread(series, _LEGEND_LIMIT))
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for index, key in enumerate(series):
        points = [record for record in positive if (record["layer"], record["head"]) == key]
        _draw_series(
            panel,
            points,
            growth.get(key),
            _style(index, len(series), colours["maps"]),
            map_name(*key),
            key in listed,
        )
    if positive:
        _draw_guides(panel, positive, colours)
    dress(panel, positive, colours)
    if listed:
        shown = None if len(listed) == len(series) else f"{len(listed)} of {len(series)} maps named"
        legend = panel.legend(
            title=shown,
            frameon=False,
            labelcolor=colours["ink"],
            fontsize=9.5,
            handlelength=2.2,
            ncols=2,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.13),
        )
        legend.get_title().set(color=colours["faint"], fontsize=9)


def _draw_series(panel: Any, points: list, fit: Growth | None, style: dict, name: str, listed: bool) -> None:
    lengths = [record["n"] for record in points]
    values = [record["value"] for record in points]
    below = [record["value"] - min(record["lower"], record["value"]) for record in points]
    # An upper end that is not there has no bar but a triangle: the point is a lower bound alone.
    ends = [record["upper"] if record["upper"] is not None and record["upper"] < 1e300 else None for record in points]
    above = [0 if end is None else max(end - value, 0) for end, value in zip(ends, values, strict=True)]
    alone = [(n, value) for n, value, end in zip(lengths, values, ends, strict=True) if end is None]
    panel.plot(*zip(*alone, strict=True) if alone else ((), ()), "^", color=style["colour"], markersize=10,
               markerfacecolor="none", zorder=3, label="lower bound only" if alone and listed else None)
    panel.errorbar(
        lengths,
        values,
        yerr=(below, above),
        fmt=style["marker"],
        color=style["colour"],
        markersize=5.5,
        markeredgewidth=0,
        alpha=0.85,
        elinewidth=1,
        capsize=2,
        zorder=3,
    )
    ends = [] if fit is None else [min(lengths), max(lengths)]
    panel.plot(
        ends, [fit.constant * n**fit.exponent for n in ends], color=style["colour"], linewidth=1.8, zorder=2
    )
    if listed:
        # An empty line carries the legend entry: the marker of the points on the line of the fit.
        label = name if fit is None else f"{name}:  n$^{{{fit.exponent:.2f}}}$"
        panel.plot(
            [],
            [],
            color=style["colour"],
            marker=style["marker"],
            markersize=5.5,
            markeredgewidth=0,
            linewidth=0 if fit is None else 1.8,
            label=label,
        )


def _draw_guides(panel: Any, records: Sequence[dict[str, Any]], colours: dict) -> None:
    """Two slopes to compare with, from a corner below the data: n^1/2 (the worst case at a fixed radius) and n^1/4."""
    first, last = min(record["n"] for record in records), max(record["n"] for record in records)
    if first == last:
        return
    base = 0.72 * min(record["value"] for record in records)
    for power, dashes, label in ((0.5, (6, 3), "$\\sqrt{n}$"), (0.25, (2, 2), "n$^{1/4}$")):
        end = base * (last / first) ** power
        panel.plot([first, last], [base, end], color=colours["faint"], linewidth=1.2, dashes=dashes, zorder=1)
        panel.annotate(
            label,
            (last, end),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colours["faint"],
            fontsize=10,
            annotation_clip=False,
        )


def dress(panel: Any, records: Sequence[dict[str, Any]], colours: dict) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    panel.set_facecolor(colours["paper"])
    panel.set_xlabel("length n (tokens)", color=colours["ink"], fontsize=11)
    panel.set_xticks(sorted({record["n"] for record in records}))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.minorticks_off()
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.tick_params(colors=colours["ink"], labelsize=10, length=0)
    panel.grid(True, color=colours["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for side in ("top", "right", "left", "bottom"):
        panel.spines[side].set_visible(False)


def _style(index: int, count: int, palette: tuple[str, ...]) -> dict[str, Any]:
    """A few maps get colours that everyone can tell apart, many get a scale that is ordered for everyone."""
    if count <= len(palette):
        return {"colour": palette[index], "marker": MARKERS[index]}
    from matplotlib import colormaps

    return {"colour": colormaps["viridis"](0.1 + 0.8 * index / (count - 1)), "marker": "o"}


def _spread(items: list, limit: int) -> list:
    """At most `limit` of the items, evenly spread, the first and the last among them."""
    if len(items) <= limit:
        return items
    return [items[round(index * (len(items) - 1) / (limit - 1))] for index in range(limit)]
