"""Growth with length: which law does the constant follow in n? A power law is fitted, then compared with others.

All fits are of log Lip, with errors of Student's t (4 degrees of freedom), so that a few wild samples bend nothing:

    constant          log y = c
    power law         log y = c + α log n
    logarithm         y = a (1 + b log n)
    saturation        log y = c + β log(n / (n + n₀)): a power law that levels off beyond n₀
    broken power law  log y = c + α₁ log n up to n₀, slope α₂ beyond
    none of these     a level of its own for every length

and compared by Akaike's criterion for small samples. Where a level of its own for every length wins, no law in the list
describes the growth, a power law least of all. Tables, plots, pages and the explorer all print this one result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from howsmooth.errors import InputError
from howsmooth.records import CURVE

POWER, FREE = "power law", "none of these"
_NU = 4.0  # degrees of freedom of the errors
_FLOOR = 1e-4  # spread below which differences mean nothing: the constants are known to about 1e-3
_GRID = 80
_CLOSE, _FAR = 2.0, 6.0  # differences of the criterion: hardly any evidence, strong evidence
FEWEST_LENGTHS = 4  # with fewer, two laws can hardly be told apart

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    """Lip ≈ constant · n^exponent with intervals, and what else was tried.

    `exponent` and `constant` are None where there are fewer than four lengths. `excess` holds, for each law, its
    criterion above the best one's; `verdict` is a sentence.
    """

    exponent: float | None
    constant: float | None
    exponent_interval: tuple[float, float] | None  # None without several samples
    constant_interval: tuple[float, float] | None
    confidence: float
    points: int
    lengths: int
    best: str | None
    excess: dict[str, float]
    is_power_law: bool | None  # None: cannot be said
    verdict: str

    @property
    def shown(self) -> bool:
        """Whether the exponent may stand in legends, headlines and tables: there is one, and no law fits better."""
        return self.exponent is not None and self.excess.get(POWER, 0.0) < _CLOSE

    def at(self, n: float) -> float:
        """Return constant · n^exponent."""
        if self.exponent is None or self.constant is None:
            raise ValueError(f"expected a fitted law, got none ({self.verdict})")
        return self.constant * n**self.exponent

    def as_record(self) -> dict[str, Any]:
        return {**{name: getattr(self, name) for name in self.__dataclass_fields__}, "shown": self.shown}


def growth_laws(records: Iterable[dict[str, Any]], **options: Any) -> dict[tuple, Law]:
    """Fit a law to each curve of the records; keys are the values of `CURVE`, options those of `fit_law`.

    Only lengths, samples and values are kept in memory. Zeros and values with a lower end alone have no part in it:
    the constant may lie anywhere above such a value. A quantity without any interval is taken as it is.
    """
    points: dict[tuple, list[tuple[int, float, int]]] = {}
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
    """A table, a figure and a page ask for the same curves again, so the laws fitted last are kept."""
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
    """Fit a power law with bootstrap intervals by sample, and judge it against the other laws.

    `nested`: a sample is one text at all its lengths (prefixes), so whole curves are drawn again and the level of each
    text is set apart. Otherwise samples of different lengths have nothing in common, and each length is drawn again
    by itself. With fewer than four lengths there is no exponent, and the verdict says so.

    >>> n = [8, 16, 32, 64, 128, 256] * 3
    >>> law = fit_law(n, [2 * k**0.25 * (1 + 0.01 * (i % 5 - 2)) for i, k in enumerate(n)], [0] * 6 + [1] * 6 + [2] * 6)
    >>> round(law.exponent, 2), law.verdict
    (0.25, 'a power law')
    >>> fit_law([8, 16, 32], [1.0, 2.0, 4.0]).verdict
    'no exponent from 3 lengths, at least 4 are needed'
    """
    n, y, sample = _checked(ns, values, samples)
    lengths = np.unique(n)
    if len(lengths) < FEWEST_LENGTHS:
        count = f"{len(lengths)} length{'s' if len(lengths) > 1 else ''}"
        said = f"no exponent from {count}, at least {FEWEST_LENGTHS} are needed"
        return Law(None, None, None, None, confidence, len(n), len(lengths), None, {}, None, said)
    x, z = np.log(n), np.log(y)
    center = x.mean()
    texts = _texts(sample) if nested else None
    levelled = _levelled(z, texts)
    slope, level = _line(x[None] - center, levelled[None])
    exponent, constant = float(slope[0]), math.exp(float(level[0]) - float(slope[0]) * center)
    of_exponent, of_constant = _intervals(
        x, z, sample, nested, confidence, draws, seed, center, exponent, float(level[0])
    )
    criteria = _criteria(n, levelled, lengths, extra=0 if texts is None else int(texts.max()))
    best, excess, holds, verdict = _judged(criteria)
    return Law(
        exponent, constant, of_exponent, of_constant, confidence, len(n), len(lengths), best, excess, holds, verdict
    )


def _checked(ns: Sequence[int], values: Sequence[float], samples: Sequence[int] | None) -> tuple[Array, Array, Array]:
    if not len(ns) or len(ns) != len(values) or (samples is not None and len(samples) != len(ns)):
        raise InputError(
            f"expected as many values (and samples) as lengths, got {len(values)} values at {len(ns)} lengths"
        )
    n, y = np.asarray(ns, dtype=float), np.asarray(values, dtype=float)
    if not (n > 0).all() or not (y > 0).all() or not np.isfinite(y).all():
        raise InputError("expected positive finite values at positive lengths: a power law has no zeros")
    if samples is None:  # number them as they come, length by length
        seen: dict[int, int] = {}
        samples = [seen.update({k: seen.get(k, -1) + 1}) or seen[k] for k in ns]
    return n, y, np.asarray(samples)


def _texts(sample: Array) -> NDArray[np.int64]:
    return np.unique(sample, return_inverse=True)[1]


def _levelled(z: Array, texts: NDArray[np.int64] | None) -> Array:
    """Each text's curve moved to the common level."""
    if texts is None:
        return z
    means = np.bincount(texts, z) / np.bincount(texts)
    return z - means[texts] + means.mean()


