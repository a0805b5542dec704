"""A Gaussian flow in one picture: ellipses over time with particles, and the eigenvalues of the covariance."""

from __future__ import annotations

import math
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.report.figure import THEMES
from howsmooth.report.flow_figure import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

_ELLIPSES = 6
_TOKENS = 500  # particles that are drawn
_TALL = 5.0  # an ellipse so many times the first is left out of the picture: nothing else would be seen


def gaussian_flow_figure(record: dict[str, Any], tokens: NDArray | None = None, *, title: str, theme: str = "light"
                         ) -> Figure:
    """Left two standard deviations about the mean, in the first two coordinates; right the eigenvalues of S.

    `tokens` (T, n, d) are particles at the record's first T times.
    """
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    figure = Figure(figsize=(11.0, 4.8), dpi=160, layout="constrained", facecolor=colours["paper"])
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    if record["d"] == 1:
        _draw_band(left, record, tokens, colours)
    else:
        _draw_ellipses(left, record, tokens, colours)
    _draw_eigenvalues(right, record, colours)
    figure.suptitle(title, color=colours["ink"], fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def save_gaussian_animation(path: str | Path, record: dict[str, Any], tokens: NDArray | None = None, *, title: str,
                            theme: str = "light") -> None:
    """One frame for each saved time: the ellipse and the particles inside it; in d = 1 the density's curve."""
    import numpy
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from howsmooth.report.flow_animation import check_animation_path, save_frames

    check_animation_path(str(path))
    colours = THEMES[theme]
    shown = shown_frames(record)
    means, covariances = numpy.array(record["means"]), numpy.array(record["covariances"])
    figure = Figure(figsize=(5.6, 5.2), dpi=110, layout="constrained", facecolor=colours["paper"])
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    plain(panel, colours)
    panel.set_title(textwrap.fill(title, 56), color=colours["ink"], fontsize=10.5, fontweight="bold", loc="left")
    outlines = [_outline(means[k], covariances[k]) for k in shown]
    low, high = numpy.min([o.min(0) for o in outlines], 0), numpy.max([o.max(0) for o in outlines], 0)
    margin = 0.15 * (high - low) + 1e-9
    if record["d"] > 1:  # a square, with equal scales
        margin = 0.6 * (high - low).max() - (high - low) / 2
    panel.set(xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1]))
    panel.set_xlabel("$x_1$" if record["d"] > 1 else "x", color=colours["ink"])
    panel.set_ylabel("$x_2$" if record["d"] > 1 else "density", color=colours["ink"])
    if record["d"] > 1:
        panel.set_aspect("equal", adjustable="box")
    line, = panel.plot([], [], color=colours["maps"][1], linewidth=2.2, zorder=4)
    dots = panel.scatter([], [], s=8, color=colours["maps"][0], alpha=0.5, linewidth=0)
    clock = panel.text(0.98, 0.02, "", transform=panel.transAxes, color=colours["ink"], fontsize=11, ha="right")

    def draw(frame: int) -> None:
        line.set_data(*outlines[frame].T)
        if tokens is not None and record["d"] > 1:
            dots.set_offsets(tokens[min(shown[frame], len(tokens) - 1), :_TOKENS, :2])
        clock.set_text(f"t = {record['times'][shown[frame]]:.3g}")

    save_frames(figure, draw, len(shown), path)


def shown_frames(record: dict[str, Any]) -> list[int]:
    """The saved times at which the Gaussian is still of a size that can be drawn beside the first."""
    def size(k: int) -> float:
        d = record["d"]
        return math.sqrt(max(record["covariances"][k][i][i] for i in range(d))) + max(map(abs, record["means"][k]))

    first = max(size(0), 1e-12)
    return [k for k in range(len(record["times"])) if size(k) <= _TALL * first]


def _outline(mean: NDArray, covariance: NDArray) -> NDArray:
    """Two standard deviations around the mean in the first two coordinates; the density's curve in d = 1."""
    import numpy

    if len(mean) == 1:
        spread = max(math.sqrt(covariance[0, 0]), 1e-12)
        x = numpy.linspace(-4, 4, 161)
        return numpy.stack([mean[0] + spread * x, numpy.exp(-x * x / 2) / (spread * math.sqrt(2 * math.pi))], 1)
    values, vectors = numpy.linalg.eigh(covariance[:2, :2])
    angle = numpy.linspace(0, 2 * math.pi, 121)
    circle = numpy.stack([numpy.cos(angle), numpy.sin(angle)])
    return mean[:2] + (2 * vectors * numpy.sqrt(numpy.clip(values, 0, None)) @ circle).T


