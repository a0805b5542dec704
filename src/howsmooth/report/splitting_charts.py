"""Charts of splitting that have the form of data: kinds of maps that split, and repeated tokens of a text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from howsmooth.records.columns import group_by
from howsmooth.report.chart import Annotation, Axis, Chart, Series
from howsmooth.report.rows import model_name

Records = Sequence[dict[str, Any]]
_LARGEST_RATIO = 1e9  # a larger ratio stands for ∞


def cases_charts(records: Records) -> list[Chart]:
    """Return the ratio of each case, in the order of the table; those that split are right of 1."""
    rows = list(reversed(records))
    finite = [(row, r) for row, r in enumerate(rows) if r["ratio"] is not None and 0 < r["ratio"] <= _LARGEST_RATIO]
    left, right = min(r["ratio"] for _, r in finite), max(r["ratio"] for _, r in finite)
    series = [Series([1, 1], [-0.5, len(rows) - 0.5], linestyle="solid", linewidth=0.7, colour="foreground")]
    for splits in (True, False):
        drawn = [(r["ratio"], row) for row, r in finite if r["splits"] == splits]
        series.append(
            Series(
                [ratio for ratio, _ in drawn],
                [row for _, row in drawn],
                label="splits" if splits else "does not split",
                show_markers=True,
                colour=0 if splits else "muted",
                marker_index=0 if splits else 1,
            )
        )
    off_scale = [
        Annotation(left, row, "0", "left") if r["ratio"] == 0 else Annotation(right, row, "∞", "right")
        for row, r in enumerate(rows)
        if (row, r) not in finite
    ]
    labels = [f"{r['map']}: {r['where']}" for r in rows]
    x = Axis("max$_i$ ‖∂$_1$G(x$_i$, μ)‖ / ‖D‖", "log")
    return [Chart("Which maps split?", x, Axis("", tick_labels=labels), series, annotations=off_scale)]


def copies_charts(records: Records) -> list[Chart]:
    """Return the change of the constant against the position of the repeated token, one chart for each layer."""
    names = {"next_over_before": "next position", "kept_over_before": "kept position"}
    charts = []
    for (model, layer, n), group in group_by(records, "model", "layer", "n").items():
        positions = [record["position"] for record in group]
        series = [Series([0, max(positions)], [1, 1], linestyle="solid", linewidth=0.7, colour="foreground")]
        series += [
            Series(positions, [record[which] for record in group], label=label, has_samples=True, show_markers=True)
            for which, label in names.items()
        ]
        x = Axis("position of the repeated token", integer_ticks=True)
        y = Axis(f"Lip with {group[0]['copies']} copies / Lip before")
        charts.append(Chart(f"{model_name(model)}, layer {layer}, n = {n}", x, y, series))
    return charts
