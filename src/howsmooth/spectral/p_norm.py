"""Norms of a matrix between L^p spaces of tokens, from below.

For p other than 1, 2 and ∞ there is no eigenvalue problem to solve. What is left is to climb: Boyd's iteration
v ← (Jᵀ(Jv)*)*, where u* is the functional of unit norm that attains ‖u‖. It never descends, and ends in the norm itself
where J has no negative entry (and width 1); else in a critical point, so that what it attains is a lower bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.errors import InputError


def attained_p_norm(J: Tensor, p: float, *, widths: tuple[int, int] = (1, 1), steps: int = 100, starts: int = 4,
                    seed: int = 0) -> float:
    """The largest ‖J v‖_p / ‖v‖_p found, ‖v‖_p = (Σ_i |v_i|₂^p)^{1/p} over tokens v_i; widths (out, in) of a token.

    >>> round(attained_p_norm(torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.float64), 2.0), 4)
    1.1441

    Reference: Boyd, The power method for l^p norms, 1974.
    """
    if not isinstance(J, Tensor) or J.dim() != 2 or J.shape[0] % widths[0] or J.shape[1] % widths[1]:
        got = tuple(J.shape) if isinstance(J, Tensor) else type(J).__name__
        raise InputError(f"expected a matrix whose sides are multiples of {widths}, got {got}")
    if not torch.isfinite(J).all():
        raise InputError("expected a finite matrix, got NaN or ∞")
    if not p >= 1:
        raise InputError(f"expected an exponent 1 ≤ p ≤ ∞, got {p!r}")
    conjugate = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    generator, best = torch.Generator().manual_seed(seed), 0.0
    for start in range(starts):
        # A positive start first: it is where matrices without negative entries end up.
        v = torch.rand(J.shape[1], generator=generator, dtype=torch.float64) if start == 0 else torch.randn(
            J.shape[1], generator=generator, dtype=torch.float64)
        v = v.to(J)
        for _ in range(steps):
            u = J @ v
            gain = float(_length(u, p, widths[0]) / _length(v, p, widths[1]).clamp(min=1e-300))
            best = max(best, gain)
            v = _dual(J.mT @ _dual(u, p, widths[0]), conjugate, widths[1])
    return best


def _sizes(u: Tensor, width: int) -> Tensor:
    return torch.linalg.vector_norm(u.unflatten(-1, (-1, width)), dim=-1)


def _length(u: Tensor, p: float, width: int) -> Tensor:
    return torch.linalg.vector_norm(_sizes(u, width), p)


def _dual(u: Tensor, p: float, width: int) -> Tensor:
    """u* with ⟨u, u*⟩ = ‖u‖_p, of unit norm in the dual space."""
    sizes = _sizes(u, width)
    if p == math.inf:
        weight = torch.zeros_like(sizes)
        weight[sizes.argmax()] = 1
    else:
        weight = (sizes / sizes.max().clamp(min=1e-300)) ** (p - 1)
    directions = torch.nn.functional.normalize(u.unflatten(-1, (-1, width)), dim=-1, eps=1e-300)
    dual = (weight.unsqueeze(-1) * directions).flatten()
    q = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    return dual / _length(dual, q, width).clamp(min=1e-300)
