"""Figures of records as PDF files, in the style of a paper or of slides."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from howsmooth.fits import growth_laws
from howsmooth.questions import find_question
from howsmooth.records import CURVE
from howsmooth.records.columns import group_by
from howsmooth.report.chart import MAX_DETAILED_SERIES, Annotation, Axis, Chart, Picture, Series
from howsmooth.report.charts import growth_chart, heat_maps, is_drawable
from howsmooth.report.figure import draw, draw_question, save_figure
from howsmooth.report.rows import model_name, scope_text, signed_title
from howsmooth.report.style import figure_style
from howsmooth.report.web_page import by_question

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FIGURE_KEY = tuple(name for name in CURVE if name not in ("layer", "head"))
_WIDTH = 5.4  # inches of a figure on a screen; a style has its own width


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
            heat = replace(last, title=f"{model}: {last.title}")
            yield kind, draw(Picture([heat], width=_WIDTH, height=min(7.6, 1.9 + 0.33 * len(heat.rows))))


def _bound_figures(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, Figure]]:
    chart = tightness_chart(records)
    if chart is not None:
        yield ("tightness", draw(Picture([chart], width=_WIDTH, height=2.1 + 0.33 * len(chart.y_axis.tick_labels))))


def tightness_chart(records: Sequence[dict[str, Any]]) -> Chart | None:
    """Return the chart of bound / measured constant for each bound: median and range over maps, lengths and samples.

    Bounds at the measured tokens are above those on the worst case, which are about another constant. Returns None if
    no record has a finite ratio.
    """
    ratios: dict[tuple[bool, str], list[float]] = {}
    for record in records:
        if record["log_ratio"] is not None and math.isfinite(record["log_ratio"]):
            ratios.setdefault((record["holds"] != "at X", signed_title(record)), []).append(record["log_ratio"])
    if not ratios:
        return None
    order = sorted(ratios, key=lambda key: (key[0], median(ratios[key])), reverse=True)  # from the bottom to the top
    drawn = [key for key in order if max(ratios[key]) < math.log(1e12)]
    x_max = max([math.exp(max(ratios[key])) for key in drawn], default=10.0)
    series, annotations = (
        [Series([1, 1], [-0.5, len(order) - 0.5], linestyle="solid", linewidth=0.7, colour="foreground")],
        [],
    )
    scopes = [scope_text(records[0], "at X"), "worst case"]
    for row, key in enumerate(order):
        worst, log_ratios = int(key[0]), ratios[key]
        if key in drawn:
            low, middle, high = (math.exp(value) for value in (min(log_ratios), median(log_ratios), max(log_ratios)))
            series.append(
                Series(
                    [middle],
                    [row],
                    [low],
                    [high],
                    show_markers=True,
                    marker_index=worst,
                    colour=worst,
                    horizontal_intervals=True,
                )
            )
        else:
            power = f"$10^{{{median(log_ratios) / math.log(10):.0f}}}$ →"
            annotations.append(Annotation(x_max, row, power, "right", worst))
    for worst in sorted({int(key[0]) for key in order}):
        series.append(
            Series(
                (),
                (),
                label=f"bounds {'on the ' * worst}{scopes[worst]}",
                show_markers=True,
                marker_index=worst,
                colour=worst,
            )
        )
    return Chart(
        model_name(records[0]["model"]),
        Axis("bound / measured constant", "log"),
        Axis("", tick_labels=[title for _, title in order]),
        series,
        annotations=annotations,
        notes=["Median and range over maps, lengths and samples."],
    )


def records_by_figure(records: Sequence[dict[str, Any]]) -> dict[str, Sequence[dict[str, Any]]]:
    """Group the records of one figure; the key is the suffix of its file name, made of the fields that vary."""
    groups = group_by(records, *_FIGURE_KEY)
    varying = [i for i in range(len(_FIGURE_KEY)) if len({key[i] for key in groups}) > 1]
    named: dict[str, Sequence[dict[str, Any]]] = {}
    for key, group in groups.items():
        parts = [
            model_name(str(key[i])) if _FIGURE_KEY[i] == "model" else str(key[i]) for i in varying if key[i] is not None
        ]
        name = "".join("-" + re.sub(r"[^\w.]+", "-", part).strip("-") for part in parts)
        named[name if name not in named else f"{name}-{len(named)}"] = group
    return named
