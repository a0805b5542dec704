"""A flow in one picture: where the tokens go, and what the instruments see along depth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.report.figure import THEMES

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

MANY = 400  # tokens whose paths are drawn; of more every so-manyth
_WIDE = 40.0  # a spread so many times that of the start is drawn on a scale that is linear only near 0
COUNTS = (("clusters", "clusters", "-"), ("vertices", "hull vertices", "--"), ("hyperplanes", "hyperplanes", "-"),
          ("leading_clusters", "leading clusters", "-"), ("rank", "rank of P", ":"))
SIZES = (("diameter", "diameter", "-"), ("w2_to_last", "W₂ to the last depth", "--"),
         ("undecided", "distance of P from 0/1", ":"), ("local", "local Lipschitz constant of Γ", "-."))
SMALLEST = 1e-12  # of a size that is drawn: below, rounding is all there is


def flow_figure(records: Sequence[dict[str, Any]], paths: NDArray, names: Sequence[str], labels: Sequence[int], *,
                title: str, theme: str = "light") -> Figure:
    """Paths (T, n, 1 or 2) of the tokens, coloured by the cluster they end in, beside counts and sizes along depth."""
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    figure = Figure(figsize=(11.0, 5.2), dpi=160, layout="constrained", facecolor=colours["paper"])
    grid = figure.add_gridspec(2, 2, width_ratios=(1.25, 1))
    draw_paths(figure.add_subplot(grid[:, 0]), [r["t"] for r in records], paths, names, labels, colours)
    counts, sizes = figure.add_subplot(grid[0, 1]), figure.add_subplot(grid[1, 1])
    _lines(counts, records, COUNTS, colours, positive=False)
    counts.set_ylabel("how many", color=colours["ink"])
    _lines(sizes, records, SIZES, colours, positive=True)
    sizes.set_ylabel("how large", color=colours["ink"])
    sizes.set_xlabel("depth t", color=colours["ink"])
    figure.suptitle(title, color=colours["ink"], fontsize=13, fontweight="bold", x=0.01, ha="left")
    return figure


def draw_paths(panel: Any, times: Sequence[float], paths: NDArray, names: Sequence[str], labels: Sequence[int],
               colours: dict) -> None:
    """On the line: tokens against depth; in the plane: paths with their ends."""
    every = max(1, paths.shape[1] // MANY)
    paths, tints = paths[:, ::every], palette(labels, colours)[::every]
    thin = 1.0 if paths.shape[1] < 100 else 0.5
    if paths.shape[2] == 1:
        for k, tint in enumerate(tints):
            panel.plot(times, paths[:, k, 0], color=tint, linewidth=thin, alpha=0.8)
        panel.set_xlabel("depth t", color=colours["ink"])
        panel.set_ylabel(names[0], color=colours["ink"])
    else:
        for k, tint in enumerate(tints):
            panel.plot(paths[:, k, 0], paths[:, k, 1], color=tint, linewidth=thin, alpha=0.35, zorder=1)
        panel.scatter(*paths[0].T, s=9, color=colours["faint"], linewidth=0, zorder=2, label="first tokens")
        panel.scatter(*paths[-1].T, s=42, c=tints, edgecolors=colours["paper"], linewidth=0.6, zorder=3,
                      label="last tokens")
        panel.set_xlabel(names[0], color=colours["ink"])
        panel.set_ylabel(names[1], color=colours["ink"])
        fit_scales(panel, paths)
    plain(panel, colours)


def fit_scales(panel: Any, paths: NDArray, adjustable: str = "datalim") -> None:
    """Equal scales in the plane, unless one coordinate runs away from the other."""
    spread, start = abs(paths).max((0, 1)), abs(paths[0]).max(0)
    far = spread > _WIDE * start
    if not far.any() and max(spread) < 4 * min(spread):
        panel.set_aspect("equal", adjustable=adjustable)
    for axis, runs in zip("xy", far, strict=True):
        if runs:
            getattr(panel, f"set_{axis}scale")("symlog", linthresh=float(start.max()))


def palette(labels: Sequence[int], colours: dict) -> list:
    """A colour for each token by its cluster: a few that everyone can tell apart, an ordered scale for many."""
    count = max(labels) + 1
    if count <= len(colours["maps"]):
        return [colours["maps"][label] for label in labels]
    from matplotlib import colormaps

    return [colormaps["viridis"](0.05 + 0.9 * label / (count - 1)) for label in labels]


def plain(panel: Any, colours: dict) -> None:
    panel.set_facecolor(colours["paper"])
    panel.tick_params(colors=colours["ink"], labelsize=9, length=0)
    panel.grid(True, color=colours["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for side in panel.spines.values():
        side.set_visible(False)


def _lines(panel: Any, records: Sequence[dict[str, Any]], wanted: tuple, colours: dict, positive: bool) -> None:
    drawn = 0
    for (key, name, dashes), colour in zip(wanted, colours["maps"], strict=False):
        points = [(r["t"], r[key]) for r in records if r[key] is not None and (not positive or r[key] > SMALLEST)]
        if points:
            panel.plot(*zip(*points, strict=True), dashes, color=colour, linewidth=1.8, label=name,
                       drawstyle="default" if positive else "steps-post")
            drawn += 1
    plain(panel, colours)
    panel.set_xlim(records[0]["t"], records[-1]["t"] or 1.0)
    if drawn:
        panel.set_yscale("log")
        panel.legend(frameon=False, labelcolor=colours["ink"], fontsize=8.5)
    if not positive:
        from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

        panel.set_ylim(bottom=0.8)
        panel.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
