"""Rank correlations over texts, with intervals and p-values that resample texts rather than rows; calibration.

Arrays have shape (texts,) or (texts, layers). A text has one row per layer, and these rows are not independent:
resamples draw whole texts, permutations permute whole texts. For several layers there are two correlations:

    within    the correlation in each layer, averaged over layers
    pooled    the correlation over all rows; differences between layers alone can cause it, and `expected` is that part

The ranks of a constant are undefined, and so is its correlation; it is never reported as zero. The BCa interval is
computed here because `scipy.stats.bootstrap` returns NaN as soon as one resample is constant, and for a perfect order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri
from scipy.stats import kendalltau, rankdata

from howsmooth.errors import InputError

Record = dict[str, Any]
SCOPES = ("within", "pooled")
MIN_TEXTS = 3


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ with its BCa interval; None if it is undefined, with the reason in `status`.

    Attributes:
        scope: "within" or "pooled".
        texts: Number of texts with both values.
        layers: Number of layers.
        confidence: Confidence of the interval.
        seed: Seed of resamples and permutations.
        status: "fine", "no interval", or "undefined: " and the reason.
        value: Spearman's ρ.
        lower: Lower end of the interval.
        upper: Upper end of the interval.
        p: Two-sided p-value, by permutation of texts.
        expected: Mean of ρ over all permutations, the part due to layers alone; 0 within layers.
        resamples: Number of resamples.
        dropped: Number of constant resamples, which are ignored.
        kendall: Kendall's τ_b.
    """

    scope: str
    texts: int
    layers: int
    confidence: float
    seed: int
    status: str
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    p: float | None = None
    expected: float | None = None
    resamples: int = 0
    dropped: int = 0
    kendall: float | None = None