def _t_regression(X: Array, z: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Coefficients (g, p) and log-likelihoods (g,) of z (g, m) on X (g, m, p) or (1, m, p), by reweighting.

    `weights` (g, m) count points several times, which is what a bootstrap does.
    """
    counts = np.ones(z.shape) if weights is None else weights
    w, total, p = counts, counts.sum(-1), X.shape[-1]
    pairs = (X[..., :, None] * X[..., None, :]).reshape(*X.shape[:-1], p * p)
    before: Any = np.inf
    for _ in range(60):
        A = (w[:, None] @ pairs).reshape(-1, p, p)  # one design for all rows is a plain product
        A += 1e-12 * np.trace(A, axis1=-2, axis2=-1)[:, None, None] * np.eye(p)
        theta = np.linalg.solve(A, ((w * z)[:, None] @ X)[:, 0, :, None])
        r2 = (z - (X @ theta)[..., 0]) ** 2
        s2 = np.maximum((w * r2).sum(-1) / total, _FLOOR**2)[:, None]
        w = counts * (_NU + 1) / (_NU + r2 / s2)
        if np.abs(np.log(s2) - before).max() < 1e-7:
            break
        before = np.log(s2)
    constant = gammaln((_NU + 1) / 2) - gammaln(_NU / 2) - 0.5 * math.log(_NU * math.pi)
    each = constant - 0.5 * np.log(s2) - (_NU + 1) / 2 * np.log1p(r2 / (_NU * s2))
    return np.asarray(theta[..., 0], dtype=np.float64), (counts * each).sum(-1)


def _line(u: Array, z: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """(slope, level) of each row."""
    X = np.stack([np.ones_like(u), u], axis=-1)
    theta, _ = _t_regression(X, z, weights)
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
    """Percentiles of the fits to samples drawn again; None if no length has two."""
    texts, ids = _texts(sample), np.unique(x, return_inverse=True)[1]
    groups = [np.arange(texts.max() + 1)] if nested else [np.flatnonzero(ids == i) for i in range(ids.max() + 1)]
    sizes = [len(group) for group in groups]
    if max(sizes) < 2 or not draws:
        return None, None
    rng = np.random.default_rng(seed)
    counts = np.zeros((draws, texts.max() + 1 if nested else len(x)))
    for group in groups:
        picked = rng.integers(len(group), size=(draws, len(group)))
        for j in range(len(group)):
            counts[:, group[j]] = (picked == j).sum(1)
    if nested:
        # The level of each text is taken out for the slope and comes back, drawn again, in the level.
        means = np.bincount(texts, z) / np.bincount(texts)
        levels = counts @ means / counts.sum(1)
        z = z - means[texts]
        counts = counts[:, texts]
    slopes, heights = _line(x[None] - center, np.broadcast_to(z, counts.shape), counts)
    if nested:
        heights = heights + levels
    # Drawing from k samples spreads by √((k − 1)/k) too little.
    widen = math.sqrt(np.mean([k / (k - 1) for k in sizes if k > 1]))
    slopes = exponent + widen * (slopes - np.mean(slopes))
    heights = level + widen * (heights - np.mean(heights))
    tails = (100 * (1 - confidence) / 2, 100 * (1 + confidence) / 2)
    low, high = np.percentile(slopes, tails)
    bottom, top = np.exp(np.percentile(heights - slopes * center, tails))
    return (float(low), float(high)), (float(bottom), float(top))


def _criteria(n: Array, z: Array, lengths: Array, extra: int) -> dict[str, float]:
    """Akaike's criterion, corrected for few points, of every law that has points enough. `extra` levels were fitted."""
    x, xs = np.log(n), np.log(lengths)
    one, m = np.ones_like(x), len(n)
    middle, half = xs.mean(), (xs[-1] - xs[0]) / 2

    def best(columns: Array, offsets: Array | float = 0.0) -> float:
        """The best log-likelihood over a grid of designs (g, m, p)."""
        return float(_t_regression(columns, np.broadcast_to(z - offsets, columns.shape[:2]))[1].max())

    fits: dict[str, tuple[int, float]] = {
        "constant": (1, best(one[None, :, None])),
        POWER: (2, best(np.stack([one, x], -1)[None])),
    }
    bends = np.linspace(-0.99, 0.99, _GRID) / max(xs[-1] - middle, middle - xs[0])
    fits["logarithm"] = (2, best(np.ones((_GRID, m, 1)), np.log1p(bends[:, None] * (x - middle))))
    if len(lengths) > 3:
        knees = np.exp(np.linspace(xs[0] - half, xs[-1] + half, _GRID))[:, None]
        fits["saturation"] = (3, best(np.stack([np.ones((_GRID, m)), np.log(n / (n + knees))], -1)))
    if len(lengths) > 4:
        breaks = np.linspace(xs[1], xs[-2], _GRID)[:, None]
        fits["broken power law"] = (
            4,
            best(np.stack([np.ones((_GRID, m)), np.minimum(x - breaks, 0), np.maximum(x - breaks, 0)], -1)),
        )
    if m > len(lengths):
        fits[FREE] = (len(lengths), best((x[:, None] == xs)[None].astype(float)))
    criteria = {}
    for name, (count, likelihood) in fits.items():
        k = count + 1 + extra  # and the spread
        if m - k - 1 > 0:
            criteria[name] = 2 * k + 2 * k * (k + 1) / (m - k - 1) - 2 * likelihood
    return criteria


def _judged(criteria: dict[str, float]) -> tuple[str | None, dict[str, float], bool | None, str]:
    """(best, excess, whether it is a power law, a sentence)."""
    if POWER not in criteria:
        return None, {}, None, "too few points to judge"
    best = min(criteria, key=criteria.__getitem__)
    excess = {name: round(value - criteria[best], 3) for name, value in sorted(criteria.items(), key=lambda i: i[1])}
    if excess[POWER] >= _CLOSE:
        instead = "no law tried fits" if best == FREE else f"{_article(best)} fits better"
        if excess[POWER] >= _FAR:
            return best, excess, False, f"not a power law: {instead} (ΔAICc {excess[POWER]:.1f})"
        return best, excess, None, f"doubtful: {instead} (ΔAICc {excess[POWER]:.1f})"
    # A broken or saturating law contains the power law, so only the simpler ones can rival it.
    rivals = [name for name in ("constant", "logarithm") if excess.get(name, math.inf) - excess[POWER] < _CLOSE]
    if rivals:
        return best, excess, None, f"cannot be told from {' or '.join(_article(name) for name in rivals)}"
    return best, excess, True, "a power law"


def _article(name: str) -> str:
    return f"a {name}"
