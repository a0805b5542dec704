"""What a figure's records say: laws, how far as released is from as described, and whether the radius matters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

from scipy.stats import spearmanr

from howsmooth.fits import Law, growth_laws
from howsmooth.records import CURVE

PANEL = ("model", "text", "layer", "head")
SERIES = ("map", "quantity")


@dataclass(frozen=True)
class Ratio:
    """A released number over the described one, sample by sample: the median, and the extremes of those by length."""

    median: float
    least: float
    most: float


def panel_of(record: dict[str, Any]) -> tuple:
    return tuple(record[name] for name in PANEL)


def series_of(record: dict[str, Any]) -> tuple[str, str]:
    return record["map"], record["quantity"]


def laws_of(records: Iterable[dict[str, Any]], y: str = "value") -> dict[tuple, dict[tuple, Law]]:
    """Panel → series → law in n. A law of fewer than four lengths has no exponent."""
    found: dict[tuple, dict[tuple, Law]] = {}
    for key, law in growth_laws({**record, "value": record[y]} for record in records).items():
        at = dict(zip(CURVE, key, strict=True))
        found.setdefault(panel_of(at), {})[series_of(at)] = law
    return found


def ratios_of(records: Iterable[dict[str, Any]]) -> dict[tuple, dict[tuple, Ratio]]:
    """Panel → series that is not described → its ratio to the described constant of the whole layer."""
    described: dict[tuple, float] = {}
    others: dict[tuple, dict[tuple, dict[int, list[tuple[int, float]]]]] = {}
    for record in records:
        panel, place = panel_of(record), (record["n"], record["sample"])
        if series_of(record) == ("attention", "lipschitz"):
            described[panel, place] = record["value"]
        elif record["quantity"] != "lipschitz":
            at = others.setdefault(panel, {}).setdefault(series_of(record), {})
            at.setdefault(record["n"], []).append((record["sample"], record["value"]))
    found: dict[tuple, dict[tuple, Ratio]] = {}
    for panel, series in others.items():
        for key, lengths in series.items():
            by_n = {
                n: [
                    value / described[panel, (n, sample)]
                    for sample, value in pairs
                    if described.get((panel, (n, sample)), 0) > 0
                ]
                for n, pairs in lengths.items()
            }
            by_n = {n: ratios for n, ratios in by_n.items() if ratios}
            if by_n:
                middles = [median(ratios) for ratios in by_n.values()]
                found.setdefault(panel, {})[key] = Ratio(
                    median(r for some in by_n.values() for r in some), min(middles), max(middles)
                )
    return found


def correlations_of(records: Iterable[dict[str, Any]]) -> dict[tuple, tuple[float, float | None]]:
    """Panel → Spearman's ρ of Lip and mean radius, over all inputs, and the mean of those at equal n."""
    points: dict[tuple, dict[int, list[tuple[float, float]]]] = {}
    for record in records:
        if series_of(record) == ("attention", "lipschitz"):
            points.setdefault(panel_of(record), {}).setdefault(record["n"], []).append(
                (record["mean_radius"], record["value"])
            )
    found = {}
    for panel, lengths in points.items():
        whole = _rank([pair for pairs in lengths.values() for pair in pairs])
        each = [rho for pairs in lengths.values() if (rho := _rank(pairs)) is not None]
        if whole is not None:
            found[panel] = whole, sum(each) / len(each) if each else None
    return found


def _rank(pairs: list[tuple[float, float]]) -> float | None:
    x, y = zip(*pairs, strict=True)
    if len(pairs) < 4 or len(set(x)) < 2 or len(set(y)) < 2:
        return None
    return float(spearmanr(x, y).statistic)
