"""The interaction energy E(μ) = ½ ∫∫ e^{⟨Ax, y⟩} dμ dμ, by its logarithm."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.errors import InputError

BLOCK = 1 << 22  # scores held at once


def log_energy(x: Tensor, A: Tensor) -> float:
    """log E of tokens x (n, d) with equal masses, in O(n) memory.

    With A = Aᵀ = V it rises along the flow on R^d and on spheres: it is what attention ascends.

    >>> log_energy(torch.zeros(3, 1), torch.ones(1, 1)) == math.log(0.5)
    True
    """
    if A.shape != (x.shape[-1], x.shape[-1]):
        raise InputError(f"expected A of shape ({x.shape[-1]}, {x.shape[-1]}), got {tuple(A.shape)}")
    x = x.detach().double()
    q = x @ A.detach().double().to(x.device).mT
    rows = max(1, BLOCK // len(x))
    parts = [torch.logsumexp(block @ x.mT, (-2, -1)) for block in q.split(rows)]
    return float(torch.logsumexp(torch.stack(parts), 0)) - 2 * math.log(len(x)) - math.log(2)
