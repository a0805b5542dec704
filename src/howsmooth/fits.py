"""Growth laws: a power law of the constant in n, with intervals, compared with other laws.

All laws are fitted to `log Lip` with Student's t errors (4 degrees of freedom), so that single outliers have little
influence:

    constant          log y = c
    power law         log y = c + α log n
    logarithm         y = a (1 + b log n)
    saturation        log y = c + β log(n / (n + n₀)): a power law that levels off beyond n₀
    broken power law  log y = c + α₁ log n up to n₀, slope α₂ beyond
    none of these     a separate level for every length

They are compared by Akaike's criterion for small samples (AICc). If separate levels have the smallest criterion, none
of the laws describes the growth. Tables, plots, pages and the explorer all show this one result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from howsmooth.errors import InputError
from howsmooth.records import CURVE

__all__ = ["growth_laws", "fit_law", "Law", "MIN_LENGTHS"]

POWER, FREE = "power law", "none of these"
MIN_LENGTHS = 4  # with fewer, two laws can hardly be distinguished
_NU = 4.0  # degrees of freedom of the errors
_MIN_SPREAD = 1e-4  # smaller differences mean nothing: the constants are known to about 1e-3
_EXACT, _WITHIN_NOISE = 1e-7, 1e-5  # change of the log spread at which a fit ends: of the data, of a bootstrap draw
_CACHED_POINTS = 1 << 15  # of a regression; more would not stay in the cache of a processor
_GRID_SIZE = 80  # values of a nonlinear parameter that are tried
_WEAK_EVIDENCE, _STRONG_EVIDENCE = 2.0, 6.0  # differences of the criterion

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """A fitted power law `Lip ≈ constant · n^exponent`, and how it compares with other laws.

    Attributes:
        exponent: The exponent; None if there are fewer than `MIN_LENGTHS` lengths.
        constant: The factor; None if there are fewer than `MIN_LENGTHS` lengths.
        exponent_interval: Bootstrap interval of the exponent; None if no length has several samples.
        constant_interval: Bootstrap interval of the factor; None if no length has several samples.
        confidence: The nominal coverage of the two intervals.
        points: How many values were fitted.
        lengths: How many different lengths they have.
        best: The name of the law with the smallest AICc; None if there are too few points.
        excess: For each law, its AICc minus the smallest one.
        is_power_law: Whether the power law describes the values; None if undecided.
        verdict: The comparison as a phrase, for tables.
    """

    exponent: float | None
    constant: float | None
    exponent_interval: tuple[float, float] | None
    constant_interval: tuple[float, float] | None
    confidence: float
    points: int
    lengths: int
    best: str | None
    excess: dict[str, float]
    is_power_law: bool | None
    verdict: str

    @property
    def shown(self) -> bool:
        """Whether legends and tables may show the exponent: there is one, and no other law fits better."""
        return self.exponent is not None and self.excess.get(POWER, 0.0) < _WEAK_EVIDENCE

    def at(self, n: float) -> float:
        """Return `constant · n^exponent`; raise ValueError if no law was fitted."""
        if self.exponent is None or self.constant is None:
            raise ValueError(f"expected a fitted law, got none ({self.verdict})")
        return self.constant * n**self.exponent

    def as_record(self) -> dict[str, Any]:
        """Return the attributes and `shown` as a dictionary."""
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "shown": self.shown}


def growth_laws(records: Iterable[dict[str, Any]], **options: Any) -> dict[tuple[Any, ...], Law]:
    """Fit a growth law to each curve of the records.

    Zeros, and values with a lower end but no upper end, are left out: the constant may be anywhere above such a value.
    Quantities without an interval are used as they are.

    Args:
        records: Records of kind "measurement". They may be an iterator: only lengths, samples and values are kept.
        **options: Options of `fit_law`: confidence, draws, seed.

    Returns:
        One law per curve; keys are the values of the fields `howsmooth.records.CURVE`.

    Example:
        >>> curve = dict.fromkeys(("model", "map", "layer"), 0)
        >>> records = [{**curve, "n": n, "sample": 0, "value": 2.0 * n**0.5} for n in (8, 16, 32, 64)]
        >>> [round(law.exponent, 3) for law in growth_laws(records).values()]
        [0.5]
    """
    points: dict[tuple[Any, ...], list[tuple[int, float, int]]] = {}
    for record in records:
        value, known = record["value"], record.get("upper") is not None or record.get("lower") is None
        if value is not None and 0 < value < math.inf and known:
            key = tuple(record.get(name) for name in CURVE)
            points.setdefault(key, []).append((record["n"], value, record["sample"]))
    return {
        key: _law(*zip(*curve, strict=True), nested=key[CURVE.index("cutting")] == "prefixes", **options)
        for key, curve in points.items()
    }


@lru_cache(maxsize=1024)
def _law(ns: tuple[int, ...], values: tuple[float, ...], samples: tuple[int, ...], **options: Any) -> Law:
    """Call `fit_law`, with a cache: tables, figures and pages need the laws of the same curves."""
    return fit_law(ns, values, samples, **options)


def fit_law(
    ns: Sequence[int],
    values: Sequence[float],
    samples: Sequence[int] | None = None,
    *,
    nested: bool = False,
    confidence: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> Law:
    """Fit a power law with bootstrap intervals, and compare it with the other laws.

    Args:
        ns: The length of each value, in tokens.
        values: Positive finite values, as many as lengths.
        samples: The sample that each value belongs to; by default the values of a length are numbered in order.
        nested: Whether a sample is one text at all lengths (cutting "prefixes"). The bootstrap then resamples whole
            curves, and each text has a level of its own. Otherwise samples of different lengths are independent, and
            each length is resampled alone.
        confidence: The nominal coverage of the intervals.
        draws: The number of bootstrap draws; 0 for no intervals.
        seed: The seed of the bootstrap.

    Returns:
        The law. With fewer than `MIN_LENGTHS` different lengths its exponent is None.

    Raises:
        InputError: The numbers of lengths, values and samples differ, or a value is not positive and finite.

    Example:
        >>> n = [8, 16, 32, 64, 128, 256] * 3
        >>> values = [2 * k**0.25 * (1 + 0.01 * (i % 5 - 2)) for i, k in enumerate(n)]
        >>> law = fit_law(n, values, [0] * 6 + [1] * 6 + [2] * 6)
        >>> round(law.exponent, 2), law.verdict
        (0.25, 'a power law')
        >>> fit_law([8, 16, 32], [1.0, 2.0, 4.0]).verdict
        'no exponent from 3 lengths, at least 4 are needed'
    """
    n, y, sample = _check_points(ns, values, samples)
    lengths = np.unique(n)
    if len(lengths) < MIN_LENGTHS:
        given = f"{len(lengths)} length{'s' if len(lengths) > 1 else ''}"
        verdict = f"no exponent from {given}, at least {MIN_LENGTHS} are needed"
        return Law(None, None, None, None, confidence, len(n), len(lengths), None, {}, None, verdict)
    x, z = np.log(n), np.log(y)
    center = x.mean()
    texts = _texts(sample) if nested else None
    centred = _centre_texts(z, texts)
    slope, level = _line(x[None] - center, centred[None])
    exponent, constant = float(slope[0]), math.exp(float(level[0]) - float(slope[0]) * center)
    of_exponent, of_constant = _intervals(
        x, z, sample, nested, confidence, draws, seed, center, exponent, float(level[0])
    )
    criteria = _criteria(n, centred, lengths, extra=0 if texts is None else int(texts.max()))
    best, excess, is_power_law, verdict = _compare(criteria)
    return Law(
        exponent,
        constant,
        of_exponent,
        of_constant,
        confidence,
        len(n),
        len(lengths),
        best,
        excess,
        is_power_law,
        verdict,
    )


def _check_points(
    ns: Sequence[int], values: Sequence[float], samples: Sequence[int] | None
) -> tuple[Array, Array, Array]:
    if not len(ns) or len(ns) != len(values) or (samples is not None and len(samples) != len(ns)):
        raise InputError(
            f"expected as many values (and samples) as lengths, got {len(values)} values at {len(ns)} lengths"
        )
    n, y = np.asarray(ns, dtype=float), np.asarray(values, dtype=float)
    if not (n > 0).all() or not (y > 0).all() or not np.isfinite(y).all():
        raise InputError("expected positive finite values at positive lengths: a power law has no zeros")
    if samples is None:  # number the values of each length in order
        counters: dict[int, Iterator[int]] = {}
        samples = [next(counters.setdefault(k, count())) for k in ns]
    return n, y, np.asarray(samples)


def _texts(sample: Array) -> NDArray[np.int64]:
    """Number the samples from 0."""
    return np.unique(sample, return_inverse=True)[1]


def _centre_texts(z: Array, texts: NDArray[np.int64] | None) -> Array:
    """Shift the curve of each text to the common mean; without texts, return z."""
    if texts is None:
        return z
    means = np.bincount(texts, z) / np.bincount(texts)
    return z - means[texts] + means.mean()


def _t_regression(X: Array, z: Array, weights: Array | None = None, start: Array | None = None) -> tuple[Array, Array]:
    """Return coefficients (g, p) and log-likelihoods (g,) of z (g, m) on X (g, m, p) or (1, m, p).

    Iteratively reweighted least squares, for so many rows at once that they stay in the cache. `weights` (g, m) are the
    multiplicities of points in a bootstrap, `start` (m,) the weights of the first iteration.
    """
    rows = max(1, _CACHED_POINTS // z.shape[-1])
    if len(z) > rows:
        parts = [
            _t_regression(
                X if len(X) == 1 else X[first : first + rows],
                z[first : first + rows],
                None if weights is None else weights[first : first + rows],
                start,
            )
            for first in range(0, len(z), rows)
        ]
        coefficients, likelihoods = zip(*parts, strict=True)
        return np.concatenate(coefficients), np.concatenate(likelihoods)
    counts = np.ones(z.shape) if weights is None else weights
    w, total, p = counts if start is None else counts * start, counts.sum(-1), X.shape[-1]
    pairs = (X[..., :, None] * X[..., None, :]).reshape(*X.shape[:-1], p * p)
    before: Any = np.inf
    for _ in range(60):
        A = (w[:, None] @ pairs).reshape(-1, p, p)  # one design for all rows is a plain product
        A += 1e-12 * np.trace(A, axis1=-2, axis2=-1)[:, None, None] * np.eye(p)
        theta = np.linalg.solve(A, ((w * z)[:, None] @ X)[:, 0, :, None])
        r2 = (z - (X @ theta)[..., 0]) ** 2
        s2 = np.maximum((w * r2).sum(-1) / total, _MIN_SPREAD**2)[:, None]
        w = counts * (_NU + 1) / (_NU + r2 / s2)
        if np.abs(np.log(s2) - before).max() < (_EXACT if start is None else _WITHIN_NOISE):
            break
        before = np.log(s2)
    constant = gammaln((_NU + 1) / 2) - gammaln(_NU / 2) - 0.5 * math.log(_NU * math.pi)
    each = constant - 0.5 * np.log(s2) - (_NU + 1) / 2 * np.log1p(r2 / (_NU * s2))
    return np.asarray(theta[..., 0], dtype=np.float64), (counts * each).sum(-1)


def _line(u: Array, z: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Return the slope and the intercept of each row."""
    X, start = np.stack([np.ones_like(u), u], axis=-1), None
    if weights is not None:  # a bootstrap: its rows are near the fit to all points
        level, slope = _t_regression(X, z[:1])[0][0]
        r2 = (z[0] - level - slope * u[0]) ** 2
        start = (_NU + 1) / (_NU + r2 / max(float(np.median(r2)), _MIN_SPREAD**2))
    theta, _ = _t_regression(X, z, weights, start)
    return theta[:, 1], theta[:, 0]


