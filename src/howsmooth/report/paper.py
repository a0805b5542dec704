"""Figures for a paper: PDF at the width of a column, in the style of howsmooth.mplstyle."""

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
from howsmooth.report.chart import MAX_DETAILED_SERIES, HeatMap
from howsmooth.report.charts import group_by, growth_chart, heat_maps, is_drawable, tightness_chart
from howsmooth.report.figure import THEMES, draw, paper_style
from howsmooth.report.rows import model_name, number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIGURE_KEY = tuple(name for name in CURVE if name not in ("layer", "head"))
_COLUMN_WIDTH = 3.3  # inches
_MAX_WRITTEN_COLUMNS = 8  # a heat map with more columns has no numbers in its cells


def write_figures(records: Sequence[dict[str, Any]], folder: Path) -> list[Path]:
    """Write growth.pdf, lengths.pdf, heads.pdf and tightness.pdf as far as there are records for them.

    If there are several models, maps or texts, each has its own files, with its name in theirs.

    Args:
        records: Measurements and bounds.
        folder: Existing folder to write to.

    Returns:
        The paths of the files.
    """
    measured = [record for record in records if record["kind"] == "measurement" and is_drawable(record)]
    bounds = [record for record in records if record["kind"] == "bound"]
    written = []
    with paper_style():
        for chosen, figures in ((measured, _measurement_figures), (bounds, _bound_figures)):
            for name, part in records_by_figure(chosen).items():
                for kind, figure in figures(part):
                    written.append(folder / f"{kind}{name}.pdf")
                    figure.savefig(written[-1])
    return written


def _measurement_figures(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Figure]]:
    model = model_name(records[0]["model"])
    if len({record["n"] for record in records}) > 1:
        curves = len(group_by(records, "layer", "head"))
        is_detailed = curves <= MAX_DETAILED_SERIES
        chart = growth_chart(
            records,
            growth_laws(records, draws=0),
            max_labelled=MAX_DETAILED_SERIES if is_detailed else 0,
            with_reference_slopes=False,
        )
        title = model if is_detailed else f"{model}: {curves} maps, first layer dark"
        chart = replace(chart, title=title, y_axis=replace(chart.y_axis, label=r"Lip $= \|D_X f\|_2$"))
        yield (
            "growth",
            draw([chart], theme="paper", width=_COLUMN_WIDTH, height=2.4 + 0.13 * math.ceil(curves / 2) * is_detailed),
        )
    for kind, maps in heat_maps(records).items():
        if maps:
            last = maps[-1]  # the maps of heads are one for each length: take the longest
            yield kind, draw_heat_map(replace(last, title=f"{model}: {last.title}"))


def _bound_figures(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Figure]]:
    chart = tightness_chart(records)
    if chart is not None:
        yield (
            "tightness",
            draw([chart], theme="paper", width=_COLUMN_WIDTH, height=0.75 + 0.2 * len(chart.y_axis.tick_labels)),
        )


def draw_heat_map(heat: HeatMap) -> Figure:
    """Draw a heat map on a logarithmic colour scale, with numbers in the cells if they fit."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(
        figsize=(_COLUMN_WIDTH, min(4.5, 0.95 + 0.17 * len(heat.rows))),
        layout="constrained",
        facecolor=THEMES["paper"]["background"],
    )
    panel: Any = figure.subplots()
    grid = [[math.nan if value is None else value for value in row] for row in heat.values]
    image: Any = panel.imshow(grid, aspect="auto", norm=LogNorm(), cmap="cividis")
    panel.grid(False)
    column_step, row_step = math.ceil(len(heat.columns) / 12), math.ceil(len(heat.rows) / 16)
    panel.set_xticks(range(0, len(heat.columns), column_step), heat.columns[::column_step])
    panel.set_yticks(range(0, len(heat.rows), row_step), heat.rows[::row_step])
    panel.set(xlabel=heat.x_axis.label, ylabel=heat.y_axis.label)
    panel.set_title("\n".join(textwrap.wrap(heat.title, 44)), loc="left")
    if len(heat.columns) <= _MAX_WRITTEN_COLUMNS:
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
                        color="white" if image.norm(value) < 0.5 else "black",
                    )
    bar = figure.colorbar(image, ax=panel, pad=0.02)
    bar.ax.tick_params(labelsize=6.5, which="both", length=0)
    bar.set_label("Lip", fontsize=7)
    bar.ax.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5)))
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
    return figure


def records_by_figure(records: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Group the records of one figure; the key is the suffix of its file name, made of the fields that vary."""
    groups = group_by(records, *_FIGURE_KEY)
    varying = [i for i in range(len(_FIGURE_KEY)) if len({key[i] for key in groups}) > 1]
    named: dict[str, list[dict[str, Any]]] = {}
    for key, group in groups.items():
        parts = [
            model_name(str(key[i])) if _FIGURE_KEY[i] == "model" else str(key[i]) for i in varying if key[i] is not None
        ]
        name = "".join("-" + re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
        named[name if name not in named else f"{name}-{len(named)}"] = group
    return named
