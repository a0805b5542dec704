"""Spectra of Jacobians against length and layer: the largest singular values, and how many exceed a threshold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from howsmooth.records.arrays import evenly_spaced
from howsmooth.records.columns import column
from howsmooth.report.chart import PALETTE_SIZE, Axis, Chart, Series
from howsmooth.report.rows import by_quantity, confidence_text, map_name, model_name, none_first


def spectrum_charts(records: Sequence[dict[str, Any]]) -> list[Chart]:
    """Return charts of spectra, and of counts, if there are records with them: at most six maps, six lines each.

    A line is one map at one length: the first sample, with its intervals.

    Args:
        records: Measurements, of any quantities.
    """
    charts: list[Chart] = []
    for group in by_quantity(records).values():
        if any(column(group, "spectrum")):
            charts += _charts(group, "spectrum", Axis("i", "log"), Axis("singular value σ$_i$", "log"), _values)
        if any(column(group, "counts")):
            charts += _charts(group, "counts", Axis("t", "log"), Axis("number of σ$_i$ > t", "log"), _counts)
    return charts


def _values(rows: list[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
    return [(float(i), row) for i, row in enumerate(rows, start=1) if row["value"] > 0]


def _counts(rows: list[dict[str, Any]]) -> list[tuple[float, dict[str, Any]]]:
    # A logarithmic axis has no zero.
    return [(row["threshold"], {**row, "lower": row["lower"] or None}) for row in rows if row["value"] > 0]


def _charts(
    records: Sequence[dict[str, Any]],
    field: str,
    x_axis: Axis,
    y_axis: Axis,
    points_of: Callable[[list[dict[str, Any]]], list[tuple[float, dict[str, Any]]]],
) -> Iterator[Chart]:
    """Yield a chart of each map, whose lines are lengths; with one length, one chart, whose lines are maps."""
    first: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in sorted(records, key=lambda record: record["sample"]):
        if record.get(field):
            first.setdefault((record["layer"], record["head"], record["n"]), record)
    keys = sorted(first, key=none_first)
    by_map = len({n for *_, n in keys}) > 1
    groups: dict[str, list[tuple[Any, ...]]] = {}
    for layer, head, n in keys:
        groups.setdefault(map_name(layer, head) if by_map else f"n = {n}", []).append((layer, head, n))
    for index in evenly_spaced(len(groups), PALETTE_SIZE):
        name, members = list(groups.items())[index]
        shown = [members[i] for i in evenly_spaced(len(members), PALETTE_SIZE)]
        series = []
        for colour, (layer, head, n) in enumerate(shown):
            points = points_of(first[layer, head, n][field])
            label = f"n = {n}" if by_map else map_name(layer, head)
            series.append(
                Series(
                    [x for x, _ in points],
                    [point["value"] for _, point in points],
                    [point["lower"] for _, point in points],
                    [point["upper"] for _, point in points],
                    label=label,
                    name=label,
                    linestyle="solid",
                    show_markers=True,
                    colour=colour,
                )
            )
        left_out = [
            *([f"{PALETTE_SIZE} of {len(groups)} maps"] if len(groups) > PALETTE_SIZE else []),
            *([f"{len(shown)} of {len(members)} lines"] if len(shown) < len(members) else []),
        ]
        yield Chart(
            f"{model_name(records[0]['model'])}, {records[0]['map']}, {name}",
            x_axis,
            y_axis,
            series,
            legend_title="; ".join(left_out),
            confidence=confidence_text(records).removesuffix(" sure"),
            caption="Each line is one map at one length, its first sample, with intervals that hold together.",
        )
