"""Densities along a flow: curves and a map of time against place in d = 1, heat maps in d = 2; and rates in n."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.report.figure import THEMES
from howsmooth.report.flow_figure import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_CURVES, _MAPS = 6, 4
_TOKENS = 400  # particles that are drawn


def density_figure(record: dict[str, Any], values: NDArray, *, tokens: NDArray | None = None, title: str,
                   theme: str = "light") -> Figure:
    """values (T, *cells): mass per volume at the record's times; `tokens` (T, n, d) are particles at the same times."""
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    figure = Figure(figsize=(11.0, 4.6 if record["d"] == 1 else 3.4), dpi=160, layout="constrained",
                    facecolor=colours["paper"])
    (_draw_line if record["d"] == 1 else _draw_plane)(figure, record, values, tokens, colours)
    figure.suptitle(title, color=colours["ink"], fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def rate_figure(records: Sequence[dict[str, Any]], *, title: str, theme: str = "light") -> Figure:
    """Distances of particles to their limit against n: runs (faint), their geometric means, the fitted law, n^−1/2."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator

    colours = THEMES[theme]
    figure = Figure(figsize=(7.0, 4.9), dpi=160, layout="constrained", facecolor=colours["paper"])
    panel = figure.subplots()
    panel.set_xscale("log")
    panel.set_yscale("log")
    lowest = min(run["distance"] for record in records for run in record["runs"])
    for record, colour, marker in zip(records, colours["maps"], "os^DvP", strict=False):
        ns = [run["n"] for run in record["runs"]]
        rate, ends = record["rate"], [min(ns), max(ns)]
        panel.plot(ns, [run["distance"] for run in record["runs"]], marker, color=colour, markersize=4, alpha=0.25,
                   markeredgewidth=0)
        groups = {n: [run["distance"] for run in record["runs"] if run["n"] == n] for n in sorted(set(ns))}
        panel.plot(list(groups), [math.exp(sum(map(math.log, g)) / len(g)) for g in groups.values()], marker,
                   color=colour, markersize=6.5, markeredgewidth=0)
        panel.plot(ends, [rate["constant"] * n ** rate["exponent"] for n in ends], color=colour, linewidth=1.8,
                   label=f"{record.get('label') or record['distance']}:  n$^{{{rate['exponent']:.2f}}}$")
    ends = [min(run["n"] for record in records for run in record["runs"]),
            max(run["n"] for record in records for run in record["runs"])]
    base = 0.6 * lowest * (ends[1] / ends[0]) ** 0.5
    panel.plot(ends, [base, base * (ends[0] / ends[1]) ** 0.5], color=colours["faint"], linewidth=1.2, dashes=(6, 3),
               label="n$^{-1/2}$, to compare")
    panel.set_xticks(sorted({run["n"] for record in records for run in record["runs"]}))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.minorticks_off()
    panel.set_xlabel("number n of particles", color=colours["ink"])
    panel.set_ylabel("distance to the limit", color=colours["ink"])
    plain(panel, colours)
    panel.legend(frameon=False, labelcolor=colours["ink"], fontsize=9, ncols=2 if len(records) > 1 else 1,
                 loc="upper center", bbox_to_anchor=(0.45, -0.14))
    panel.set_title(title, color=colours["ink"], fontsize=12, fontweight="bold", loc="left")
    return figure


def save_density_animation(path: str | Path, record: dict[str, Any], values: NDArray, *, tokens: NDArray | None = None,
                           title: str, theme: str = "light") -> None:
    """One frame for each saved time."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from howsmooth.report.flow_animation import check_animation_path, save_frames

    check_animation_path(str(path))
    colours = THEMES[theme]
    figure = Figure(figsize=(5.6, 5.2), dpi=110, layout="constrained", facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    panel.set_title(textwrap.fill(title, 56), color=colours["ink"], fontsize=10.5, fontweight="bold", loc="left")
    clock = panel.text(0.98, 0.02, "", transform=panel.transAxes, ha="right", fontsize=11,
                       color=colours["ink"] if record["d"] == 1 else "white")
    dots = None
    if record["d"] == 1:
        x = _centres(record, 0)
        line, = panel.plot(x, values[0], color=colours["maps"][0], linewidth=2)
        panel.set(ylim=(0, 1.05 * values.max()), xlim=_ends(record, values, 0))
        panel.set_xlabel("x", color=colours["ink"])
        panel.set_ylabel("density", color=colours["ink"])
        plain(panel, colours)

        def show(frame: int) -> None:
            line.set_ydata(values[frame])
    else:
        image = _heat(panel, record, values[0], values.max(), colours)
        panel.set(xlim=_ends(record, values, 0), ylim=_ends(record, values, 1))
        if tokens is not None:
            dots = panel.scatter(*tokens[0, :_TOKENS].T, s=4, color="white", alpha=0.7, linewidth=0)

        def show(frame: int) -> None:
            image.set_data(values[frame].T)

    def draw(frame: int) -> None:
        show(frame)
        if dots is not None:
            dots.set_offsets(tokens[frame, :_TOKENS])
        clock.set_text(f"t = {record['times'][frame]:.3g}")

    save_frames(figure, draw, len(values), path)


def _draw_line(figure: Figure, record: dict[str, Any], values: NDArray, tokens: NDArray | None, colours: dict) -> None:
    import numpy
    from matplotlib import colormaps

    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    x, times = _centres(record, 0), record["times"]
    for share in range(_CURVES):
        k = round((len(times) - 1) * share / (_CURVES - 1))
        colour = colormaps["viridis"](0.85 * share / (_CURVES - 1))
        left.plot(x, values[k], color=colour, linewidth=1.8, label=f"t = {times[k]:.3g}")
        if tokens is not None and share == _CURVES - 1:
            counts, edges = numpy.histogram(tokens[k, :, 0], bins=40, density=True)
            left.stairs(counts, edges, fill=True, color=colour, alpha=0.25, label=f"{tokens.shape[1]} particles")
    left.set_xlabel("x", color=colours["ink"])
    left.set_ylabel("density", color=colours["ink"])
    left.set_ylim(bottom=0)
    left.set_xlim(*_ends(record, values, 0))
    plain(left, colours)
    left.legend(frameon=False, labelcolor=colours["ink"], fontsize=9)
    image = right.imshow(values.T, origin="lower", aspect="auto", cmap="viridis",
                         extent=(times[0], times[-1], record["low"][0], record["high"][0]),
                         vmax=numpy.quantile(values, 0.995))
    if tokens is not None:
        right.plot(times, tokens[:, :40, 0], color="white", linewidth=0.5, alpha=0.7)
    right.set_ylim(*_ends(record, values, 0))
    right.set_xlabel("time t", color=colours["ink"])
    right.set_ylabel("x", color=colours["ink"])
    right.tick_params(colors=colours["ink"], labelsize=9)
    bar = figure.colorbar(image, ax=right, label="density")
    bar.ax.tick_params(colors=colours["ink"], labelsize=9)
    bar.ax.yaxis.label.set_color(colours["ink"])


def _draw_plane(figure: Figure, record: dict[str, Any], values: NDArray, tokens: NDArray | None, colours: dict) -> None:
    panels = figure.subplots(1, _MAPS, sharex=True, sharey=True)
    for share, panel in enumerate(panels):
        k = round((len(values) - 1) * share / (_MAPS - 1))
        _heat(panel, record, values[k], values[k].max(), colours)
        if tokens is not None:
            panel.scatter(*tokens[k, :_TOKENS].T, s=2.5, color="white", alpha=0.7, linewidth=0)
        panel.set_title(f"t = {record['times'][k]:.3g}", color=colours["ink"], fontsize=10)
        panel.set_ylabel("y" if share == 0 else "", color=colours["ink"])
        panel.set(xlim=_ends(record, values, 0), ylim=_ends(record, values, 1))


def _heat(panel: Any, record: dict[str, Any], values: NDArray, top: float, colours: dict) -> Any:
    (x0, y0), (x1, y1) = record["low"], record["high"]
    image = panel.imshow(values.T, origin="lower", cmap="viridis", extent=(x0, x1, y0, y1), vmin=0, vmax=top)
    panel.set_xlabel("x", color=colours["ink"])
    panel.set_ylabel("y", color=colours["ink"])
    panel.tick_params(colors=colours["ink"], labelsize=9)
    return image


def _ends(record: dict[str, Any], values: NDArray, axis: int) -> tuple[float, float]:
    """Where along an axis there is anything to see; for two axes of one length, so that maps stay square."""
    import numpy

    x, spans = [_centres(record, k) for k in range(record["d"])], []
    for k in range(record["d"]):
        others = tuple(j for j in range(values.ndim) if j != k + 1)
        seen = x[k][values.max(others) > 1e-3 * values.max()]
        spans.append((seen.min(), seen.max()))
    half = 0.55 * max(high - low for low, high in spans)
    middle = numpy.mean(spans[axis])
    return max(middle - half, record["low"][axis]), min(middle + half, record["high"][axis])


def _centres(record: dict[str, Any], axis: int) -> NDArray:
    import numpy

    edges = numpy.linspace(record["low"][axis], record["high"][axis], record["cells"][axis] + 1)
    return (edges[1:] + edges[:-1]) / 2
