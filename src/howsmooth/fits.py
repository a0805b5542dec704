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
from howsmooth.records.columns import fields

__all__ = ["growth_laws", "fit_law", "Law", "MIN_LENGTHS"]

POWER, FREE = "power law", "none of these"
MIN_LENGTHS = 4  # with fewer, two laws can hardly be distinguished
POINT = (*CURVE, "n", "sample", "value", "lower", "upper")  # the fields of a record that its law depends on
_NU = 4.0  # degrees of freedom of the errors
_MIN_SPREAD = 1e-4  # smaller differences mean nothing: the constants are known to about 1e-3
_EXACT, _WITHIN_NOISE = 1e-7, 1e-5  # change of the log spread at which a fit ends: of the data, of a bootstrap draw
_ROUGH, _NEAR = 1e-4, 0.01  # such a fit is near enough to the end to leave out those with a smaller log-likelihood
_MANY_POINTS = 256  # draws of more points are fitted by an expansion about the fit to all points
_MAX_CHANGE, _MAX_ROOT_STEPS = 0.6, 30  # of an expansion: the change in units of the spread, the number of steps
_MAX_COUNTS, _MAX_KEPT = 1 << 22, 1 << 24  # multiplicities that are drawn at once, and that are kept
_CACHED_POINTS = 1 << 15  # of a regression; more would not stay in the cache of a processor
_GRID_SIZE = 80  # values of a nonlinear parameter that are tried
_WEAK_EVIDENCE, _STRONG_EVIDENCE = 2.0, 6.0  # differences of the criterion

Array = NDArray[Any]


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
    return laws_of_points(fields(records, *POINT), **options)


def laws_of_points(found: Iterable[tuple[Any, ...]], **options: Any) -> dict[tuple[Any, ...], Law]:
    """Fit a growth law to each curve, from the fields `POINT` of each record: as `growth_laws`."""
    points: dict[tuple[Any, ...], list[tuple[int, float, int]]] = {}
    for *key, n, sample, value, lower, upper in found:
        if value is not None and 0 < value < math.inf and (upper is not None or lower is None):
            points.setdefault(tuple(key), []).append((n, value, sample))
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
    line = np.stack([np.ones_like(x), x - center], axis=-1)
    texts = _texts(sample) if nested else None
    centred = _centre_texts(z, texts)
    level, exponent = map(float, _t_regression(line[None], centred[None])[0][0])
    constant = math.exp(level - exponent * center)
    of_exponent, of_constant = None, None
    if draws and (found := _bootstrap(line, z, sample, nested, draws, seed)) is not None:
        slopes, levels = exponent + found[1], level + found[0]
        tails = (100 * (1 - confidence) / 2, 100 * (1 + confidence) / 2)
        low, high = np.percentile(slopes, tails)
        bottom, top = np.exp(np.percentile(levels - slopes * center, tails))
        of_exponent, of_constant = (float(low), float(high)), (float(bottom), float(top))
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


