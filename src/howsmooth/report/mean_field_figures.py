"""Attention on measures in pictures: regimes, masked constants, growth with the radius, distances, mass splitting."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.lipschitz.splitting import SPLITS
from howsmooth.report.chart import FEW, Axis, Chart, Label, Series
from howsmooth.report.charts import LENGTH
from howsmooth.report.figure import THEMES, draw
from howsmooth.report.rows import LOG10, model_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from howsmooth.lipschitz.criterion import LineSplittingGrid

SCORES = {"negative": "A = −1", "positive": "A = +1", "rotation": "A a quarter turn"}
LINE, HEADS = (0.5, 1.5), (0.0, 2.0)  # ratios between which the colours of splitting change


def regimes_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """`regimes_chart`, drawn."""
    return _drawn(regimes_chart(records), theme)


def regimes_chart(records: Sequence[dict[str, Any]]) -> Chart:
    """Log Lip against log n, one colour per γR²: exact on two places (line), upper bound (dashed), n* (dot)."""
    sizes = list(dict.fromkeys(record["gamma_r2"] for record in records))
    last = max(record["log_n"] for record in records) / LOG10
    top = max(record["log_upper"] for record in records) / LOG10
    series, labels = [], []
    for index, size in enumerate(sizes):
        chosen = sorted((r for r in records if r["gamma_r2"] == size), key=lambda r: r["log_n"])
        at, colour = [record["log_n"] / LOG10 for record in chosen], _colour(index, len(sizes))
        for name, line, width in (
            ("log_value", "solid", 2.2),
            ("log_upper", "dashed", 1.1),
            ("log_at_radius", "dotted", 1.1),
        ):
            series.append(
                Series(
                    at,
                    [record[name] / LOG10 for record in chosen],
                    line=line,
                    width=width,
                    colour=colour,
                    name=f"γR² = {size:g}" if line == "solid" else "",
                )
            )
        crossover, plateau = chosen[0]["log_crossover"] / LOG10, chosen[0]["log_plateau"] / LOG10
        if 0 < crossover <= last:
            series.append(Series([crossover], [plateau], marks=True, marker=0, colour=colour))
            labels.append(Label(crossover, plateau - 0.03 * top, "n*"))
    end = min(last, 2 * top)
    series += [
        Series([0, end], [0, end / 2], line="dotted", width=1.2, colour="faint"),
        _key("largest on two places, exact", "solid", 2.2),
        _key("upper bound", "dashed"),
        _key("one token at the rim, as published", "dotted"),
    ]
    return Chart(
        f"From √n to the plateau, {SCORES[records[0]['scores']]}",
        Axis(LENGTH, "powers"),
        Axis("Lipschitz constant", "powers"),
        series,
        labels=[*labels, Label(0.7 * end, 0.35 * end - 0.03 * top, "√n")],
    )


def masked_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """`masked_chart`, drawn."""
    return _drawn(masked_chart(records), theme)


def masked_chart(records: Sequence[dict[str, Any]]) -> Chart:
    """Constants of masked attention against a, one colour per p: proved (line), attained (points), stated (dashed)."""
    exponents = [
        p
        for p in dict.fromkeys(record["p"] for record in records)
        if any(r["bound"] is not None for r in records if r["p"] == p)
    ]
    series = []
    for index, p in enumerate(exponents):
        chosen = sorted((r for r in records if r["p"] == p), key=lambda r: r["a"])
        at, colour = [record["a"] for record in chosen], _colour(index, len(exponents))
        series += [
            Series(
                at,
                [math.exp(r["log_bound"]) for r in chosen],
                line="solid",
                width=2,
                colour=colour,
                name=f"p = {_exponent(p)}",
            ),
            Series(at, [r["attained"] for r in chosen], marks=True, marker=index, colour=colour),
        ]
    stated = sorted({record["a"]: record["stated"] for record in records}.items())
    series += [
        Series(
            [a for a, _ in stated],
            [value for _, value in stated],
            line="dashed",
            width=1.4,
            colour="faint",
            name="as stated, for all p",
        ),
        Series((), (), name="attained", marks=True, marker=0, colour="ink"),
    ]
    return Chart(
        "Masked attention: proved and attained", Axis("a = ‖A‖R²"), Axis("Lipschitz constant in $d_p$", "log"), series
    )


def distance_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """`distance_chart`, drawn."""
    return _drawn(distance_chart(records), theme)


def distance_chart(records: Sequence[dict[str, Any]]) -> Chart:
    """After / before against the layer, a line for each exponent and length; without a layer each distance."""
    letter = records[0]["distance"]
    shown = [r for r in records if r["layer"] is None or r["quotient"] is not None]
    exponents = list(dict.fromkeys(r["p"] for r in shown))
    one, other = (Path(name).name for name in records[0].get("texts") or records[0]["files"])
    model = "" if records[0]["model"] is None else f"{model_name(records[0]['model'])}: "
    title = f"{model}how far apart are " + (f"{one} and {other}" if one != other else f"two chunks of {one}")
    if records[0]["layer"] is None:
        values = [math.inf if r["before"]["value"] == "inf" else r["before"]["value"] for r in shown]
        finite = [i for i, value in enumerate(values) if math.isfinite(value)]
        high = max((values[i] for i in finite), default=1.0)
        names = [_exponent(r["p"]) for r in shown]
        return Chart(
            title,
            Axis("exponent p", names=names, low=-0.5, high=len(names) - 0.5),
            Axis(f"distance ${letter}_p$", low=0, high=1.1 * high),
            [Series(finite, [values[i] for i in finite], marks=True, marker=0, colour=0)],
            labels=[
                Label(
                    i,
                    value if math.isfinite(value) else 0.0,
                    f" {value:.4g}" if math.isfinite(value) else " ∞",
                    colour="ink",
                )
                for i, value in enumerate(values)
            ],
        )
    lengths = list(dict.fromkeys(r["n"] for r in shown))
    series = []
    for index, p in enumerate(exponents):
        for place, n in enumerate(lengths):
            chosen = sorted((r for r in shown if (r["p"], r["n"]) == (p, n)), key=lambda r: r["layer"])
            series.append(
                Series(
                    [r["layer"] for r in chosen],
                    [r["quotient"] for r in chosen],
                    line="solid",
                    marks=True,
                    marker=place,
                    colour=_colour(index, len(exponents)),
                    name=f"p = {_exponent(p)}" + (f", n = {n}" if len(lengths) > 1 else ""),
                )
            )
    return Chart(title, Axis("layer", whole=True), Axis(f"${letter}_p$ after attention / before", low=0), series)


def _drawn(chart: Chart, theme: str) -> Figure:
    lines = math.ceil(sum(bool(series.name) for series in chart.series) / 2)
    return draw([chart], theme=theme, width=7.2, height=4.6 + 0.22 * lines)


def _colour(index: int, count: int) -> int | float:
    """A few get colours that everyone can tell apart, many an ordered scale."""
    return index if count <= FEW else index / (count - 1)


def _key(name: str, line: str, width: float = 1.1) -> Series:
    """An entry of the legend alone."""
    return Series((), (), name=name, line=line, width=width, colour="ink")


def _exponent(p: float | str) -> str:
    return "∞" if isinstance(p, str) else f"{p:g}"


def _scale(name: str, ends: tuple[float, float]) -> tuple[Any, Any]:
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


def picture_figure(picture: LineSplittingGrid, *, theme: str = "light") -> Figure:
    """One picture of the line."""
    axis, found = picture.found
    named = title(picture.a, picture.all_masses, picture.third, picture.masked)
    return line_figure([{"title": named, "axis": axis, "ratio": found.ratio}], theme=theme)


def line_figure(pictures: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """One panel per picture: {"title", "axis" (points,), "ratio" (points, points)}; lines are where it is 1."""
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    scale, norm = _scale(theme, LINE)
    columns = min(3, len(pictures))
    lines = -(-len(pictures) // columns)
    figure = Figure(
        figsize=(4.3 * columns + 0.9, 4.2 * lines), dpi=160, layout="constrained", facecolor=colours["paper"]
    )
    panels = figure.subplots(lines, columns, squeeze=False).flatten()
    for panel, drawn in zip(panels, pictures, strict=False):
        axis, ratio = (drawn[name].numpy() for name in ("axis", "ratio"))
        edge = float(axis[-1] + (axis[1] - axis[0]) / 2)
        image = panel.imshow(
            ratio, origin="lower", extent=(-edge, edge, -edge, edge), cmap=scale, norm=norm, interpolation="nearest"
        )
        panel.contour(axis, axis, ratio, levels=[1.0], colors=[colours["ink"]], linewidths=1.1)
        share = float((ratio > 1).mean())
        panel.set_title(
            f"{drawn['title']}\n{100 * share:.2g} % splits, ratio up to {float(ratio.max()):.5g}",
            loc="left",
            fontsize=10.5,
            color=colours["ink"],
        )
        panel.set_xlabel("first atom x", color=colours["ink"])
        panel.set_ylabel("second atom y", color=colours["ink"])
        panel.tick_params(colors=colours["ink"], length=0)
        for side in panel.spines.values():
            side.set_visible(False)
    for panel in panels[len(pictures) :]:
        panel.set_visible(False)
    _bar(figure, image, panels[: len(pictures)], colours, LINE)
    return figure


def heads_figure(records: Sequence[dict[str, Any]], *, theme: str = "light") -> Figure:
    """Heads × layers, one panel per length: the largest ratio over samples; a ring where it is certainly above 1."""
    import numpy
    from matplotlib.figure import Figure

    colours = THEMES[theme]
    scale, norm = _scale(theme, HEADS)
    lengths = sorted({record["n"] for record in records})
    layers = sorted({record["layer"] for record in records})
    heads = sorted({-1 if record["head"] is None else record["head"] for record in records})
    columns = 1 if len(layers) > 15 else min(3, len(lengths))
    lines = -(-len(lengths) // columns)
    size = max(0.22, min(0.45, 9 / max(len(layers), len(heads))))
    figure = Figure(
        figsize=(max(3.6, size * len(layers) + 1.2) * columns + 1.0, max(2.4, size * len(heads) + 1.3) * lines + 0.4),
        dpi=160,
        layout="constrained",
        facecolor=colours["paper"],
    )
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
    for panel in panels[len(lengths) :]:
        panel.set_visible(False)
    figure.suptitle(
        f"{model_name(records[0]['model'])}: does it split?",
        x=0.01,
        ha="left",
        fontsize=13,
        fontweight="bold",
        color=colours["ink"],
    )
    _bar(figure, image, panels[: len(lengths)], colours, HEADS)
    return figure


def _bar(figure: Any, image: Any, panels: Any, colours: dict, ends: tuple[float, float]) -> None:
    bar = figure.colorbar(image, ax=list(panels), shrink=0.8, extend="both" if ends[0] > 0 else "max")
    bar.set_label("max$_i$ ‖∂₁G(x$_i$, μ)‖ / ‖D‖:  splits above 1", color=colours["ink"])
    bar.set_ticks([ends[0], (1 + ends[0]) / 2, 1.0, (1 + ends[1]) / 2, ends[1]])
    bar.ax.tick_params(colors=colours["ink"], length=0)
    bar.outline.set_visible(False)
