"""Figures for a paper: vector PDF at the width of a column, in the style of howsmooth.mplstyle."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.fits import growth_laws
from howsmooth.records import CURVE
from howsmooth.report.chart import FEW, HeatMap
from howsmooth.report.charts import drawable, grouped, growth_chart, heat_maps, tightness_chart
from howsmooth.report.figure import THEMES, draw, paper_style
from howsmooth.report.rows import model_name, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VIEW = tuple(name for name in CURVE if name not in ("layer", "head"))
_COLUMN = 3.3  # inches
_MOST_WRITTEN = 8  # columns of a heat map up to which numbers are written into its cells


def write_figures(records: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """growth.pdf, lengths.pdf, heads.pdf and tightness.pdf, as far as the records fill them.

    Where the records hold several models, maps or texts, each has its own, with its name in the file's.
    """
    measured = [record for record in records if record["kind"] == "measurement" and drawable(record)]
    bounds = [record for record in records if record["kind"] == "bound"]
    written = []
    with paper_style():
        for chosen, figures in ((measured, _of_measurements), (bounds, _of_bounds)):
            for name, part in views(chosen).items():
                for kind, figure in figures(part):
                    written.append(folder / f"{kind}{name}.pdf")
                    figure.savefig(written[-1])
    return written


def _of_measurements(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Figure]]:
    model = model_name(records[0]["model"])
    if len({record["n"] for record in records}) > 1:
        curves = len(grouped(records, "layer", "head"))
        few = curves <= FEW
        chart = growth_chart(records, growth_laws(records, draws=0), named=FEW if few else 0, slopes=False)
        title = model if few else f"{model}: {curves} maps, first layer dark"
        chart = replace(chart, title=title, y=replace(chart.y, label=r"Lip $= \|D_X f\|_2$"))
        yield "growth", draw([chart], theme="paper", width=_COLUMN, height=2.4 + 0.13 * math.ceil(curves / 2) * few)
    for kind, maps in heat_maps(records).items():
        if maps:
            last = maps[-1]  # of the heads those at the greatest length
            yield kind, draw_heat_map(replace(last, title=f"{model}: {last.title}"))


def _of_bounds(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Figure]]:
    chart = tightness_chart(records)
    if chart is not None:
        yield "tightness", draw([chart], theme="paper", width=_COLUMN, height=0.75 + 0.2 * len(chart.y.names))


def draw_heat_map(heat: HeatMap) -> Figure:
    """Rows and columns of a heat map on a log scale of colours, with the numbers where they fit."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(
        figsize=(_COLUMN, min(4.5, 0.95 + 0.17 * len(heat.rows))),
        layout="constrained",
        facecolor=THEMES["paper"]["paper"],
    )
    panel: Any = figure.subplots()
    grid = [[math.nan if value is None else value for value in row] for row in heat.values]
    shown: Any = panel.imshow(grid, aspect="auto", norm=LogNorm(), cmap="cividis")
    panel.grid(False)
    every, down = math.ceil(len(heat.columns) / 12), math.ceil(len(heat.rows) / 16)
    panel.set_xticks(range(0, len(heat.columns), every), heat.columns[::every])
    panel.set_yticks(range(0, len(heat.rows), down), heat.rows[::down])
    panel.set(xlabel=heat.x.label, ylabel=heat.y.label)
    panel.set_title("\n".join(textwrap.wrap(heat.title, 44)), loc="left")
    if len(heat.columns) <= _MOST_WRITTEN:
        for i, row in enumerate(grid):
            for j, value in enumerate(row):
                if math.isfinite(value):
                    panel.text(
                        j,
                        i,
                        number(value, 3),
                        ha="center",
                        va="center",
                        fontsize=6.5,
                        color="white" if shown.norm(value) < 0.5 else "black",
                    )
    bar = figure.colorbar(shown, ax=panel, pad=0.02)
    bar.ax.tick_params(labelsize=6.5, which="both", length=0)
    bar.set_label("Lip", fontsize=7)
    bar.ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return figure


def views(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The records by what goes into one figure; "" or -NAME for its file, of the parts that vary."""
    groups = grouped(records, *VIEW)
    varying = [i for i in range(len(VIEW)) if len({key[i] for key in groups}) > 1]
    named: dict[str, list[dict[str, Any]]] = {}
    for key, group in groups.items():
        parts = [model_name(str(key[i])) if VIEW[i] == "model" else str(key[i]) for i in varying if key[i] is not None]
        name = "".join("-" + re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
        named[name if name not in named else f"{name}-{len(named)}"] = group
    return named
