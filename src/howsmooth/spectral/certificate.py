"""Upper bounds on the largest eigenvalue of M = JᵀJ after q Lanczos steps from a random start.

All of them hold on one event. Let b be the component of the uniformly random unit start v₁ in the top eigenspace of
M, of size N. Then |b| ≥ c = δ √(π/(2N)) except with probability at most δ: |b| is at least the absolute value of one
coordinate of a uniform unit vector, whose density never exceeds √((N−1)/(2π)) for N ≥ 3; for N = 2 the probability of
|b| < t is (2/π) arcsin t ≤ t; for N = 1 |b| is 1, so c is at most 1. Each bound below holds whenever |b| ≥ c, for
every q. Hence all hold together, their minimum holds, and q may depend on the data.

The bounds are for exact arithmetic; `rounding` accounts for floating point. All are ratios λ₁ ≤ ratio · θ to the top
Ritz value θ, so that no scale of J overflows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BISECTIONS = 24  # of an interval for log(x/θ − 1): they leave 3e-6 of it


def start_component(size: int, delta: float) -> float:
    """Return the c that the top component of a random start exceeds except with probability delta.

    Example:
        >>> round(start_component(100, 0.01), 6)
        0.001253
    """
    return min(1.0, delta * math.sqrt(math.pi / (2 * size)))


def kuczynski_wozniakowski(steps: int, size: int, delta: float) -> float:
    """Return the published bound: λ₁ ≤ θ / (1 − ε) with 1.648 √N exp(−√ε (2q − 1)) = δ; infinite if ε ≥ 1.

    It holds on the event |b| ≥ c, because `chebyshev` does and is never larger: arcosh(1/c) ≤ log(2/c) =
    log(1.596 √N/δ), and tanh²x ≤ x².

    Reference:
        Kuczyński and Woźniakowski 1992.
    """
    epsilon = (math.log(1.648 * math.sqrt(size) / delta) / (2 * steps - 1)) ** 2
    return 1 / (1 - epsilon) if epsilon < 1 else math.inf


def chebyshev(steps: int, component: float) -> float:
    """Return the bound λ₁ ≤ cosh²(arcosh(1/c) / (2q − 1)) θ, which follows from a Chebyshev polynomial.

    Suppose θ < (1 − ε) λ₁ and take λ₁ = 1. With s² = 1 − x/(1 − ε), p(x) = T_{2q−1}(s)/s has degree q − 1,
    p² (1 − ε − x) ≤ 1 − ε on [0, 1 − ε] and p(1)² ε = (1 − ε) sinh²φ, φ = (2q − 1) artanh √ε. The Rayleigh
    quotient of p(M) v₁ is at most θ, so |b|² sinh²φ < 1 − |b|², that is |b| < 1/cosh φ. This is impossible if
    |b| ≥ c and cosh φ = 1/c.
    """
    return math.cosh(math.acosh(1 / component) / (2 * steps - 1)) ** 2


def lanczos_polynomial(
    ritz: NDArray[np.float64],
    last_entries: NDArray[np.float64],
    coupling: NDArray[np.float64],
    component: float,
    ceiling: float,
    orthogonal: bool = True,
) -> NDArray[np.float64]:
    """Return the bound from the Lanczos polynomials: λ₁ ≤ the x > θ at which Σ_{j≤q} p_j(x)² = 1/c².

    The basis is v_{j+1} = p_j(M) v₁. Let y be the unit vector along the projection of the start on the top
    eigenspace: ⟨v_{j+1}, y⟩ = p_j(λ₁) |b|, and as the basis is orthonormal Σ_j p_j(λ₁)² |b|² ≤ ‖y‖² = 1. Beyond θ
    every p_j² increases, so λ₁ cannot lie beyond the point where the sum reaches 1/c².

    A basis that was not stored in full need not stay orthogonal. Then (`orthogonal` false) only the term j = q is
    kept. This bound is never smaller. It needs only the recurrence and ‖v_{q+1}‖ = 1, and both hold also if v_{q+1}
    has components along earlier vectors.

    No sharper bound follows from the entries of T. They determine 2q moments of the spectral measure of the start, and
    1/Σ_{j≤q} p_j(x)², their Christoffel function, is the largest weight at x of any measure with these moments. It is
    attained by the Gauss–Radau quadrature with a node at x: for every x from λ₁ to the bound there are an operator with
    the top eigenvalue x and a start with |b| ≥ c that give the same T.

    With the eigenpairs (θ_i, s_i) of T_q the sum has a closed form: (x − T_q) (p_0 … p_{q−1})ᵀ = β̂_q p_q(x) e_q
    gives Σ_{j≤q} p_j² = p_q² (1 + β̂_q² Σ_i s_{qi}²/(x − θ_i)²), where p_q(x) = Π (x − θ_i) / Π β̂_j.

    Args:
        ritz: Eigenvalues θ_i of T_q, (b, q), ascending.
        last_entries: Last entries s_{qi} of the eigenvectors of T_q, (b, q).
        coupling: Off-diagonal entries β̂_1 … β̂_q, (b, q), all positive.
        component: The c of `start_component`.
        ceiling: Upper limit of the returned ratios.
        orthogonal: Whether the basis is orthonormal.

    Returns:
        Ratios λ₁/θ, (b,).

    Reference:
        van Dorsselaer, Hochstenbach and van der Vorst 2000, for the single polynomial.
    """
    log_sum = _log_sum_of_squares(ritz, last_entries, coupling, orthogonal)
    target = -2 * math.log(component)
    least = np.finfo(np.float64).eps / 16
    low, high = np.full(len(ritz), math.log(least)), np.full(len(ritz), math.log(max(ceiling - 1, least)))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        beyond = log_sum(np.exp(middle)) >= target
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    bound: NDArray[np.float64] = np.minimum(ceiling, 1 + np.exp(high))
    return bound


def _log_sum_of_squares(
    ritz: NDArray[np.float64], last_entries: NDArray[np.float64], coupling: NDArray[np.float64], orthogonal: bool
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Return log Σ_j p_j(x)², or log p_q(x)² alone, as a function of x/θ − 1 (b,), by the closed form above.

    Where θ is 0 it is not a number: it is beyond no limit, and the ceiling remains.
    """
    top = ritz[:, -1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        gaps = (top - ritz) / top
        log_coupling = np.log(coupling / top).sum(axis=1)
        weight = (coupling[:, -1:] / top * last_entries) ** 2 if orthogonal else np.zeros_like(last_entries)

    def log_sum(excess: NDArray[np.float64]) -> NDArray[np.float64]:
        distance = excess[:, None] + gaps  # (x − θ_i)/θ, without cancellation
        with np.errstate(divide="ignore", invalid="ignore"):
            log_last = np.log(distance).sum(axis=1) - log_coupling
            total: NDArray[np.float64] = 2 * log_last + np.log1p((weight / distance**2).sum(axis=1))
        return total

    return log_sum


def is_bound_within(
    ratio: NDArray[np.float64],
    ritz: NDArray[np.float64],
    last_entries: NDArray[np.float64],
    coupling: NDArray[np.float64],
    size: int,
    delta: float,
    orthogonal: bool = True,
) -> NDArray[np.bool_]:
    """Return whether `smallest_bound` would be at most `ratio` (b,), at a small part of its cost."""
    component = start_component(size, delta)
    above_one = ratio > 1
    log_sum = _log_sum_of_squares(ritz, last_entries, coupling, orthogonal)(np.where(above_one, ratio - 1, 1.0))
    by_lanczos = above_one & (log_sum >= -2 * math.log(component))
    by_chebyshev: NDArray[np.bool_] = chebyshev(ritz.shape[1], component) <= ratio
    return by_lanczos | by_chebyshev


def smallest_bound(
    ritz: NDArray[np.float64],
    last_entries: NDArray[np.float64],
    coupling: NDArray[np.float64],
    size: int,
    delta: float,
    orthogonal: bool = True,
) -> NDArray[np.float64]:
    """Return the smallest of the three ratios λ₁/θ, (b,); they hold together with probability 1 − delta."""
    steps, component = ritz.shape[1], start_component(size, delta)
    ceiling = min(kuczynski_wozniakowski(steps, size, delta), chebyshev(steps, component))
    return lanczos_polynomial(ritz, last_entries, coupling, component, ceiling, orthogonal)


def sufficient_steps(size: int, delta: float, tol: float) -> int:
    """Return the Lanczos steps after which `chebyshev` alone certifies σ₁ to a relative width of tol, on any spectrum.

    Example:
        >>> sufficient_steps(400_000, 1e-3, 1e-3)
        156
    """
    component = start_component(size, delta)
    arcosh = math.log1p(tol + math.sqrt(tol * (2 + tol)))  # of 1 + tol, also where that rounds to 1
    return max(1, math.ceil((math.acosh(1 / component) / arcosh + 1) / 2))
