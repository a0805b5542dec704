"""Growth with length, as a power law."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from howsmooth.errors import InputError


@dataclass(frozen=True)
class Growth:
    """Lip ≈ constant · n^exponent, fitted in logarithms; the error is one standard error (NaN with two points)."""

    exponent: float
    constant: float
    exponent_error: float
    points: int

    def at(self, n: float) -> float:
        return self.constant * n**self.exponent


def fit_growth(ns: Sequence[int], values: Sequence[float]) -> Growth:
    """The least-squares line through (log n, log Lip), each measurement a point of its own.

    >>> fit = fit_growth([16, 64, 256], [2.0, 4.0, 8.0])
    >>> round(fit.exponent, 12), round(fit.constant, 12)
    (0.5, 0.5)
    """
    if len(ns) != len(values) or len(set(ns)) < 2:
        raise InputError(f"expected as many values as lengths and at least two different lengths, got {len(values)} "
                         f"values at lengths {sorted(set(ns))}")
    n, y = np.asarray(ns, dtype=float), np.asarray(values, dtype=float)
    if not (n > 0).all() or not (y > 0).all() or not np.isfinite(y).all():
        raise InputError("expected positive finite values at positive lengths: a power law has no zeros")
    u = np.log(n) - np.log(n).mean()
    w = np.log(y)
    exponent = float(u @ w / (u @ u))
    rest = w - w.mean() - exponent * u
    error = math.sqrt(float(rest @ rest) / (len(n) - 2) / float(u @ u)) if len(n) > 2 else math.nan
    return Growth(exponent, float(np.exp(w.mean() - exponent * np.log(n).mean())), error, len(n))
