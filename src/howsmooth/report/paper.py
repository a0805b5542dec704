"""Figures for a paper: vector PDF at the width of a column, drawn in the style of howsmooth.mplstyle."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from howsmooth.report.figure import MARKERS
from howsmooth.report.rows import map_name, model_name, number
from howsmooth.studies.growth import CURVE, fits_of
from howsmooth.studies.reading import kind_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VIEW = tuple(name for name in CURVE if name not in ("layer", "head"))
_FEW = 6  # curves that get a colour and a name each
_MOST_WRITTEN = 8  # columns of a heat map up to which numbers are written into its cells
_IN_SIGHT = 1e12  # times the measured constant: a bound further up is named with its power of ten


def write_figures(records: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """growth.pdf, lengths.pdf, heads.pdf and tightness.pdf, as far as the records fill them.

    Where the records hold several models, maps or texts, each has its own, with its name in the file's.
    """
    from matplotlib import style

    measured = [record for record in records if kind_of(record) == "measurement" and (record["value"] or 0) > 0]
    bounds = [record for record in records if kind_of(record) == "bound"]
    written = []
    with as_file(files("howsmooth.report").joinpath("howsmooth.mplstyle")) as sheet, style.context(str(sheet)):
        for chosen, pictures in ((measured, (growth, lengths, heads)), (bounds, (tightness,))):
            for name, part in _views(chosen).items():
                for picture in pictures:
                    figure = picture(part)
                    if figure is not None:
                        written.append(folder / f"{picture.__name__}{name}.pdf")
                        figure.savefig(written[-1])
    return written


def growth(records: Sequence[dict[str, Any]]) -> Figure | None:
    """Medians over samples against n with the spread of the samples; dashed, the fitted laws."""
    curves = _grouped(records, "layer", "head")
    if len({record["n"] for record in records}) < 2:
        return None
    figure, panel = _panel("log", "log")
    laws = {(dict(zip(CURVE, key, strict=True))["layer"], dict(zip(CURVE, key, strict=True))["head"]): law
            for key, law in fits_of(records, draws=0).items()}
    few = len(curves) <= _FEW
    for i, (key, points) in enumerate(sorted(curves.items(), key=lambda item: _order(item[0]))):
        at = {n: [r["value"] for r in group] for (n,), group in sorted(_grouped(points, "n").items())}
        law = laws.get(key)
        colour = {} if few else {"color": _shade(i, len(curves))}
        label = f"{map_name(*key)}" + (f": $n^{{{law.exponent:.2f}}}$" if law else "")
        line, = panel.plot(list(at), [median(v) for v in at.values()], label=label if few else None,
                           marker=MARKERS[i % len(MARKERS)] if few else None, linewidth=1.2 if few else 0.5, **colour)
        if few:
            panel.fill_between(list(at), [min(v) for v in at.values()], [max(v) for v in at.values()],
                               color=line.get_color(), alpha=0.15, linewidth=0)
            if law:
                panel.plot([min(at), max(at)], [law.at(min(at)), law.at(max(at))], "--", color=line.get_color(),
                           linewidth=0.7)
    panel.set_xlabel("length $n$ (tokens)")
    panel.set_ylabel(r"Lip $= \|D_X f\|_2$")
    panel.set_title(model_name(records[0]["model"]) + ("" if few else f": {len(curves)} maps, first layer dark"))
    _ticks(panel, sorted({record["n"] for record in records}))
    if few:
        figure.legend(loc="outside lower center", ncols=2)
        figure.set_size_inches(3.3, 2.4 + 0.13 * math.ceil(len(curves) / 2))
    return figure


def heads(records: Sequence[dict[str, Any]]) -> Figure | None:
    """Layer × head at the greatest length, median over samples."""
    n = max(record["n"] for record in records)
    chosen = [record for record in records if record["n"] == n and record["head"] is not None]
    if len({record["head"] for record in chosen}) < 2:
        return None
    return _heat_map(chosen, "head", f"{model_name(chosen[0]['model'])}: each head at n = {n}")


def lengths(records: Sequence[dict[str, Any]]) -> Figure | None:
    """Layer × length, median over samples; of heads the largest."""
    chosen = [record for record in records if record["layer"] is not None]
    if len({record["n"] for record in chosen}) < 2:
        return None
    whose = ", largest head" if any(record["head"] is not None for record in chosen) else ""
    return _heat_map(chosen, "n", f"{model_name(chosen[0]['model'])}: each layer{whose}")


def tightness(records: Sequence[dict[str, Any]]) -> Figure | None:
    """Each bound over the measured constant: median and range over maps, lengths and samples."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for record in records:
        if record["log_ratio"] is not None and math.isfinite(record["log_ratio"]):
            ratios.setdefault((record["side"], record["bound"]), []).append(record["log_ratio"])
    if not ratios:
        return None
    order = sorted(ratios, key=lambda key: (key[0] == "lower", median(ratios[key])))
    figure, panel = _panel("log", "linear")
    figure.set_size_inches(3.3, 0.75 + 0.2 * len(order))
    drawn = [key for key in order if max(ratios[key]) < math.log(_IN_SIGHT)]
    right = max([math.exp(max(ratios[key])) for key in drawn], default=10.0)
    for row, key in enumerate(order):
        lower, colour = key[0] == "lower", "C1" if key[0] == "lower" else "C0"
        if key not in drawn:
            panel.text(right, row, f"$10^{{{median(ratios[key]) / math.log(10):.0f}}}$ →", ha="right", va="center",
                       fontsize=7, color=colour)
            continue
        low, middle, high = (math.exp(value) for value in (min(ratios[key]), median(ratios[key]), max(ratios[key])))
        panel.plot([low, high], [row, row], color=colour, linewidth=1.6)
        panel.plot([middle], [row], marker="^" if lower else "v", color=colour, markersize=4.5, linestyle="")
    panel.axvline(1, color="black", linewidth=0.7)
    panel.set_yticks(range(len(order)), [f"{'≥' if side == 'lower' else '≤'} {name.removeprefix('this_project.')}"
                                         for side, name in order])
    panel.set_xlabel("bound over the measured constant")
    panel.set_title(model_name(records[0]["model"]), loc="left")
    return figure