def rank_correlation(
    x: ArrayLike, y: ArrayLike, *, scope: str = "within", confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Correlation:
    """Correlate x and y over texts, each (texts,) or (texts, layers); texts with a NaN are left out.

    The interval is BCa (Efron 1987) with `resamples` draws of texts. The same seed yields the same draws.

    Example:
        >>> found = rank_correlation([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 6, 5])
        >>> round(found.value, 3), found.lower < found.value <= found.upper
        (0.943, True)
        >>> rank_correlation([1, 1, 1], [1, 2, 3]).status
        'undefined: the predictor is constant'
    """
    if scope not in SCOPES:
        raise InputError(f"expected a scope among {', '.join(SCOPES)}, got {scope!r}")
    check_resampling(confidence, resamples)
    x, y = _columns(x, y)
    n = len(x)
    facts: dict[str, Any] = dict(scope=scope, confidence=confidence, texts=n, layers=x.shape[1], seed=seed)
    if (reason := _undefined(x, y, scope)) is not None:
        return Correlation(status=f"undefined: {reason}", **facts)
    value = float(_spearman(x, y, scope))
    drawn = np.random.default_rng(seed).integers(n, size=(resamples, n))
    draws = _spearman(x[drawn], y[drawn], scope)
    kept = draws[np.isfinite(draws)]
    others = np.array([np.delete(np.arange(n), i) for i in range(n)])
    lower, upper = (
        _bca(value, kept, _spearman(x[others], y[others], scope), confidence) if len(kept) >= 100 else (None, None)
    )
    expected, null = permuted(x, y, scope=scope, permutations=resamples, seed=seed)
    p = float(p_values(np.array([value - expected]), null[None] - expected)[0])
    tau = float(np.mean([kendalltau(a, b).statistic for a, b in zip(_rows(x, scope), _rows(y, scope), strict=True)]))
    return Correlation(
        value=value,
        lower=lower,
        upper=upper,
        p=p,
        expected=expected,
        resamples=resamples,
        dropped=resamples - len(kept),
        kendall=tau,
        status="no interval" if lower is None else "fine",
        **facts,
    )


def check_resampling(confidence: float, resamples: int) -> None:
    """Raise `InputError` unless the confidence is in (0, 1) and there are at least 100 resamples."""
    if not 0 < confidence < 1 or resamples < 100:
        raise InputError(
            f"expected a confidence between 0 and 1 and at least 100 resamples, got {confidence!r} and {resamples!r}"
        )


def permuted(
    x: ArrayLike, y: ArrayLike, *, scope: str = "within", permutations: int = 1000, seed: int = 0
) -> tuple[float, np.ndarray]:
    """Return Spearman's ρ with the texts of y permuted: its mean over all permutations, and (permutations,) samples.

    The permutations depend only on the seed and the number of texts.
    """
    x, y = _columns(x, y)
    n, layers = x.shape
    orders = np.argsort(np.random.default_rng(seed).random((permutations, n)), axis=1)
    a, b = (_centred(_rows(t, scope)) / math.sqrt(1 if scope == "pooled" else layers) for t in (x, y))
    if scope == "pooled":
        a, b = (t.reshape(n, layers).T for t in (a, b))
    products = a.T @ b  # of all pairs of texts, summed over layers; an order picks one for each text
    return float(products.sum() / n), products[np.arange(n), orders].sum(1)


def p_values(observed: np.ndarray, null: np.ndarray, *, together: bool = False) -> np.ndarray:
    """Return two-sided p-values of correlations (k,) from their permutations (k, N), both minus the expected value.

    With `together` each permutation contributes the largest of its k deviations (Westfall and Young's max T), each in
    units of its own standard deviation, since a mean over layers varies less than one layer. The probability that any
    of k true null hypotheses has p ≤ α is then at most α, whatever their dependence.
    """
    spread = null.std(1) if together else np.ones(len(null))
    off, deviations = np.abs(observed) / spread, np.abs(null) / spread[:, None]
    if together:
        deviations = np.broadcast_to(deviations.max(0), deviations.shape)
    return (1 + (deviations >= off[:, None] - 1e-9).sum(1)) / (1 + null.shape[1])


def _rows(x: np.ndarray, scope: str) -> np.ndarray:
    """Reshape (…, texts, layers) to (…, layers, texts), or pooled to (…, 1, texts·layers): the last axis is ranked."""
    return x.reshape(*x.shape[:-2], 1, -1) if scope == "pooled" else x.swapaxes(-1, -2)


def _centred(x: np.ndarray) -> np.ndarray:
    """Return mean ranks along the last axis, centred and normalised; NaN for a constant."""
    off = rankdata(x, axis=-1)
    off -= off.mean(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return off / np.sqrt((off**2).sum(-1, keepdims=True))


def _spearman(x: np.ndarray, y: np.ndarray, scope: str) -> np.ndarray:
    """Return ρ of (…, texts, layers), averaged over layers or pooled: a batched `scipy.stats.spearmanr`."""
    return np.clip((_centred(_rows(x, scope)) * _centred(_rows(y, scope))).sum(-1), -1, 1).mean(-1)


def _bca(value: float, draws: np.ndarray, left_out: np.ndarray, confidence: float) -> tuple[float, float]:
    """Return the ends of the bias-corrected and accelerated interval; `left_out` are the jackknife values."""
    same = np.isclose(draws, value, rtol=0, atol=1e-12)
    below = (draws[~same] < value).sum() + 0.5 * same.sum()
    bias = ndtri((below + 0.5) / (len(draws) + 1))
    left_out = left_out[np.isfinite(left_out)]
    off = left_out.mean() - left_out if len(left_out) else np.zeros(1)
    size = (off**2).sum()
    skew = (off**3).sum() / (6 * size**1.5) if size > 0 else 0.0
    ends = []
    for z in (ndtri((1 - confidence) / 2), ndtri((1 + confidence) / 2)):
        at = bias + z
        ends.append(float(np.quantile(draws, ndtr(bias + at / max(1 - skew * at, 1e-3)))))
    return min(ends), max(ends)


def _columns(x: ArrayLike, y: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return both as (texts, layers), without texts with a missing value."""
    x, y = (np.asarray(t, dtype=float) for t in (x, y))
    if x.shape != y.shape or x.ndim not in (1, 2) or not x.size:
        raise InputError(f"expected x and y of one shape, (texts,) or (texts, layers), got {x.shape} and {y.shape}")
    x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
    complete = np.isfinite(x).all(1) & np.isfinite(y).all(1)
    return x[complete], y[complete]


def _undefined(x: np.ndarray, y: np.ndarray, scope: str) -> str | None:
    if len(x) < MIN_TEXTS:
        return f"{len(x)} texts with both numbers, at least {MIN_TEXTS} are needed"
    for name, t in (("predictor", x), ("outcome", y)):
        flat = (t == t[0]).all(0)
        if flat.any() if scope == "within" else (t == t[0, 0]).all():
            return f"the {name} is constant" + (" in a layer" if scope == "within" and t.shape[1] > 1 else "")
    return None


def reliability(predicted: ArrayLike, achieved: ArrayLike, bins: int = 5) -> list[Record]:
    """Sort texts by prediction into bins of equal size: medians, and achieved/predicted with its central 80 %.

    Predictions have to be positive. There are at most as many bins as texts.

    Example:
        >>> [(b["count"], b["ratio"]) for b in reliability([1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 3.0, 4.0], bins=2)]
        [(2, 2.0), (2, 1.0)]
    """
    predicted, achieved = (np.asarray(t, dtype=float) for t in (predicted, achieved))
    if predicted.shape != achieved.shape or predicted.ndim != 1 or not len(predicted) or bins < 1:
        raise InputError(
            f"expected as many predictions as outcomes, at least one, got {predicted.shape} and "
            f"{achieved.shape} in {bins} bins"
        )
    if not (np.isfinite(predicted).all() and np.isfinite(achieved).all() and (predicted > 0).all()):
        raise InputError("expected finite outcomes and positive predictions, got others")
    order = np.argsort(predicted, kind="stable")
    found = []
    for members in np.array_split(order, min(bins, len(order))):
        low, middle, high = np.quantile(achieved[members] / predicted[members], (0.1, 0.5, 0.9)).tolist()
        found.append(
            {
                "count": len(members),
                "predicted": float(np.median(predicted[members])),
                "achieved": float(np.median(achieved[members])),
                "ratio": middle,
                "ratio_low": low,
                "ratio_high": high,
            }
        )
    return found
