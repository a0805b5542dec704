"""Does a predicted change come true in its size, not only in its rank? Reliability by quantiles of the prediction."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from howsmooth.errors import InputError


@dataclass(frozen=True)
class Bin:
    """Texts whose prediction lies in one quantile: medians of both, and achieved/predicted with its middle 80 %."""

    count: int
    predicted: float
    achieved: float
    ratio: float
    ratio_low: float
    ratio_high: float

    def as_record(self) -> dict:
        return asdict(self)


def reliability(predicted, achieved, bins: int = 5) -> list[Bin]:
    """Bins of equal size in the order of the prediction, which has to be positive; fewer where there are few texts.

    >>> [(b.count, b.ratio) for b in reliability([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 3.0, 4.0], bins=2)]
    [(2, 2.0), (2, 1.0)]
    """
    predicted, achieved = (np.asarray(t, dtype=float) for t in (predicted, achieved))
    if predicted.shape != achieved.shape or predicted.ndim != 1 or not len(predicted) or bins < 1:
        raise InputError(f"expected as many predictions as outcomes, at least one, got {predicted.shape} and "
                         f"{achieved.shape} in {bins} bins")
    if not (np.isfinite(predicted).all() and np.isfinite(achieved).all() and (predicted > 0).all()):
        raise InputError("expected finite outcomes and positive predictions, got others")
    order = np.argsort(predicted, kind="stable")
    return [_bin(predicted[members], achieved[members]) for members in np.array_split(order, min(bins, len(order)))]


def _bin(predicted: np.ndarray, achieved: np.ndarray) -> Bin:
    low, middle, high = np.quantile(achieved / predicted, (0.1, 0.5, 0.9)).tolist()
    return Bin(len(predicted), float(np.median(predicted)), float(np.median(achieved)), middle, low, high)
