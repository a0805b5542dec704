"""Softmax attention with V = I on a Gaussian, in closed form: S⁻¹ is linear in time.

    S(t)⁻¹ = S₀⁻¹ − t(A + Aᵀ)        without inverses:  S(t) = S₀^½ (I − tM)⁻¹ S₀^½,  M = S₀^½ (A + Aᵀ) S₀^½

which holds for singular S₀ too and ends at t* = 1/λ_max(M) if M has a positive eigenvalue, never otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.dynamics.gaussian_state import GaussianState
from howsmooth.errors import InputError


def blow_up_time(a: Tensor, start: GaussianState) -> float:
    """t* of S under softmax attention with score ⟨Ax, y⟩ and V = I; ∞ where nothing blows up. A query bias is no part.

    >>> blow_up_time(torch.eye(2), GaussianState.of([0, 0], [[4.0, 0.0], [0.0, 0.0]]))
    0.125
    >>> blow_up_time(-torch.eye(2), GaussianState.standard(2))
    inf
    """
    top = float(torch.linalg.eigvalsh(_growth(a, start))[-1])
    # Rounding alone can leave a positive eigenvalue of a matrix that has none.
    small = start.d * torch.finfo(torch.float64).eps * float(_growth(a, start).abs().max())
    return 1 / top if top > small else math.inf


def covariance_at(a: Tensor, start: GaussianState, t: float) -> Tensor:
    """S(t) under softmax attention with V = I, for times before the blow-up."""
    end = blow_up_time(a, start)
    if not 0 <= t < end:
        raise InputError(f"expected a time from 0 to before the blow-up at {end:.6g}, got {t}")
    root = start.root
    return root @ torch.linalg.solve(torch.eye(start.d, dtype=torch.float64) - t * _growth(a, start), root)


def _growth(a: Tensor, start: GaussianState) -> Tensor:
    if not isinstance(a, Tensor) or a.shape != (start.d, start.d) or not bool(torch.isfinite(a).all()):
        got = f"shape {tuple(a.shape)}" if isinstance(a, Tensor) else type(a).__name__
        raise InputError(f"expected A as a finite matrix ({start.d}, {start.d}), got {got}")
    root = start.root
    return root @ (a + a.mT).double() @ root
