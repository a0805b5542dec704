"""Records of a monitor: constants against training steps, as a table and as charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from howsmooth.records.columns import column, group_by, split
from howsmooth.report.chart import LIPSCHITZ, Axis, Chart, Series
from howsmooth.report.rows import largest_shares, map_name, model_name, number, plural_of
from howsmooth.report.table import Column, Table

_STEP = "training step"
# What is drawn for each layer, with the label of its axis; the second one is of attention alone.
_DRAWN = {"value": f"{LIPSCHITZ}, at least", "largest_logit": "largest logit of attention"}


def split_training(records: Sequence[dict[str, Any]]) -> tuple[Sequence[dict[str, Any]], Sequence[dict[str, Any]]]:
    """Return the records of monitors, and the other ones.

    Example:
        >>> split_training([{"n": 8}, {"n": 8, "training_step": 50}])
        ([{'n': 8, 'training_step': 50}], [{'n': 8}])
    """
    groups = split(records, (step is not None for step in column(records, "training_step")))
    return groups.get(True, []), groups.get(False, [])


def training_charts(records: Sequence[dict[str, Any]]) -> list[Chart]:
    """Return charts against the training step: the constants of each map, and the largest logits.

    Args:
        records: Those of monitors, with a `training_step`.
    """
    charts = []
    groups = group_by(records, "model", "map")
    for (model, name), group in groups.items():
        for y, label in _DRAWN.items():
            if y == "value" or name == next(iter(groups))[1]:
                charts.append(_chart(group, f"{model_name(model)}, {plural_of(name)}", y, label))
    return [chart for chart in charts if chart.series]


def _chart(records: Sequence[dict[str, Any]], title: str, y: str, label: str) -> Chart:
    series = []
    for (layer,), group in group_by(records, "layer").items():
        points = [record for record in group if record.get(y) is not None]
        if points:
            name = map_name(layer, None)
            xs, ys = [record["training_step"] for record in points], [record[y] for record in points]
            series.append(Series(xs, ys, label=name, name=name, linestyle="solid", has_samples=True))
    counts = {len(group) for group in group_by(records, "layer", "training_step").values()}
    lengths = sorted({record["n"] for record in records})
    size = f"n = {lengths[0]}" if len(lengths) == 1 else f"n = {lengths[0]} … {lengths[-1]}"
    return Chart(
        title,
        Axis(_STEP),
        Axis(label, "log" if y == "value" else "linear"),
        series,
        caption=f"One line for each layer, {size}"
        + (f"; medians of {max(counts)} sequences." if max(counts) > 1 else ".")
        + (" Values are attained: the constants are not below them." if y == "value" else ""),
    )


def training_tables(records: Sequence[dict[str, Any]]) -> list[Table]:
    """Return for each model and map the constants of each layer: first, last and largest, with its step.

    Args:
        records: Those of monitors, with a `training_step`.
    """
    tables = []
    for (model, name), group in group_by(records, "model", "map").items():
        steps = [record["training_step"] for record in group]
        tables.append(
            Table(
                f"{model_name(model)} in training: Lip of its {plural_of(name)}, steps {min(steps)} to {max(steps)}",
                [
                    Column("layer", lambda row: "all" if row[0]["layer"] is None else row[0]["layer"], key=True),
                    Column("first", lambda row: number(row[0]["value"]), wrap=False),
                    Column("last", lambda row: number(row[-1]["value"]), style="bold green", wrap=False),
                    Column("largest", lambda row: _at(max(row, key=lambda r: r["value"])), "left", wrap=False),
                    Column(
                        "logit", lambda row: number(row[-1].get("largest_logit"), 3), when=_has(group, "largest_logit")
                    ),
                    Column("entropy", lambda row: number(row[-1].get("entropy"), 3), when=_has(group, "entropy")),
                    Column("sink", _sink, "left", wrap=False, when=_has(group, "sink_share")),
                    Column("worst direction", _direction, "left", min_width=10),
                ],
                list(group_by(sorted(group, key=lambda r: r["training_step"]), "layer").values()),
                caption="Values are attained, so that the constants are not below them; logit (the largest), entropy "
                "(in nats), sink (the largest share of attention that one token gets) and direction are of the last "
                "step.",
            )
        )
    return tables


def _at(record: dict[str, Any]) -> str:
    return f"{number(record['value'], 3)} at {record['training_step']}"


def _sink(row: Sequence[dict[str, Any]]) -> str:
    share = row[-1].get("sink_share")
    return "" if share is None else f"{share:.0%} @{row[-1]['sink_position']}".replace("%", " %")


def _direction(row: Sequence[dict[str, Any]]) -> str:
    found = [f"{word} @{place} {share:.0%}".replace("%", " %") for word, place, share in largest_shares(row[-1])[:1]]
    return found[0].strip() if found else ""


def _has(records: Sequence[dict[str, Any]], name: str) -> bool:
    return any(record.get(name) is not None for record in records)
