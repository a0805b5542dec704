"""The Frobenius norm, and how many singular values there are above a threshold, from products with random vectors.

Frobenius norm. For m standard normal z, the mean Q of ‖J z‖² has the expectation T = ‖J‖_F² = Σ λ_i, λ_i = σ_i². With
all λ_i ≤ Λ, and h(x) = x − 1 − log x,

    P(Q ≥ x T) ≤ exp(−m T h(x) / 2Λ) for x ≥ 1,     P(Q ≤ x T) ≤ the same for x ≤ 1.

Proof. log E exp(−s ‖J z‖²) = −½ Σ log(1 + 2 s λ_i) ≤ −(T/2Λ) log(1 + 2 s Λ), since log(1 + 2 s λ) is concave in λ and
zero at 0, hence at least λ/Λ times its value at Λ. The right side is that of Λ χ²_r with r = T/Λ, and Chernoff's bound
gives the exponent; for −s the function −log(1 − 2 s λ) is convex, and the inequality is the same. So the interval is
the narrower, the larger T/Λ, the effective rank.

Counts. For the projection P_t on the right singular vectors with σ > t, of rank r, Σ_k z_kᵀ P_t z_k over m vectors has
the distribution χ²_{m r}, exactly: a value of it is a test of every r. Lanczos from z_k brackets z_kᵀ P_t z_k between
two sums of Gauss weights (Chebyshev, Markov, Stieltjes). The thresholds are fractions of a Ritz value from another
start, and so do not depend on the z_k.

Reference: Hutchinson 1990; Golub and Meurant 2010, on quadrature; Ubaru, Chen and Saad 2017.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import chi2

from howsmooth.errors import InputError
from howsmooth.spectral.bidiagonal import Bidiagonalisation
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.products import Products, gaussian_vectors, solver_generator
from howsmooth.spectral.rounding import allowance

SCALE_STEPS = 10  # of Lanczos, for the size that thresholds are fractions of
FRACTIONS = tuple(10 ** (-i / 4) for i in range(1, 13))  # from 0.56 to 0.001; 1 would be a tie


@dataclass(frozen=True)
class FrobeniusNorm:
    """‖J‖_F and the effective rank ‖J‖_F²/‖J‖₂², each with an interval.

    Both intervals hold together with probability `confidence`, if the interval of ‖J‖₂ holds.

    Attributes:
        value: The estimate of ‖J‖_F.
        lower: Lower end of the interval.
        upper: Upper end.
        rank: (value, lower, upper) of the effective rank.
        confidence: Probability that the intervals hold.
        probes: Number of random vectors.
        seed: Seed of the random vectors.
    """

    value: float
    lower: float
    upper: float
    rank: tuple[float, float, float]
    confidence: float
    probes: int
    seed: int


def frobenius_norm(
    operator: LinearOperator,
    largest: tuple[float, float, float],
    *,
    probes: int = 64,
    confidence: float = 0.999,
    seed: int | torch.Generator = 0,
) -> FrobeniusNorm:
    """Compute the Frobenius norm of an operator from products with random vectors.

    Args:
        operator: One operator; its float64 reference is used where there is one.
        largest: Value, lower and upper end of ‖J‖₂, from `singular_values` with another seed.
        probes: Number of random vectors.
        confidence: Probability that the intervals hold, if that of ‖J‖₂ does.
        seed: Seed of the random vectors.

    Example:
        >>> from howsmooth.spectral import MatrixOperator
        >>> found = frobenius_norm(MatrixOperator(torch.eye(100, dtype=torch.float64)), (1.0, 1.0, 1.0))
        >>> found.lower < 10 < found.upper, 80 < found.rank[1] < 100, found.rank[2]
        (True, True, 100.0)
    """
    _check(operator, probes, confidence)
    exact = operator.precise() or operator
    generator, seed_used = solver_generator(seed)
    products = Products(exact, unit=1.0)
    squares = [
        float(products.norm(products.forward(gaussian_vectors(products, generator)), "J v")[0]) ** 2
        for _ in range(probes)
    ]
    mean, (_, low, high) = math.fsum(squares) / probes, largest
    rounding = allowance(exact)
    lower, upper = interval_of_sum(mean, probes, high**2, 1 - confidence)
    lower, upper = max(lower, low**2), max(upper, low**2)
    ends = math.sqrt(lower) * (1 - rounding), math.sqrt(upper) * (1 + rounding)
    value = min(max(math.sqrt(mean), ends[0]), ends[1])
    if not high:
        return FrobeniusNorm(0.0, 0.0, 0.0, (0.0, 0.0, 0.0), confidence, probes, seed_used)
    most = float(min(operator.shape))
    rank = max(1.0, (ends[0] / high) ** 2), min(most, (ends[1] / low) ** 2 if low else most)
    middle = min(max((value / largest[0]) ** 2, rank[0]), rank[1])
    return FrobeniusNorm(value, *ends, (middle, *rank), confidence, probes, seed_used)


def interval_of_sum(mean: float, probes: int, largest: float, delta: float) -> tuple[float, float]:
    """Return an interval for Σ λ_i from the mean of m squares ‖J z‖², except with probability delta.

    Args:
        mean: Q, the mean.
        probes: m.
        largest: Λ, an upper bound on the λ_i.
        delta: The failure probability, of both ends together.

    Example:
        >>> low, high = interval_of_sum(100.0, 64, 1.0, 1e-3)
        >>> round(low, 1), round(high, 1)
        (93.2, 107.0)
    """
    if mean <= 0 or largest <= 0:
        return 0.0, 0.0 if largest <= 0 else math.inf
    needed = 2 * largest * math.log(2 / delta) / probes

    def exponent(total: float) -> float:  # T h(Q/T), which decreases up to T = Q and increases from there
        return mean - total - total * math.log(mean / total)

    def cross(inside: float, outside: float) -> float:
        for _ in range(200):  # bisection on a logarithmic scale
            middle = math.sqrt(inside * outside)
            inside, outside = (middle, outside) if exponent(middle) < needed else (inside, middle)
        return outside

    lower = cross(mean, 1e-12 * mean) if exponent(1e-12 * mean) > needed else 0.0
    upper = mean
    while exponent(upper) < needed:
        upper *= 2
    return lower, cross(mean, upper)


@dataclass(frozen=True)
class SingularValueCounts:
    """How many singular values exceed each of some thresholds: the distribution of singular values, with intervals.

    All intervals hold together with probability `confidence`.

    Attributes:
        thresholds: The thresholds t, decreasing.
        value: Estimates of the number of σ_i > t.
        lower: Lower ends.
        upper: Upper ends.
        total: The number of singular values, zeros included.
        confidence: Probability that all intervals hold.
        probes: Number of random starts.
        steps: Lanczos steps from each.
        products: Products with J and Jᵀ.
        seed: Seed of the starts.
    """

    thresholds: tuple[float, ...]
    value: tuple[float, ...]
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    total: int
    confidence: float
    probes: int
    steps: int
    products: int
    seed: int


def count_singular_values(
    operator: LinearOperator,
    *,
    probes: int = 4,
    steps: int = 40,
    confidence: float = 0.999,
    seed: int | torch.Generator = 0,
    fractions: tuple[float, ...] = FRACTIONS,
) -> SingularValueCounts:
    """Count the singular values above thresholds, by stochastic Lanczos quadrature with an interval for each count.

    Args:
        operator: One operator; its float64 reference is used where there is one.
        probes: Number of random starts; the statistical part of the interval shrinks with their square root.
        steps: Lanczos steps from each start; the other part shrinks with them.
        confidence: Probability that all intervals hold.
        seed: Seed of the starts.
        fractions: The thresholds as fractions of an estimate of σ₁.

    Example:
        >>> from howsmooth.spectral import MatrixOperator
        >>> values = torch.cat([torch.full((30,), 2.0), torch.full((70,), 0.1)]).double()
        >>> found = count_singular_values(MatrixOperator(torch.diag(values)), fractions=(0.5,))
        >>> found.lower[0] <= 30 <= found.upper[0]
        True
    """
    _check(operator, probes, confidence)
    if steps < 1:
        raise InputError(f"expected at least one Lanczos step, got {steps}")
    exact = operator.precise() or operator
    generator, seed_used = solver_generator(seed)
    products, cols = Products(exact, unit=1.0), operator.shape[1]
    first = _process(products, generator, SCALE_STEPS)
    size = math.sqrt(float(first.ritz().top[0]))
    thresholds = tuple(fraction * size for fraction in fractions)
    below, above = (np.zeros(len(thresholds)) for _ in range(2))
    for _ in range(probes):
        process = _process(products, generator, steps)
        ritz, scale = process.ritz(), float(process.start_norm[0]) ** 2
        nodes, weights = ritz.values[0], scale * ritz.vectors[0, 0] ** 2
        tails = np.append(np.cumsum(weights[::-1])[::-1], 0.0)  # the weight of the nodes from the i-th on
        for i, threshold in enumerate(thresholds):
            node = int(np.searchsorted(nodes, threshold**2, side="right"))  # the first node above
            if process.terminated[0]:  # the quadrature is exact
                below[i] += tails[node]
                above[i] += tails[node]
            else:
                below[i] += tails[min(node + 1, len(nodes))]
                above[i] += tails[node - 1] if node else scale
    delta, most = (1 - confidence) / len(thresholds), min(operator.shape)
    lower = tuple(_fewest(s, probes, most, delta / 2) for s in below)
    upper = tuple(_most(s, probes, most, delta / 2) for s in above)
    value = tuple(
        float(min(max((b + a) / (2 * probes), low), high))
        for b, a, low, high in zip(below, above, lower, upper, strict=True)
    )
    return SingularValueCounts(
        thresholds, value, lower, upper, min(cols, most), confidence, probes, steps, products.count, seed_used
    )


def _process(products: Products, generator: torch.Generator, steps: int) -> Bidiagonalisation:
    process = Bidiagonalisation(products, gaussian_vectors(products, generator), steps + 1)
    while process.steps < steps and not process.terminated.all():
        process.step()
    return process


def _fewest(total: float, probes: int, most: int, delta: float) -> int:
    """Return the smallest rank r for which χ²_{m r} is as large as this with probability delta at least."""
    low, high = 0, most
    while low < high:
        middle = (low + high) // 2
        fits = total <= 0 if middle == 0 else chi2.sf(total, probes * middle) >= delta
        low, high = (low, middle) if fits else (middle + 1, high)
    return low


def _most(total: float, probes: int, most: int, delta: float) -> int:
    """Return the largest rank r for which χ²_{m r} is as small as this with probability delta at least."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if chi2.cdf(total, probes * middle) >= delta else (low, middle - 1)
    return low


def _check(operator: LinearOperator, probes: int, confidence: float) -> None:
    if operator.batch:
        raise InputError(f"expected one operator, got a batch of shape {operator.batch}; pass one after the other")
    if probes < 1 or not 0 < confidence < 1:
        raise InputError(
            f"expected at least one probe and a confidence between 0 and 1, got {probes} and {confidence!r}"
        )