def _intervals(
    x: Array,
    z: Array,
    sample: Array,
    nested: bool,
    confidence: float,
    draws: int,
    seed: int,
    center: float,
    exponent: float,
    level: float,
) -> tuple[tuple[float, float] | None, tuple[float, float] | None]:
    """Return bootstrap intervals of exponent and constant; None if no length has two samples."""
    texts, ids = _texts(sample), np.unique(x, return_inverse=True)[1]
    groups = [np.arange(texts.max() + 1)] if nested else [np.flatnonzero(ids == i) for i in range(ids.max() + 1)]
    sizes = [len(group) for group in groups]
    if max(sizes) < 2 or not draws:
        return None, None
    rng = np.random.default_rng(seed)
    counts = np.zeros((draws, texts.max() + 1 if nested else len(x)))
    for group in groups:
        picked = rng.integers(len(group), size=(draws, len(group))) + len(group) * np.arange(draws)[:, None]
        counts[:, group] = np.bincount(picked.ravel(), minlength=draws * len(group)).reshape(draws, len(group))
    if nested:
        # The slope is fitted without the level of each text; the resampled levels are added to the intercept.
        means = np.bincount(texts, z) / np.bincount(texts)
        levels = counts @ means / counts.sum(1)
        z = z - means[texts]
        counts = counts[:, texts]
    slopes, heights = _line(x[None] - center, np.broadcast_to(z, counts.shape), counts)
    if nested:
        heights = heights + levels
    # The spread of resampled means of k samples is too small by √((k − 1)/k).
    widen = math.sqrt(np.mean([k / (k - 1) for k in sizes if k > 1]))
    slopes = exponent + widen * (slopes - np.mean(slopes))
    heights = level + widen * (heights - np.mean(heights))
    tails = (100 * (1 - confidence) / 2, 100 * (1 + confidence) / 2)
    low, high = np.percentile(slopes, tails)
    bottom, top = np.exp(np.percentile(heights - slopes * center, tails))
    return (float(low), float(high)), (float(bottom), float(top))


