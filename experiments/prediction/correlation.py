"""Rank correlations over texts, with intervals and p-values that resample texts, never rows; calibration.

Numbers come as (texts,) or (texts, layers). One text gives one row per layer, and these rows are not independent: a
resample draws whole texts, a permutation exchanges whole texts. Of several layers there are two correlations:

    within    the correlation of each layer by itself, averaged over layers
    pooled    all rows together; it may be due to differences between layers alone, and `expected` says how much

A constant has no ranks: its correlation is undefined, never zero. That is why the BCa interval is computed here:
`scipy.stats.bootstrap` returns NaN as soon as one resample is constant, and NaN for a perfect order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import kendalltau, rankdata

from howsmooth.errors import InputError

Record = dict[str, Any]
SCOPES = ("within", "pooled")
FEWEST = 3  # texts


@dataclass(frozen=True)
class Correlation:
    """Spearman's ρ with its BCa interval; None where it is undefined, and `status` says why.

    p: two-sided, by permutation of texts. expected: the mean over all permutations, which is what layers give by
    themselves: 0 within layers. dropped: resamples that were constant and do not count. kendall: τ_b, likewise.
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
    x, y, *, scope: str = "within", confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> Correlation:
    """Correlate x and y over texts, each (texts,) or (texts, layers); texts with a NaN do not count.

    The interval is BCa (Efron 1987), of `resamples` draws of texts. The same seed gives the same draws.

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
    if not 0 < confidence < 1 or resamples < 100:
        raise InputError(
            f"expected a confidence between 0 and 1 and at least 100 resamples, got {confidence!r} and {resamples!r}"
        )


def permuted(x, y, *, scope: str = "within", permutations: int = 1000, seed: int = 0) -> tuple[float, np.ndarray]:
    """Spearman's ρ with the texts of y exchanged: its mean over all orders, and (permutations,) drawn ones.

    The same orders for all pairs of so many texts.
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
    """Two-sided p of correlations (k,) from their permutations (k, N), both less what is expected.

    With `together` the largest deviation of the k counts in every permutation (Westfall and Young's max T), each in
    units of its own spread: a mean over layers varies less than one layer. With that, the probability that any of k
    true nulls comes out below α is at most α, however they depend on each other.
    """
    spread = null.std(1) if together else np.ones(len(null))
    off, deviations = np.abs(observed) / spread, np.abs(null) / spread[:, None]
    if together:
        deviations = np.broadcast_to(deviations.max(0), deviations.shape)
    return (1 + (deviations >= off[:, None] - 1e-9).sum(1)) / (1 + null.shape[1])


def _rows(x: np.ndarray, scope: str) -> np.ndarray:
    """(…, texts, layers) as what is ranked together, last: (…, layers, texts), or (…, 1, texts·layers) pooled."""
    return x.reshape(*x.shape[:-2], 1, -1) if scope == "pooled" else x.swapaxes(-1, -2)


def _centred(x: np.ndarray) -> np.ndarray:
    """Mean ranks along the last axis, centred and of length 1; NaN for a constant."""
    off = rankdata(x, axis=-1)
    off -= off.mean(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return off / np.sqrt((off**2).sum(-1, keepdims=True))


def _spearman(x: np.ndarray, y: np.ndarray, scope: str) -> np.ndarray:
    """ρ of (…, texts, layers), averaged over layers or pooled: `scipy.stats.spearmanr` for many samples at once."""
    return np.clip((_centred(_rows(x, scope)) * _centred(_rows(y, scope))).sum(-1), -1, 1).mean(-1)


def _bca(value: float, draws: np.ndarray, left_out: np.ndarray, confidence: float) -> tuple[float, float]:
    """Ends of the bias-corrected and accelerated interval; left_out: the value without each text in turn."""
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


def _columns(x, y) -> tuple[np.ndarray, np.ndarray]:
    """Both as (texts, layers), texts with a missing number left out."""
    x, y = (np.asarray(t, dtype=float) for t in (x, y))
    if x.shape != y.shape or x.ndim not in (1, 2) or not x.size:
        raise InputError(f"expected x and y of one shape, (texts,) or (texts, layers), got {x.shape} and {y.shape}")
    x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
    there = np.isfinite(x).all(1) & np.isfinite(y).all(1)
    return x[there], y[there]


def _undefined(x: np.ndarray, y: np.ndarray, scope: str) -> str | None:
    if len(x) < FEWEST:
        return f"{len(x)} texts with both numbers, {FEWEST} are the fewest"
    for name, t in (("predictor", x), ("outcome", y)):
        flat = (t == t[0]).all(0)
        if flat.any() if scope == "within" else (t == t[0, 0]).all():
            return f"the {name} is constant" + (" in a layer" if scope == "within" and t.shape[1] > 1 else "")
    return None


def reliability(predicted, achieved, bins: int = 5) -> list[Record]:
    """Bins of equal size in the order of the prediction: medians, and achieved/predicted with its middle 80 %.

    Predictions have to be positive. There are fewer bins where there are fewer texts.

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