def _t_regression(
    X: Array, z: Array, counts: Array | None = None, start: Array | None = None, tolerance: float = _EXACT
) -> tuple[Array, Array, Array]:
    """Return coefficients (g, p), spreads (g,) and log-likelihoods (g,) of z (g, m) on X (g, m, p) or (1, m, p).

    Iteratively reweighted least squares, for so many rows at once that they stay in the cache. `counts` (g, m) are the
    multiplicities of points in a bootstrap, `start` (m,) the weights of the first iteration. The iteration ends when
    the logarithm of the spread changes by less than the tolerance.
    """
    rows = max(1, _CACHED_POINTS // z.shape[-1])
    if len(z) > rows:
        parts = [
            _t_regression(
                X if len(X) == 1 else X[first : first + rows],
                z[first : first + rows],
                None if counts is None else counts[first : first + rows],
                start,
                tolerance,
            )
            for first in range(0, len(z), rows)
        ]
        coefficients, spreads, likelihoods = map(np.concatenate, zip(*parts, strict=True))
        return coefficients, spreads, likelihoods
    counts = np.ones(z.shape) if counts is None else counts
    w, p = counts if start is None else counts * start, X.shape[-1]
    columns = np.ascontiguousarray(np.swapaxes(X, -1, -2))
    pairs = (columns[..., :, None, :] * columns[..., None, :, :]).reshape(len(X), p * p, -1)
    before: Any = np.inf
    for _ in range(60):
        A = _products(pairs, w).reshape(-1, p, p)
        A += 1e-12 * np.trace(A, axis1=-2, axis2=-1)[:, None, None] * np.eye(p)
        theta = np.linalg.solve(A, _products(columns, w * z)[..., None])
        r2 = (z - _products(X, theta[..., 0])) ** 2
        # The sum of the weights is that of the counts at the end. Divided by it, the iteration converges faster.
        s2 = np.maximum((w * r2).sum(-1) / w.sum(-1), _MIN_SPREAD**2)[:, None]
        w = counts * (_NU + 1) / (_NU + r2 / s2)
        if np.abs(np.log(s2) - before).max() < tolerance:
            break
        before = np.log(s2)
    constant = gammaln((_NU + 1) / 2) - gammaln(_NU / 2) - 0.5 * math.log(_NU * math.pi)
    each = constant - 0.5 * np.log(s2) - (_NU + 1) / 2 * np.log1p(r2 / (_NU * s2))
    return np.asarray(theta[..., 0], dtype=np.float64), np.sqrt(s2[:, 0]), (counts * each).sum(-1)


def _products(matrices: Array, vectors: Array) -> Array:
    """Return the product of each matrix (g, k, m), or of the one matrix (1, k, m), with a vector (g, m)."""
    return vectors @ matrices[0].T if len(matrices) == 1 else (matrices @ vectors[..., None])[..., 0]


def _bootstrap(line: Array, z: Array, sample: Array, nested: bool, draws: int, seed: int) -> tuple[Array, Array] | None:
    """Return deviations of level and slope from the fit, one each per draw; None if no length has two samples."""
    texts, ids = _texts(sample), np.unique(line[:, 1], return_inverse=True)[1]
    groups = [np.arange(texts.max() + 1)] if nested else [np.flatnonzero(ids == i) for i in range(ids.max() + 1)]
    sizes = tuple(map(len, groups))
    if max(sizes) < 2:
        return None
    drawn = _resamples if draws * sum(sizes) > _MAX_KEPT else _kept_resamples
    shifts: Array | float = 0.0
    if nested:
        # The slope is fitted without the level of each text; the resampled levels are added to the intercept.
        means = np.bincount(texts, z) / np.bincount(texts)
        z = z - means[texts]
        shifts = np.concatenate([counts @ means / len(means) for _, _, counts in drawn(sizes, draws, seed)])
    fit, spread, _ = _t_regression(line[None], z[None])
    found = None
    if len(z) > _MANY_POINTS:
        terms = _score_expansion(line[:, 1], (z - line @ fit[0]) / spread[0], fixed=spread[0] <= _MIN_SPREAD)
        if nested:
            terms = np.stack([np.bincount(texts, column) for column in terms.T], axis=-1)
        sums = np.zeros((draws, terms.shape[1]))
        for group, rows, counts in drawn(sizes, draws, seed):
            sums[rows] += counts @ terms[groups[group]].astype(np.float32)
        found = _roots(sums.reshape(draws, 3, -1), terms.sum(0).reshape(3, -1))
    if found is None:
        weights = np.zeros((draws, sum(sizes)), np.uint8)
        for group, rows, counts in drawn(sizes, draws, seed):
            weights[rows, groups[group]] = counts
        r2 = (z - line @ fit[0]) ** 2
        start = (_NU + 1) / (_NU + r2 / max(float(np.median(r2)), _MIN_SPREAD**2))  # draws are near the fit
        weights = weights[:, texts] if nested else weights
        found = _t_regression(line[None], np.broadcast_to(z, weights.shape), weights, start, _WITHIN_NOISE)[0]
    else:
        found *= spread[0]
    levels, slopes = found[:, 0] + shifts, found[:, 1]
    # The spread of resampled means of k samples is too small by √((k − 1)/k).
    widen = math.sqrt(np.mean([k / (k - 1) for k in sizes if k > 1]))
    return widen * (levels - levels.mean()), widen * (slopes - slopes.mean())


def _resamples(sizes: tuple[int, ...], draws: int, seed: int) -> Iterator[tuple[int, slice, Array]]:
    """Yield how often each member of each group is drawn, as (group, draws, counts), for some draws at a time."""
    rng = np.random.default_rng(seed)
    for group, size in enumerate(sizes):
        step = max(1, _MAX_COUNTS // size)
        for first in range(0, draws, step):
            count = min(step, draws - first)
            picked = rng.integers(size, size=(count, size)) + size * np.arange(count)[:, None]
            counts = np.bincount(picked.ravel(), minlength=count * size).reshape(count, size)
            yield group, slice(first, first + count), counts.astype(np.float32)


@lru_cache(maxsize=1)
def _kept_resamples(sizes: tuple[int, ...], draws: int, seed: int) -> list[tuple[int, slice, Array]]:
    """Return `_resamples`, for the curves of a study, which have the same samples at the same lengths."""
    return list(_resamples(sizes, draws, seed))


def _score_expansion(x: Array, u: Array, fixed: bool) -> Array:
    """Return the second-order expansion (m, 30) of the score of each point about the fit.

    The score has three parts, f = ψ(v), x ψ(v) and v ψ(v) − 1, of which the sums over the points vanish at the maximum
    of the likelihood. There ψ(v) = (ν + 1) v/(ν + v²), v = (u − a − b x) e^(−t) is a residual in units of the spread, u
    that of the fit to all points, and (a, b, t) are the changes of level, slope and logarithm of the spread. With
    h = a + b x and g = f' + u f'', to second order,

        f(v) = f − f' h − u f' t + f'' h²/2 + g h t + u g t²/2.

    A draw is a sum of points with multiplicities. Its expansion is the same sum of the rows, so that no draw needs its
    residuals. The ends of intervals of 256 points differ from those without expansion by less than 1 % of their width.
    """
    q = _NU + u * u
    psi, first = (_NU + 1) * u / q, (_NU + 1) * (_NU - u * u) / q**2
    second = 2 * (_NU + 1) * u * (u * u - 3 * _NU) / q**3

    def expand(f: Array, f1: Array, f2: Array) -> Array:
        """Return the coefficients of 1, a, b, t, a², ab, b², at, bt, t²."""
        g = f1 + u * f2
        return np.stack([f, -f1, -x * f1, -u * f1, f2 / 2, x * f2, x * x * f2 / 2, g, x * g, u * g / 2], axis=-1)

    of_level = expand(psi, first, second)
    of_spread = expand(u * psi - 1, psi + u * first, 2 * first + u * second)
    if fixed:  # the spread is the smallest one that is allowed, and stays so
        of_spread = np.zeros_like(of_level)
        of_spread[:, 3] = -1
    return np.concatenate([of_level, x[:, None] * of_level, of_spread], axis=-1)


def _roots(scores: Array, total: Array) -> Array | None:
    """Return the root (a, b, t) of each expansion (draws, 3, 10); None if a draw is too far from the fit to all points.

    Args:
        scores: The expansion of each draw.
        total: That of all points, whose derivative is used for all draws.
    """
    try:
        inverse = np.linalg.inv(total[:, 1:4])
    except np.linalg.LinAlgError:
        return None
    found = np.zeros((len(scores), 3))
    for _ in range(_MAX_ROOT_STEPS):
        a, b, t = found.T
        powers = np.stack([np.ones_like(a), a, b, t, a * a, a * b, b * b, a * t, b * t, t * t], axis=-1)
        step = (scores @ powers[..., None])[..., 0] @ inverse.T
        found -= step
        if not np.abs(found).max() < _MAX_CHANGE:
            return None
        if np.abs(step).max() < _WITHIN_NOISE:
            return found
    return None


def _criteria(n: Array, z: Array, lengths: Array, extra: int) -> dict[str, float]:
    """Return the AICc of every law that there are enough points for; `extra` further levels were fitted."""
    x, xs = np.log(n), np.log(lengths)
    one, m = np.ones_like(x), len(n)
    middle, half = xs.mean(), (xs[-1] - xs[0]) / 2
    stride = max(1, min(4, _GRID_SIZE // 2 // len(xs)))  # of the values tried first: peaks are wider

    def best(columns: Array, offsets: Array | float = 0.0) -> float:
        """Return the largest log-likelihood over a grid of designs (g, m, p)."""
        zs = np.broadcast_to(z - offsets, columns.shape[:2])

        def fit(places: Array, tolerance: float = _EXACT) -> Array:
            return _t_regression(columns[places], zs[places], tolerance=tolerance)[2]

        places = np.arange(len(columns))
        if len(columns) > 1:  # one in `stride`, those around the largest of these, and the best of them to the end
            coarse = places[::stride]
            rough = np.pad(fit(coarse, _ROUGH), 1, constant_values=-np.inf)
            peaks = coarse[(rough[1:-1] >= rough[:-2]) & (rough[1:-1] >= rough[2:])]
            places = places[(abs(places[:, None] - peaks) < stride).any(1)]
            rough = fit(places, _ROUGH)
            places = places[rough > rough.max() - _NEAR]
        return float(fit(places).max())

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