def _criteria(n: Array, z: Array, lengths: Array, extra: int) -> dict[str, float]:
    """Return the AICc of every law that there are enough points for; `extra` further levels were fitted."""
    x, xs = np.log(n), np.log(lengths)
    one, m = np.ones_like(x), len(n)
    middle, half = xs.mean(), (xs[-1] - xs[0]) / 2

    def best(columns: Array, offsets: Array | float = 0.0) -> float:
        """Return the largest log-likelihood over a grid of designs (g, m, p)."""
        return float(_t_regression(columns, np.broadcast_to(z - offsets, columns.shape[:2]))[1].max())

    fits: dict[str, tuple[int, float]] = {
        "constant": (1, best(one[None, :, None])),
        POWER: (2, best(np.stack([one, x], -1)[None])),
    }
    bends = np.linspace(-0.99, 0.99, _GRID_SIZE) / max(xs[-1] - middle, middle - xs[0])
    fits["logarithm"] = (2, best(np.ones((_GRID_SIZE, m, 1)), np.log1p(bends[:, None] * (x - middle))))
    if len(lengths) > 3:
        knees = np.exp(np.linspace(xs[0] - half, xs[-1] + half, _GRID_SIZE))[:, None]
        fits["saturation"] = (3, best(np.stack([np.ones((_GRID_SIZE, m)), np.log(n / (n + knees))], -1)))
    if len(lengths) > 4:
        breaks = np.linspace(xs[1], xs[-2], _GRID_SIZE)[:, None]
        fits["broken power law"] = (
            4,
            best(np.stack([np.ones((_GRID_SIZE, m)), np.minimum(x - breaks, 0), np.maximum(x - breaks, 0)], -1)),
        )
    if m > len(lengths):
        fits[FREE] = (len(lengths), best((x[:, None] == xs)[None].astype(float)))
    criteria = {}
    for name, (parameters, likelihood) in fits.items():
        k = parameters + 1 + extra  # 1: the spread
        if m - k - 1 > 0:
            criteria[name] = 2 * k + 2 * k * (k + 1) / (m - k - 1) - 2 * likelihood
    return criteria


def _compare(criteria: dict[str, float]) -> tuple[str | None, dict[str, float], bool | None, str]:
    """Return (best law, excess of each, whether it is a power law, verdict)."""
    if POWER not in criteria:
        return None, {}, None, "too few points to judge"
    best = min(criteria, key=criteria.__getitem__)
    excess = {name: round(value - criteria[best], 3) for name, value in sorted(criteria.items(), key=lambda i: i[1])}
    if excess[POWER] >= _WEAK_EVIDENCE:
        instead = "no law tried fits" if best == FREE else f"a {best} fits better"
        if excess[POWER] >= _STRONG_EVIDENCE:
            return best, excess, False, f"not a power law: {instead} (ΔAICc {excess[POWER]:.1f})"
        return best, excess, None, f"doubtful: {instead} (ΔAICc {excess[POWER]:.1f})"
    # Broken and saturating laws include the power law: only the simpler laws are alternatives to it.
    alternatives = [
        name for name in ("constant", "logarithm") if excess.get(name, math.inf) - excess[POWER] < _WEAK_EVIDENCE
    ]
    if alternatives:
        return best, excess, None, f"indistinguishable from {' or '.join(f'a {name}' for name in alternatives)}"
    return best, excess, True, "a power law"
