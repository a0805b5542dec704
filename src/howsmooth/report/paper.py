"""Figures of records as PDF files, in the style of a paper or of slides."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.fits import growth_laws
from howsmooth.questions import find_question
from howsmooth.records import CURVE
from howsmooth.report.chart import MAX_DETAILED_SERIES, HeatMap, Picture
from howsmooth.report.charts import group_by, growth_chart, heat_maps, is_drawable, tightness_chart
from howsmooth.report.figure import draw, draw_question, save_figure
from howsmooth.report.rows import model_name, number
from howsmooth.report.sections import by_question
from howsmooth.report.style import THEMES, apply_theme, characters, current_style, figure_style, new_figure
from howsmooth.report.ticks import separate_tick_labels, set_log_ticks

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIGURE_KEY = tuple(name for name in CURVE if name not in ("layer", "head"))
_WIDTH = 5.4  # inches of a figure on a screen; a style has its own width
_MAX_WRITTEN_COLUMNS = 8  # a heat map with more columns has no numbers in its cells


def write_figures(records: Sequence[dict[str, Any]], folder: Path, style: str = "paper") -> list[Path]:
    """Write growth.pdf, lengths.pdf, heads.pdf and tightness.pdf as far as there are records for them.

    Other questions have a figure of their name.

    If there are several models, maps or texts, each has its own files, with its name in theirs.

    Args:
        records: Measurements and bounds.
        folder: Existing folder to write to.
        style: Key of `howsmooth.report.style.STYLES`.

    Returns:
        The paths of the files.
    """
    measured = [record for record in records if record["kind"] == "measurement" and is_drawable(record)]
    bounds = [record for record in records if record["kind"] == "bound"]
    written = []
    with figure_style(style):
        for chosen, figures in ((measured, _measurement_figures), (bounds, _bound_figures)):
            for name, part in records_by_figure(chosen).items():
                for kind, figure in figures(part):
                    written.append(folder / f"{kind}{name}.pdf")
                    save_figure(figure, written[-1])
        others = [record for record in records if record["kind"] not in ("measurement", "bound")]
        for name, part in by_question(others).items():
            if (question := find_question(name)).draws:
                written.append(folder / f"{name}.pdf")
                save_figure(draw_question(question, part), written[-1])
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
        yield ("growth", draw(Picture([chart], width=_WIDTH, height=4.0 + 0.2 * math.ceil(curves / 2) * is_detailed)))
    for kind, maps in heat_maps(records).items():
        if maps:
            last = maps[-1]  # the maps of heads are one for each length: take the longest
            yield kind, draw_heat_map(replace(last, title=f"{model}: {last.title}"))


def _bound_figures(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Figure]]:
    chart = tightness_chart(records)
    if chart is not None:
        yield ("tightness", draw(Picture([chart], width=_WIDTH, height=1.5 + 0.33 * len(chart.y_axis.tick_labels))))


def draw_heat_map(heat: HeatMap) -> Figure:
    """Draw a heat map on a logarithmic colour scale, with numbers in the cells if they fit."""
    from matplotlib.colors import LogNorm

    colours, style = THEMES["light"], current_style()
    figure = new_figure(_WIDTH, min(7.0, 1.5 + 0.28 * len(heat.rows)), colours)
    panel: Any = figure.subplots()
    grid = [[math.nan if value is None else value for value in row] for row in heat.values]
    image: Any = panel.imshow(grid, aspect="auto", norm=LogNorm(), cmap="cividis", gid="chart-0-cells")
    panel.set_xticks(range(len(heat.columns)), heat.columns)
    panel.set_yticks(range(len(heat.rows)), heat.rows)
    panel.set(xlabel=heat.x_axis.label, ylabel=heat.y_axis.label)
    title_width = characters(0.8 * figure.get_figwidth(), style.title_size)
    panel.set_title(textwrap.fill(heat.title, title_width), loc="left", fontsize=style.title_size, fontweight="bold")
    apply_theme(panel, colours, grid=False)
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
                        fontsize=style.legend_size,
                        color="white" if image.norm(value) < 0.5 else "black",
                    )
    bar = figure.colorbar(image, ax=panel, pad=0.02)
    bar.set_label(r"$\|D_X f\|_2$")
    apply_theme(bar.ax, colours, grid=False)
    set_log_ticks(bar.ax.yaxis, image.norm.vmin, image.norm.vmax)
    bar.outline.set_visible(False)
    return separate_tick_labels(figure)


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
