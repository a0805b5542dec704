"""Charts of attacks: worst cases, certified balls, perturbed features, edited texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from howsmooth.records.columns import group_by
from howsmooth.report.chart import Axis, Chart, Series
from howsmooth.report.charts import LENGTH_LABEL, LIPSCHITZ_LABEL, is_drawable, samples_series
from howsmooth.report.rows import map_name, model_name

Records = Sequence[dict[str, Any]]


def worst_case_charts(records: Records) -> list[Chart]:
    """Return the largest constant found within a set and that of the text, against n, one chart for each model."""
    charts = []
    for (model, within), group in group_by(records, "model", "within").items():
        series = []
        for index, (key, of_map) in enumerate(group_by(group, "layer", "head").items()):
            texts = [{"n": record["n"], **record["on_text"]} for record in of_map]
            series += [
                samples_series(of_map, f"{map_name(*key)}: found", colour=index, marker_index=index),
                samples_series(
                    texts, f"{map_name(*key)}: text", colour=index, marker_index=index, linestyle="dashed", **_HOLLOW
                ),
            ]
        lengths = sorted({record["n"] for record in group})
        title = f"{model_name(model)}: worst case within {within}"
        charts.append(Chart(title, Axis(LENGTH_LABEL, "log", lengths), Axis(LIPSCHITZ_LABEL, "log"), series))
    return charts


def ball_charts(records: Records) -> list[Chart]:
    """Return the certified and the largest found constant of balls against their radius, one chart for each model."""
    charts = []
    for (model,), group in group_by(records, "model").items():
        series = []
        for index, (key, of_map) in enumerate(group_by(group, "layer", "head").items()):
            found = [{**record, "found": record["found"]["value"]} for record in of_map]
            style = {"colour": index, "marker_index": index}
            name = map_name(*key)
            series += [
                _samples(of_map, "eps", "certified", f"{name}: certified", linestyle="dashed", **style, **_HOLLOW),
                _samples(found, "eps", "found", f"{name}: found", **style),
            ]
        charts.append(Chart(model_name(model), Axis("radius ε", "log"), Axis(LIPSCHITZ_LABEL, "log"), series))
    return charts


def feature_charts(records: Records) -> list[Chart]:
    """Return the gain of each attack as a share of σ₁ against the budget, over all maps and samples."""
    charts = []
    shares = [
        {
            **record,
            "attack": record["attack"]["name"],
            "objective": record["objective"]["name"],
            "of_sigma": record["gain"] / record["sigma"]["value"],
        }
        for record in records
        if record["gain"] and record["sigma"]["value"]
    ]
    for (model, name, objective), group in group_by(shares, "model", "map", "objective").items():
        series = [
            _samples(of_attack, "share", "of_sigma", attack)
            for (attack,), of_attack in group_by(group, "attack").items()
        ]
        title = f"{model_name(model)}, {name}: {objective}"
        charts.append(Chart(title, Axis("budget (share)", "log"), Axis("gain / σ₁", "log"), series))
    return charts or [_EMPTY]


def token_charts(records: Records) -> list[Chart]:
    """Return what each attack on a text attained against its calls; marks of failures are hollow."""
    charts = []
    for (model,), group in group_by(records, "model").items():
        series = []
        named = [{**record, "method": record["method"]["name"]} for record in group]
        for index, ((method,), of_method) in enumerate(group_by(named, "method").items()):
            for success in (True, False):
                drawn = [r for r in of_method if (r["success"] and r["verified"]) == success and r["value"] is not None]
                style: dict[str, Any] = {"marker_index": index, "colour": index, "hollow_markers": not success}
                label = method if success or len(drawn) == len(of_method) else ""
                if drawn:
                    series.append(
                        Series(
                            [r["calls"] for r in drawn],
                            [r["value"] for r in drawn],
                            label=label,
                            show_markers=True,
                            **style,
                        )
                    )
        notes = ["hollow: not successful, or not verified"]
        y = Axis(f"objective: {group[0]['objective']['name']}")
        charts.append(Chart(model_name(model), Axis("model calls", integer_ticks=True), y, series, notes=notes))
    return charts


_HOLLOW: dict[str, Any] = {"hollow_markers": True}
_EMPTY = Chart("attacks", Axis(""), Axis(""), message="no attack changed the output by a finite amount")


def _samples(records: Records, x: str, y: str, label: str, **style: Any) -> Series:
    """Return the points that a logarithmic scale can show, with a line through their medians."""
    drawn = [record for record in records if is_drawable(record, y) and record[x] > 0]
    options: dict[str, Any] = {"has_samples": True, "show_markers": True, "linestyle": "solid", **style}
    return Series([record[x] for record in drawn], [record[y] for record in drawn], label=label, **options)