def _heat_map(records: Sequence[dict[str, Any]], column: str, title: str) -> Figure:
    from matplotlib.colors import LogNorm

    medians: dict[tuple, float] = {}
    for (layer, at, _), group in _grouped(records, "layer", column, "head").items():
        value = median(record["value"] for record in group)
        medians[layer, at] = max(value, medians.get((layer, at), 0.0))
    layers, columns = (sorted({key[i] for key in medians}) for i in (0, 1))
    figure, panel = _panel("linear", "linear")
    figure.set_size_inches(3.3, min(4.5, 0.95 + 0.17 * len(layers)))
    grid = [[medians.get((layer, at), math.nan) for at in columns] for layer in layers]
    shown = panel.imshow(grid, aspect="auto", norm=LogNorm())
    panel.grid(False)
    every, down = math.ceil(len(columns) / 12), math.ceil(len(layers) / 16)
    panel.set_xticks(range(0, len(columns), every), columns[::every])
    panel.set_yticks(range(0, len(layers), down), layers[::down])
    panel.set_xlabel("length $n$ (tokens)" if column == "n" else "head")
    panel.set_ylabel("layer")
    panel.set_title(title)
    if len(columns) <= _MOST_WRITTEN:
        for i, row in enumerate(grid):
            for j, value in enumerate(row):
                if math.isfinite(value):
                    dark = shown.norm(value) < 0.5
                    panel.text(j, i, number(value, 3), ha="center", va="center", fontsize=6.5,
                               color="white" if dark else "black")
    bar = figure.colorbar(shown, ax=panel, pad=0.02)
    bar.ax.tick_params(labelsize=6.5, which="both", length=0)
    bar.set_label("Lip", fontsize=7)
    _plain(bar.ax.yaxis)
    return figure


def _panel(x: str, y: str) -> tuple[Figure, Any]:
    from matplotlib.figure import Figure

    figure = Figure()
    panel = figure.subplots()
    panel.set_xscale(x, **({"base": 2} if x == y == "log" else {}))
    panel.set_yscale(y)
    if y == "log":
        _plain(panel.yaxis)
    return figure, panel


def _plain(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _ticks(panel: Any, found: list[int]) -> None:
    from matplotlib.ticker import FuncFormatter

    panel.set_xticks(found[:: math.ceil(len(found) / 7)])
    panel.minorticks_off()
    panel.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:.0f}"))


def _shade(index: int, count: int) -> Any:
    from matplotlib import colormaps

    return colormaps["cividis"](0.85 * index / max(count - 1, 1))


def _order(key: tuple) -> tuple:
    return tuple(-1 if part is None else part for part in key)


def _grouped(records: Sequence[dict[str, Any]], *names: str) -> dict[tuple, list[dict[str, Any]]]:
    groups: dict[tuple, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record.get(name) for name in names), []).append(record)
    return groups


def _views(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The records by what goes into one figure; "" or -NAME for its file, of the parts that vary."""
    views = _grouped(records, *VIEW)
    varying = [i for i in range(len(VIEW)) if len({key[i] for key in views}) > 1]
    named = {}
    for key, group in views.items():
        parts = [model_name(str(key[i])) if VIEW[i] == "model" else str(key[i]) for i in varying if key[i] is not None]
        name = "".join("-" + re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
        named[name if name not in named else f"{name}-{len(named)}"] = group
    return named
