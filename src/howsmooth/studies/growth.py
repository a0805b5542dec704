"""Growth with length: a law per measured map, and how sure it is."""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from howsmooth.lipschitz import Growth, Law, fit_growth, fit_law

Key = tuple[str, int, int | None]


def growth_of(records: Iterable[dict[str, Any]]) -> dict[Key, Growth]:
    """Fit Lip ~ C n^alpha for each (model, layer, head) that was measured at two lengths or more.

    All samples count as points of their own. Zero and non-finite values have no place on a log scale and
    are left out; so are values without an upper end, which may lie anywhere below the constant.
    """
    points: dict[Key, list[tuple[int, float]]] = {}
    for record in records:
        if 0 < record["value"] < math.inf and record["upper"] is not None:
            key = (record["model"], record["layer"], record["head"])
            points.setdefault(key, []).append((record["n"], record["value"]))
    return {
        key: fit_growth([n for n, _ in pairs], [value for _, value in pairs])
        for key, pairs in points.items()
        if len({n for n, _ in pairs}) > 1
    }


CURVE = ("model", "checkpoint", "text", "map", "layer", "head", "tokens", "estimator", "cutting")


def fits_of(records: Iterable[dict[str, Any]], **options: Any) -> dict[tuple, Law]:
    """A law with intervals and a verdict for each curve of a study, by the values of `CURVE`.

    Only lengths, samples and values are kept in memory. Curves with fewer than two lengths have no law. A figure and
    the pages that show it ask for the same curves again and again, so the laws fitted last are kept.
    """
    points: dict[tuple, list[tuple[int, float, int]]] = {}
    for record in records:
        if record["value"] is not None and 0 < record["value"] < math.inf:
            key = tuple(record.get(name) for name in CURVE)
            points.setdefault(key, []).append((record["n"], record["value"], record["sample"]))
    return {
        key: _law(*zip(*curve, strict=True), nested=key[-1] == "prefixes", **options)
        for key, curve in points.items()
        if len({n for n, _, _ in curve}) > 1
    }


@lru_cache(maxsize=1024)
def _law(ns: tuple[int, ...], values: tuple[float, ...], samples: tuple[int, ...], **options: Any) -> Law:
    return fit_law(ns, values, samples, **options)