def _draw_ellipses(panel: Any, record: dict[str, Any], tokens: NDArray | None, colours: dict) -> None:
    import numpy
    from matplotlib import colormaps

    frames = shown_frames(record)
    chosen = list(dict.fromkeys(frames[round((len(frames) - 1) * k / (_ELLIPSES - 1))] for k in range(_ELLIPSES)))
    means, covariances = numpy.array(record["means"]), numpy.array(record["covariances"])
    panel.plot(*means[frames][:, :2].T, color=colours["faint"], linewidth=1.2, zorder=2)
    if tokens is not None:
        for k, colour, name in ((0, colours["faint"], "first"), (min(len(tokens) - 1, frames[-1]), colours["maps"][1],
                                                                 "last")):
            panel.scatter(*tokens[k, :_TOKENS, :2].T, s=7, color=colour, alpha=0.45, linewidth=0, zorder=1,
                          label=f"{name} particles, t = {record['times'][k]:.3g}")
    for k in chosen:
        share = chosen.index(k) / max(len(chosen) - 1, 1)
        panel.plot(*_outline(means[k], covariances[k]).T, color=colormaps["viridis"](0.85 * share), linewidth=2,
                   zorder=3, label=f"t = {record['times'][k]:.3g}")
    panel.set_xlabel("$x_1$", color=colours["ink"])
    panel.set_ylabel("$x_2$   (two standard deviations)", color=colours["ink"])
    panel.set_aspect("equal", adjustable="datalim")
    plain(panel, colours)
    panel.legend(frameon=False, labelcolor=colours["ink"], fontsize=8.5, loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_band(panel: Any, record: dict[str, Any], tokens: NDArray | None, colours: dict) -> None:
    import numpy

    frames = shown_frames(record)
    times = numpy.array(record["times"])[frames]
    mean, spread = numpy.array(record["means"])[frames, 0], numpy.sqrt(numpy.array(record["covariances"])[frames, 0, 0])
    if tokens is not None:
        panel.plot(record["times"][: len(tokens)], tokens[:, :60, 0], color=colours["faint"], linewidth=0.6, alpha=0.6)
    panel.fill_between(times, mean - 2 * spread, mean + 2 * spread, color=colours["maps"][0], alpha=0.25, linewidth=0,
                       label="two standard deviations")
    panel.plot(times, mean, color=colours["maps"][0], linewidth=2, label="mean")
    panel.set_xlabel("time t", color=colours["ink"])
    panel.set_ylabel("x", color=colours["ink"])
    plain(panel, colours)
    panel.legend(frameon=False, labelcolor=colours["ink"], fontsize=9)


def _draw_eigenvalues(panel: Any, record: dict[str, Any], colours: dict) -> None:
    import numpy
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    values = numpy.linalg.eigvalsh(numpy.array(record["covariances"]))[:, ::-1]
    floor = 1e-12 * values.max()
    for index in range(min(values.shape[1], 6)):
        line = values[:, index]
        if line.max() > floor:
            panel.plot(record["times"], numpy.where(line > floor, line, numpy.nan), linewidth=2,
                       color=colours["maps"][index], label=f"$\\lambda_{{{index + 1}}}$")
    blow_up = record["blow_up"]
    if blow_up is not None:
        panel.axvline(blow_up["time"], color=colours["faint"], linewidth=1.2, linestyle="--")
        panel.annotate(f"blow-up at t = {blow_up['time']:.4g}", (blow_up["time"], 0.97), xytext=(-8, 0), ha="right",
                       va="top", textcoords="offset points", xycoords=("data", "axes fraction"), color=colours["ink"],
                       fontsize=9)
    panel.set_yscale("log")
    few = values.max() < 100 * max(float(numpy.where(values > floor, values, numpy.inf).min()), floor)
    panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if few else (1,)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_xlabel("time t", color=colours["ink"])
    panel.set_ylabel("eigenvalues of the covariance", color=colours["ink"])
    plain(panel, colours)
    panel.legend(frameon=False, labelcolor=colours["ink"], fontsize=9)
