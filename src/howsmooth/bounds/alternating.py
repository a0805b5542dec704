"""A lower bound for masked attention on measures: tokens ±Ru whose sign alternates periodically in log-time.

Atoms i = …, −1, 0, 1, … have masses rⁱ, so their times are evenly spaced in the logarithm of the mass that precedes
them. Tokens are +Ru for B atoms, −Ru for the next B, and so on. Along u everything depends on g = −⟨u, Au⟩R² alone:
with signs σ, `P_ij ∝ rʲ e^{−g σ_i σ_j}` (j ≤ i), `m_i = Σ_j P_ij σ_j` and `C_i = 1 − m_i²`,

    D_ij = P_ij (1 − g σ_i (σ_j − m_i)) − g C_i δ_ij

A shift by one period, 2B atoms, multiplies all masses by one factor, and D commutes with it. So between the norms
(Σ rⁱ|ε_i|^p)^{1/p} the norm of D is at least that on perturbations r^{−i/p} h_i with a periodic h: on these D is a
matrix with 2B rows, in which the sum over earlier periods is a geometric series. (Other Floquet exponents e^{iθ} in
place of periodic h give smaller norms for p = 2 wherever this was tried.) M periods, after many that are not perturbed,
attain the same number as M grows, with finitely many atoms. Other tokens x_i Ru of one period, |x_i| ≤ 1, have x in
place of σ and their variance in place of 1 − m_i².
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.spectral.power import attained_p_norm

BLOCK = 512  # atoms of one sign in a row: the norm is below that of infinitely many by less than 0.2 %
_SEARCH_BLOCK = 32
# Half-periods that are tried, in units of p/(p−1) = ∫ e^{w/p} e^{−w} dw, the scale of ages w in the running mean.
# Short ones are best for g < 0.
_HALF_PERIODS = (0.1, 0.5, 1.0, 1.5, 2.0, 2.5, 2.9, 3.5, 4.5)


def periodic_matrix(x: Tensor, g: float, p: float, period: float | Tensor) -> Tensor:
    """Return D on perturbations r^{−i/p} h_i with periodic h, for tokens x_i Ru that repeat after N atoms.

    Args:
        x: the tokens of one period in units of Ru, (N,), each in [−1, 1].
        g: −⟨u, Au⟩R².
        p: exponent, 1 < p ≤ ∞.
        period: logarithm of the ratio of the masses of two atoms that are N apart.

    Returns:
        The matrix, (N, N), differentiable in x and the period.

    Example:
        >>> periodic_matrix(torch.ones(1, dtype=torch.float64), 0.3, 2, math.log(4))  # the running mean: 1 + 4^{−½}
        tensor([[1.5000]], dtype=torch.float64)
    """
    index = torch.arange(len(x), dtype=torch.float64)
    length = torch.as_tensor(period, dtype=torch.float64)
    age = (index.unsqueeze(1) - index) * (length / len(x))
    earlier = index.unsqueeze(1) >= index

    def over_periods(rate: float) -> Tensor:
        """Return Σ e^{−rate·age} over all earlier atoms at the same place of their period."""
        decay = torch.exp(-rate * length)
        return torch.exp(-rate * age) * torch.where(earlier, torch.ones_like(decay), decay) / (1 - decay)

    weights = torch.exp(-g * x.unsqueeze(1) * x)
    total = (weights * over_periods(1.0)).sum(1, keepdim=True)
    P = weights * over_periods(1.0) / total
    mean = P @ x
    variance = P @ x.square() - mean.square()
    rate = 1.0 if p == math.inf else 1 - 1 / p
    slopes = 1 - g * x.unsqueeze(1) * (x - mean.unsqueeze(1))
    return weights / total * over_periods(rate) * slopes - torch.diag(g * variance)


def alternating_matrix(g: float, p: float, half_period: float, block: int) -> Tensor:
    """Return `periodic_matrix` of +1 for `block` atoms, and −1 for as many.

    Args:
        g: −⟨u, Au⟩R².
        p: exponent, 1 < p ≤ ∞.
        half_period: logarithm of the ratio of the masses of two atoms that are `block` apart.
        block: number B of successive atoms with one sign.

    Returns:
        The matrix, (2·block, 2·block).

    Example:
        >>> round(float(torch.linalg.matrix_norm(alternating_matrix(0.16, 2, 5.6, 64), 2)), 4)
        2.1278
    """
    sign = torch.ones(2 * block, dtype=torch.float64)
    sign[block:] = -1
    return periodic_matrix(sign, g, p, 2 * half_period)


def alternating_norm(g: float, p: float, block: int = BLOCK) -> float:
    """Return the largest norm of `alternating_matrix` over a few half-periods.

    Args:
        g: −⟨u, Au⟩R².
        p: exponent, 1 < p ≤ ∞.
        block: number of successive atoms with one sign.

    Returns:
        A lower bound on the constant in d_p divided by ‖Vu‖.

    Example:
        >>> round(alternating_norm(0.16, 2), 2), round(alternating_norm(0.0, 2), 2)  # (1 + 3a)e^{2a} is 2.04 at 0.16
        (2.17, 2.0)
    """
    scale = 1.0 if p == math.inf else p / (p - 1)

    def norm(half_period: float, block: int) -> float:
        return attained_p_norm(alternating_matrix(g, p, half_period, block), p, starts=1)

    best = max((scale * length for length in _HALF_PERIODS), key=lambda length: norm(length, min(_SEARCH_BLOCK, block)))
    return norm(best, block)
