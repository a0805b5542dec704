"""Upper bounds on the largest eigenvalue of M = JᵀJ after q Lanczos steps from a random start.

One event carries them all. Let b be the component of the uniformly random unit start v₁ on the top
eigenspace of M, of size N. Then |b| ≥ c = δ √(π/(2N)) except with probability at most δ: b is at least one
coordinate of a uniform unit vector, whose density never exceeds √((N−1)/(2π)) for N ≥ 3; for N = 2 the
probability of |b| < t is (2/π) arcsin t ≤ t; for N = 1 |b| is 1, so c is cut at 1. Each bound below holds
whenever |b| ≥ c, whatever q is: hence all hold together, their minimum holds, and q may be chosen by looking.

They are bounds for exact arithmetic; `rounding` adds what floating point takes away. All are ratios
λ₁ ≤ ratio · θ to the top Ritz value θ, so that no scale of J overflows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def start_component(size: int, delta: float) -> float:
    """The c that a random start's top component exceeds except with probability delta.

    >>> round(start_component(100, 0.01), 6)
    0.001253
    """
    return min(1.0, delta * math.sqrt(math.pi / (2 * size)))


def kuczynski_wozniakowski(steps: int, size: int, delta: float) -> float:
    """The published bound: λ₁ ≤ θ / (1 − ε) with 1.648 √N exp(−√ε (2q − 1)) = δ; infinite when ε ≥ 1.

    It holds on the event |b| ≥ c, because `chebyshev` does and is never larger: arcosh(1/c) ≤ log(2/c) =
    log(1.596 √N/δ), and tanh²x ≤ x².

    Reference: Kuczyński and Woźniakowski 1992.
    """
    epsilon = (math.log(1.648 * math.sqrt(size) / delta) / (2 * steps - 1)) ** 2
    return 1 / (1 - epsilon) if epsilon < 1 else math.inf


def chebyshev(steps: int, component: float) -> float:
    """λ₁ ≤ cosh²(arcosh(1/c) / (2q − 1)) θ, from the Chebyshev polynomial that Lanczos can only beat.

    Suppose θ < (1 − ε) λ₁ and take λ₁ = 1. With s² = 1 − x/(1 − ε), p(x) = T_{2q−1}(s)/s has degree q − 1,
    p² (1 − ε − x) ≤ 1 − ε on [0, 1 − ε] and p(1)² ε = (1 − ε) sinh²φ, φ = (2q − 1) artanh √ε. The Rayleigh
    quotient of p(M) v₁ is at most θ, so |b|² sinh²φ < 1 − |b|², that is |b| < 1/cosh φ. This cannot be when
    |b| ≥ c and cosh φ = 1/c.
    """
    return math.cosh(math.acosh(1 / component) / (2 * steps - 1)) ** 2


def lanczos_polynomial(
    ritz: NDArray[np.float64],
    last: NDArray[np.float64],
    coupling: NDArray[np.float64],
    component: float,
    ceiling: float,
    orthogonal: bool = True,
) -> NDArray[np.float64]:
    """λ₁ ≤ the x > θ at which Σ_{j≤q} p_j(x)² = 1/c², the Lanczos polynomials' own certificate.

    The basis is v_{j+1} = p_j(M) v₁. Let y be the unit vector along the start's part in the top eigenspace:
    ⟨v_{j+1}, y⟩ = p_j(λ₁) |b|, and as the basis is orthonormal Σ_j p_j(λ₁)² |b|² ≤ ‖y‖² = 1. Beyond θ every
    p_j² increases, so λ₁ cannot lie beyond the point where the sum reaches 1/c².

    A basis that was not stored in full need not stay orthogonal. Then (`orthogonal` false) only the term
    j = q is kept, never the smaller bound: it rests on the recurrence and on ‖v_{q+1}‖ = 1 alone, and both
    hold whether or not v_{q+1} has found its way back to directions met before.

    With the eigenpairs (θ_i, s_i) of T_q the sum is closed: (x − T_q) (p_0 … p_{q−1})ᵀ = β̂_q p_q(x) e_q
    gives Σ_{j≤q} p_j² = p_q² (1 + β̂_q² Σ_i s_{qi}²/(x − θ_i)²), where p_q(x) = Π (x − θ_i) / Π β̂_j.

    Shapes: ritz (b, q), ascending; last (b, q), the last entries s_{qi} of the eigenvectors of T_q;
    coupling (b, q), its off-diagonal β̂_1 … β̂_q, all positive. The answer (b,) is cut at `ceiling`.

    Reference: van Dorsselaer, Hochstenbach and van der Vorst 2000, for the single polynomial.
    """
    log_sum = _log_sum_of_squares(ritz, last, coupling, orthogonal)
    target = -2 * math.log(component)
    least = np.finfo(np.float64).eps / 16
    low, high = np.full(len(ritz), math.log(least)), np.full(len(ritz), math.log(max(ceiling - 1, least)))
    for _ in range(24):  # in the logarithm of x/θ − 1: 24 halvings leave 3e-6 of it
        middle = (low + high) / 2
        beyond = log_sum(np.exp(middle)) >= target
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return np.minimum(ceiling, 1 + np.exp(high))


def _log_sum_of_squares(ritz, last, coupling, orthogonal):
    """Log Σ_j p_j(x)², or log p_q(x)² alone, as a function of x/θ − 1 (b,), by the closed form above."""
    top = ritz[:, -1:]
    below = (top - ritz) / top
    log_coupling = np.log(coupling / top).sum(axis=1)
    weight = (coupling[:, -1:] / top * last) ** 2 if orthogonal else np.zeros_like(last)

    def log_sum(excess: NDArray[np.float64]) -> NDArray[np.float64]:
        distance = excess[:, None] + below  # (x − θ_i)/θ, without cancellation
        log_last = np.log(distance).sum(axis=1) - log_coupling
        return 2 * log_last + np.log1p((weight / distance**2).sum(axis=1))

    return log_sum


def within(
    ratio: NDArray[np.float64],
    ritz: NDArray[np.float64],
    last: NDArray[np.float64],
    coupling: NDArray[np.float64],
    size: int,
    delta: float,
    orthogonal: bool = True,
) -> NDArray[np.bool_]:
    """Whether `smallest_bound` would be at most `ratio` (b,), at a small part of its cost."""
    component = start_component(size, delta)
    beyond_top = ratio > 1
    log_sum = _log_sum_of_squares(ritz, last, coupling, orthogonal)(np.where(beyond_top, ratio - 1, 1.0))
    return (beyond_top & (log_sum >= -2 * math.log(component))) | (chebyshev(ritz.shape[1], component) <= ratio)


def smallest_bound(
    ritz: NDArray[np.float64],
    last: NDArray[np.float64],
    coupling: NDArray[np.float64],
    size: int,
    delta: float,
    orthogonal: bool = True,
) -> NDArray[np.float64]:
    """The smallest of the three ratios λ₁/θ that hold together with probability 1 − delta; shape (b,)."""
    steps, component = ritz.shape[1], start_component(size, delta)
    ceiling = min(kuczynski_wozniakowski(steps, size, delta), chebyshev(steps, component))
    return lanczos_polynomial(ritz, last, coupling, component, ceiling, orthogonal)


def sufficient_steps(size: int, delta: float, tol: float) -> int:
    """Lanczos steps after which `chebyshev` alone certifies σ₁ to a relative width of tol, on any spectrum.

    >>> sufficient_steps(400_000, 1e-3, 1e-3)
    156
    """
    component = start_component(size, delta)
    arcosh = math.log1p(tol + math.sqrt(tol * (2 + tol)))  # of 1 + tol, also where that rounds to 1
    return max(1, math.ceil((math.acosh(1 / component) / arcosh + 1) / 2))
