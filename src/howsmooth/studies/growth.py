"""Growth with length: one power law per measured map."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from howsmooth.lipschitz import Growth, fit_growth

Key = tuple[str, int, int | None]


def growth_of(records: Iterable[dict[str, Any]]) -> dict[Key, Growth]:
    """Fit Lip ~ C n^alpha for each (model, layer, head) that was measured at two lengths or more.

    All samples count as points of their own. Zero and non-finite values have no place on a log scale and
    are left out.
    """
    points: dict[Key, list[tuple[int, float]]] = {}
    for record in records:
        if 0 < record["value"] < math.inf:
            key = (record["model"], record["layer"], record["head"])
            points.setdefault(key, []).append((record["n"], record["value"]))
    return {
        key: fit_growth([n for n, _ in pairs], [value for _, value in pairs])
        for key, pairs in points.items()
        if len({n for n, _ in pairs}) > 1
    }
