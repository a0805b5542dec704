"""Rank correlations over texts, with intervals and p-values that resample texts, never rows.

Numbers come as (texts,) or (texts, layers). One text gives one row per layer, and these rows are not independent: a
resample draws whole texts, a permutation exchanges whole texts. Of several layers there are two correlations:

    within    the correlation of each layer by itself, averaged over layers
    pooled    all rows together; it may owe everything to layers that differ, and `expected` says how much they give

A constant has no ranks: its correlation is undefined, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from howsmooth.errors import InputError

SCOPES = ("within", "pooled")
FEWEST = 3  # texts
Statistic = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Correlation:
    """value with its BCa interval; None where it is undefined, and `status` says why.

    p: two-sided, by permutation of texts; None for Kendall's τ. expected: the mean over all permutations, which is what
    layers give by themselves: 0 within layers. dropped: resamples that were constant and do not count.
    """

    method: str
    scope: str
    value: float | None
    lower: float | None
    upper: float | None
    confidence: float
    p: float | None
    expected: float | None
    texts: int
    layers: int
    resamples: int
    dropped: int
    seed: int
    status: str

    def as_record(self) -> dict:
        return asdict(self)


def spearman(x, y, weights=None) -> np.ndarray:
    """ρ of m pairs, ties at their mean rank; with weights (b, m), counts of each pair, one for each row of them.

    >>> round(float(spearman([1, 2, 3, 4], [1, 3, 2, 4])), 6)
    0.8
    """
    x, y, w = _pairs(x, y, weights)
    return _squeezed(_pearson(_ranks(x, w), _ranks(y, w), w), weights)


def kendall(x, y, weights=None) -> np.ndarray:
    """τ_b of m pairs; weights as in `spearman`.

    >>> round(float(kendall([1, 2, 3, 4], [1, 3, 2, 4])), 6)
    0.666667
    """
    x, y, w = _pairs(x, y, weights)
    a, b = (np.sign(t[:, None] - t[None, :]) for t in (x, y))

    def total(of: np.ndarray) -> np.ndarray:
        return np.einsum("bi,bi->b", w @ of, w)

    with np.errstate(invalid="ignore", divide="ignore"):
        return _squeezed(np.clip(total(a * b) / np.sqrt(total(np.abs(a)) * total(np.abs(b))), -1, 1), weights)


METHODS: dict[str, Statistic] = {"spearman": spearman, "kendall": kendall}


def rank_correlation(x, y, *, method: str = "spearman", scope: str = "within", confidence: float = 0.95,
                     resamples: int = 1000, seed: int = 0) -> Correlation:
    """The rank correlation of x and y over texts, each (texts,) or (texts, layers); texts with a NaN do not count.

    The interval is BCa (Efron 1987), of `resamples` draws of texts. The same seed gives the same draws.

    >>> found = rank_correlation([1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 6, 5])
    >>> round(found.value, 3), found.lower < found.value <= found.upper
    (0.943, True)
    >>> rank_correlation([1, 1, 1], [1, 2, 3]).status
    'undefined: the predictor is constant'
    """
    if method not in METHODS or scope not in SCOPES:
        raise InputError(f"expected a method among {', '.join(METHODS)} and a scope among {', '.join(SCOPES)}, got "
                         f"{method!r} and {scope!r}")
    if not 0 < confidence < 1 or resamples < 100:
        raise InputError(f"expected a confidence between 0 and 1 and at least 100 resamples, got {confidence!r} and "
                         f"{resamples!r}")
    x, y = _columns(x, y)
    facts = dict(method=method, scope=scope, confidence=confidence, texts=len(x), layers=x.shape[1], seed=seed)
    if (reason := _undefined(x, y, scope)) is not None:
        return Correlation(value=None, lower=None, upper=None, p=None, expected=None, resamples=0, dropped=0,
                           status=f"undefined: {reason}", **facts)
    statistic = _of_texts(METHODS[method], x, y, scope)
    value = float(statistic(np.ones((1, len(x))))[0])
    draws = statistic(_draws(len(x), resamples, seed))
    kept = draws[np.isfinite(draws)]
    lower, upper = _bca(value, kept, statistic(1 - np.eye(len(x))), confidence) if len(kept) >= 100 else (None, None)
    p = expected = None
    if method == "spearman":
        expected, null = permuted(x, y, scope=scope, permutations=resamples, seed=seed)
        p = float(p_values(np.array([value - expected]), null[None] - expected)[0])
    return Correlation(value=value, lower=lower, upper=upper, p=p, expected=expected, resamples=resamples,
                       dropped=resamples - len(kept), status="fine" if lower is not None else "no interval", **facts)


def permuted(x, y, *, scope: str = "within", permutations: int = 1000, seed: int = 0) -> tuple[float, np.ndarray]:
    """Spearman's ρ with the texts of y exchanged: its mean over all orders, and (permutations,) drawn ones.

    The same orders for all pairs of so many texts.
    """
    x, y = _columns(x, y)
    orders = np.argsort(np.random.default_rng(seed).random((permutations, len(x))), axis=1)
    if scope == "pooled":
        a, b = (_centred(_ranks(t.ravel(), np.ones((1, t.size)))[0]).reshape(t.shape) for t in (x, y))
    else:
        a, b = (np.stack([_centred(_ranks(c, np.ones((1, len(c))))[0]) for c in t.T], 1) / math.sqrt(x.shape[1])
                for t in (x, y))
    products = a @ b.T  # of all pairs of texts, summed over layers; an order picks one for each text
    return float(products.sum() / len(x)), products[np.arange(len(x)), orders].sum(1)


def p_values(observed: np.ndarray, null: np.ndarray, *, together: bool = False) -> np.ndarray:
    """Two-sided p of correlations (k,) from their permutations (k, N), both less what is expected.

    With `together` the largest deviation of the k counts in every permutation (Westfall and Young's max T), each in
    units of its own spread: a mean over layers varies less than one layer. With that, the probability that any of k
    true nulls comes out below α is at most α, however they hang together.
    """
    spread = null.std(1) if together else np.ones(len(null))
    off, deviations = np.abs(observed) / spread, np.abs(null) / spread[:, None]
    if together:
        deviations = np.broadcast_to(deviations.max(0), deviations.shape)
    return (1 + (deviations >= off[:, None] - 1e-9).sum(1)) / (1 + null.shape[1])


def _of_texts(statistic: Statistic, x: np.ndarray, y: np.ndarray, scope: str) -> Callable[[np.ndarray], np.ndarray]:
    """The correlation as a function of how often each text counts, (b, texts)."""
    if scope == "pooled":
        return lambda w: statistic(x.ravel(), y.ravel(), np.repeat(w, x.shape[1], axis=1))
    return lambda w: np.mean([statistic(a, b, w) for a, b in zip(x.T, y.T, strict=True)], axis=0)


def _bca(value: float, draws: np.ndarray, left_out: np.ndarray, confidence: float) -> tuple[float, float]:
    """Ends of the bias-corrected and accelerated interval; left_out: the value without each text in turn."""
    below = (draws < value).sum() + 0.5 * (draws == value).sum()
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


def _draws(texts: int, resamples: int, seed: int) -> np.ndarray:
    """How often each text is drawn, (resamples, texts)."""
    drawn = np.random.default_rng(seed).integers(texts, size=(resamples, texts))
    counts = np.zeros((resamples, texts))
    np.add.at(counts, (np.arange(resamples)[:, None], drawn), 1)
    return counts


def _ranks(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Mean ranks (b, m) of x among itself, each value counted w times; up to a constant."""
    return w @ ((x[:, None] < x[None, :]) + 0.5 * (x[:, None] == x[None, :]))


def _pearson(a: np.ndarray, b: np.ndarray, w: np.ndarray) -> np.ndarray:
    total = w.sum(1, keepdims=True)
    a, b = (t - (w * t).sum(1, keepdims=True) / total for t in (a, b))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip((w * a * b).sum(1) / np.sqrt((w * a * a).sum(1) * (w * b * b).sum(1)), -1, 1)


def _centred(ranks: np.ndarray) -> np.ndarray:
    off = ranks - ranks.mean()
    return off / np.sqrt((off**2).sum())


def _pairs(x, y, weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    return x, y, np.ones((1, len(x))) if weights is None else np.asarray(weights, dtype=float)


def _squeezed(values: np.ndarray, weights) -> np.ndarray:
    return values[0] if weights is None else values


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
        if (flat.any() if scope == "within" else (t == t[0, 0]).all()):
            return f"the {name} is constant" + (" in a layer" if scope == "within" and t.shape[1] > 1 else "")
    return None
