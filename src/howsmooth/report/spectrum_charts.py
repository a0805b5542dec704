"""Spectra of Jacobians against length and layer: the largest singular values, and how many exceed a threshold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from howsmooth.records.arrays import evenly_spaced
from howsmooth.records.columns import column
from howsmooth.report.chart import PALETTE_SIZE, Axis, Chart, Series
from howsmooth.report.rows import by_quantity, confidence_text, map_name, model_name, none_first

_MAX_LABELLED = 12


def spectrum_charts(records: Sequence[dict[str, Any]]) -> list[Chart]:
    """Return a chart of each model's spectra and one of its counts, if there are records with them.

    A line is one map at one length: the first sample, with its intervals.

    Args:
        records: Measurements, of any quantities.
    """
    charts = []
    for group in by_quantity(records).values():
        if any(column(group, "spectrum")):
            charts.append(_chart(group, "spectrum", Axis("i", "log"), Axis("singular value σ$_i$", "log"), _values))
        if any(column(group, "counts")):
            charts.append(_chart(group, "counts", Axis("t", "log"), Axis("number of σ$_i$ > t", "log"), _counts))
    return charts


def _values(rows: list[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
    return [(float(i), row) for i, row in enumerate(rows, start=1) if row["value"] > 0]


def _counts(rows: list[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
    # A logarithmic axis has no zero.
    return [(row["threshold"], {**row, "lower": row["lower"] or None}) for row in rows if row["value"] > 0]


def _chart(
    records: Sequence[dict[str, Any]],
    field: str,
    x_axis: Axis,
    y_axis: Axis,
    points_of: Callable[[list[dict[str, Any]]], list[tuple[float, dict[str, Any]]]],
) -> Chart:
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in sorted(records, key=lambda record: record["sample"]):
        if record.get(field):
            first.setdefault((record["layer"], record["head"], record["n"]), record)
    keys = sorted(first, key=none_first)
    named = set(evenly_spaced(len(keys), _MAX_LABELLED)) if len(keys) > _MAX_LABELLED else set(range(len(keys)))
    series = []
    for index, (layer, head, n) in enumerate(keys):
        points = points_of(first[layer, head, n][field])
        name = f"{map_name(layer, head)}, n = {n}"
        series.append(
            Series(
                [x for x, _ in points],
                [point["value"] for _, point in points],
                [point["lower"] for _, point in points],
                [point["upper"] for _, point in points],
                label=name if index in named else "",
                name=name,
                linestyle="solid",
                show_markers=True,
                colour=index if len(keys) <= PALETTE_SIZE else None,
            )
        )
    return Chart(
        f"{model_name(records[0]['model'])}, {records[0]['map']}",
        x_axis,
        y_axis,
        series,
        legend_title="" if len(named) == len(keys) else f"{len(named)} of {len(keys)} maps named",
        confidence=confidence_text(records).removesuffix(" sure"),
        caption="Each line is one map at one length, its first sample, with intervals that hold together.",
    )
