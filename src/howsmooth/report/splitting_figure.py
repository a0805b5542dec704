"""Pictures of mass splitting: where two atoms on a line split, and which heads of a model come near."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.lipschitz.splitting import SPLITS
from howsmooth.report.figure import THEMES
from howsmooth.report.rows import model_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINE, HEADS = (0.5, 1.5), (0.0, 2.0)  # ratios between which colours change


def _colours(name: str, ends: tuple[float, float]):
    """A scale that is pale at ratio 1, blue below and orange above: the border is where splitting begins."""
    from matplotlib import colors

    below, above = ("#0072B2", "#D55E00") if name == "light" else ("#56B4E9", "#E69F00")
    middle = THEMES[name]["paper"]
    scale = colors.LinearSegmentedColormap.from_list("splitting", [below, middle, above])
    return scale.with_extremes(bad=THEMES[name]["grid"]), colors.TwoSlopeNorm(1.0, *ends)


def title(a: float, masses: Sequence[float], third: float | None = None, masked: bool = False) -> str:
    """What a picture of the line shows.

    >>> title(-1.0, (1.0, 3.0))
    'a = −1, masses 1 : 3'
    """
    at = "" if third is None else f", third atom at {third:g}"
    mask = ", masked" if masked else ""
    return f"a = {a:g}, masses {' : '.join(f'{m:g}' for m in masses)}{at}{mask}".replace("-", "−")


def line_figure(pictures: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """One panel per picture: {"title", "axis" (points,), "ratio" (points, points)}; lines are where it is 1."""
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    scale, norm = _colours(theme, LINE)
    columns = min(3, len(pictures))
    lines = -(-len(pictures) // columns)
    figure = Figure(figsize=(4.3 * columns + 0.9, 4.2 * lines), dpi=160, layout="constrained",
                    facecolor=colours["paper"])
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for panel, drawn in zip(panels, pictures, strict=False):
        axis, ratio = (drawn[name].numpy() for name in ("axis", "ratio"))
        edge = float(axis[-1] + (axis[1] - axis[0]) / 2)
        image = panel.imshow(ratio, origin="lower", extent=(-edge, edge, -edge, edge), cmap=scale, norm=norm,
                             interpolation="nearest")
        panel.contour(axis, axis, ratio, levels=[1.0], colors=[colours["ink"]], linewidths=1.1)
        share = float((ratio > 1).mean())
        panel.set_title(f"{drawn['title']}\n{100 * share:.2g} % splits, ratio up to {float(ratio.max()):.5g}",
                        loc="left", fontsize=10.5, color=colours["ink"])
        panel.set_xlabel("first atom x", color=colours["ink"])
        panel.set_ylabel("second atom y", color=colours["ink"])
        panel.tick_params(colors=colours["ink"], length=0)
        for side in panel.spines.values():
            side.set_visible(False)
    for panel in panels[len(pictures):]:
        panel.set_visible(False)
    _bar(figure, image, panels[: len(pictures)], colours, LINE)
    return figure


def heads_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Heads × layers, one panel per length: the largest ratio over samples; a ring where it is certainly above 1."""
    import numpy
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    scale, norm = _colours(theme, HEADS)
    lengths = sorted({record["n"] for record in records})
    layers = sorted({record["layer"] for record in records})
    heads = sorted({-1 if record["head"] is None else record["head"] for record in records})
    columns = 1 if len(layers) > 15 else min(3, len(lengths))
    lines = -(-len(lengths) // columns)
    size = max(0.22, min(0.45, 9 / max(len(layers), len(heads))))
    figure = Figure(figsize=(max(3.6, size * len(layers) + 1.2) * columns + 1.0,
                             max(2.4, size * len(heads) + 1.3) * lines + 0.4), dpi=160, layout="constrained",
                    facecolor=colours["paper"])
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for panel, n in zip(panels, lengths, strict=False):
        grid = numpy.full((len(heads), len(layers)), numpy.nan)
        for record in records:
            if record["n"] == n:
                at = heads.index(-1 if record["head"] is None else record["head"]), layers.index(record["layer"])
                grid[at] = numpy.nanmax([grid[at], record["ratio"]])
                if record["verdict"] == SPLITS:
                    panel.plot(at[1], at[0], "o", markerfacecolor="none", color=colours["ink"], markersize=9)
        image = panel.imshow(grid, origin="lower", cmap=scale, norm=norm, aspect="equal")
        panel.set_title(f"n = {n}", loc="left", fontsize=11, fontweight="bold", color=colours["ink"])
        panel.set_xticks(range(len(layers)), [str(layer) for layer in layers])
        panel.set_yticks(range(len(heads)), ["all heads" if head < 0 else str(head) for head in heads])
        panel.set_xlabel("layer", color=colours["ink"])
        panel.set_ylabel("" if heads == [-1] else "head", color=colours["ink"])
        panel.tick_params(colors=colours["ink"], length=0, labelsize=9)
        for side in panel.spines.values():
            side.set_visible(False)
    for panel in panels[len(lengths):]:
        panel.set_visible(False)
    figure.suptitle(f"{model_name(records[0]['model'])}: does it split?", x=0.01, ha="left", fontsize=13,
                    fontweight="bold", color=colours["ink"])
    _bar(figure, image, panels[: len(lengths)], colours, HEADS)
    return figure


def _bar(figure: Any, image: Any, panels: Any, colours: dict, ends: tuple[float, float]) -> None:
    bar = figure.colorbar(image, ax=list(panels), shrink=0.8, extend="both" if ends[0] > 0 else "max")
    bar.set_label("max$_i$ ‖∂₁G(x$_i$, μ)‖ / ‖D‖:  splits above 1", color=colours["ink"])
    bar.set_ticks([ends[0], (1 + ends[0]) / 2, 1.0, (1 + ends[1]) / 2, ends[1]])
    bar.ax.tick_params(colors=colours["ink"], length=0)
    bar.outline.set_visible(False)
