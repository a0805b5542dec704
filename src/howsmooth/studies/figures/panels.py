"""Statistics of a figure's records by panel: growth laws, ratios of released to described values, correlations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from scipy.stats import spearmanr

from howsmooth.fits import Law, growth_laws
from howsmooth.records import CURVE

PANEL_FIELDS = ("model", "text", "layer", "head")

PanelKey = tuple[Any, ...]  # the values of PANEL_FIELDS
SeriesKey = tuple[str, str]  # map and quantity


@dataclass(frozen=True)
class Ratio:
    """Ratio of a released number to the described one.

    Attributes:
        median: Median over all samples.
        least: Smallest median of one length.
        most: Largest median of one length.
    """

    median: float
    least: float
    most: float


def panel_of(record: dict[str, Any]) -> PanelKey:
    """Return the panel that a record belongs to: model, text, layer and head."""
    return tuple(record[name] for name in PANEL_FIELDS)


def series_of(record: dict[str, Any]) -> SeriesKey:
    """Return the series of a record within its panel: map and quantity."""
    return record["map"], record["quantity"]


def laws_of(records: Iterable[dict[str, Any]], y: str = "value") -> dict[PanelKey, dict[SeriesKey, Law]]:
    """Return panel -> series -> growth law in n. A law of fewer than four lengths has no exponent.

    Args:
        records: Measurements.
        y: The field that grows.
    """
    found: dict[PanelKey, dict[SeriesKey, Law]] = {}
    for key, law in growth_laws({**record, "value": record[y]} for record in records).items():
        curve = dict(zip(CURVE, key, strict=True))
        found.setdefault(panel_of(curve), {})[series_of(curve)] = law
    return found


def ratios_of(records: Iterable[dict[str, Any]]) -> dict[PanelKey, dict[SeriesKey, Ratio]]:
    """Return panel -> series -> ratio to ‖J‖₂ of the whole layer, for quantities other than ‖J‖₂."""
    described: dict[tuple[PanelKey, int, int], float] = {}  # panel, n, sample -> ‖J‖₂
    others: dict[PanelKey, dict[SeriesKey, dict[int, list[tuple[int, float]]]]] = {}  # … -> n -> (sample, value)
    for record in records:
        panel = panel_of(record)
        if series_of(record) == ("attention", "lipschitz"):
            described[panel, record["n"], record["sample"]] = record["value"]
        elif record["quantity"] != "lipschitz":
            by_length = others.setdefault(panel, {}).setdefault(series_of(record), {})
            by_length.setdefault(record["n"], []).append((record["sample"], record["value"]))
    found: dict[PanelKey, dict[SeriesKey, Ratio]] = {}
    for panel, series in others.items():
        for key, lengths in series.items():
            by_n = {
                n: [
                    value / described[panel, n, sample]
                    for sample, value in pairs
                    if described.get((panel, n, sample), 0) > 0
                ]
                for n, pairs in lengths.items()
            }
            by_n = {n: ratios for n, ratios in by_n.items() if ratios}
            if by_n:
                medians = [median(ratios) for ratios in by_n.values()]
                found.setdefault(panel, {})[key] = Ratio(
                    median(ratio for ratios in by_n.values() for ratio in ratios), min(medians), max(medians)
                )
    return found


def correlations_of(records: Iterable[dict[str, Any]]) -> dict[PanelKey, tuple[float, float | None]]:
    """Return panel -> Spearman's ρ of ‖J‖₂ and mean radius over all inputs, and the mean of ρ at each length."""
    points: dict[PanelKey, dict[int, list[tuple[float, float]]]] = {}
    for record in records:
        if series_of(record) == ("attention", "lipschitz"):
            points.setdefault(panel_of(record), {}).setdefault(record["n"], []).append(
                (record["mean_radius"], record["value"])
            )
    found = {}
    for panel, lengths in points.items():
        overall = _spearman([pair for pairs in lengths.values() for pair in pairs])
        at_each_length = [rho for pairs in lengths.values() if (rho := _spearman(pairs)) is not None]
        if overall is not None:
            mean = sum(at_each_length) / len(at_each_length) if at_each_length else None
            found[panel] = overall, mean
    return found


def _spearman(pairs: list[tuple[float, float]]) -> float | None:
    """Return Spearman's ρ, None for fewer than four pairs or constant values."""
    x, y = zip(*pairs, strict=True)
    if len(pairs) < 4 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(spearmanr(x, y).statistic)
