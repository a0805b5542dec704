"""Renormalised coordinates z = e^{−tV}x, in which clusters stand still, without e^{tV} ever being formed.

    z_i' = Σ_j P_ij V (z_j − z_i),    scores ⟨A e^{tV} z_i + c, e^{tV} z_j⟩

With μ the largest real part of V's eigenvalues and E = e^{t(V − μI)}, which does not grow (or only as a power of t),

    score_ij = e^{2μt} ⟨A E z_i + e^{−μt} c, E z_j⟩

so that only one number can overflow, and softmax sees it as a scale. It is cut where scores would leave the range of
the dtype: differences of scores are exactly 0 or at least a rounding unit of the scores, and both make the same P with
the cut scale as with the true one. So t may be as large as one likes. What is lost is the order among keys whose scores
agree to all digits: from e^{2μt}·|score| ≈ 10¹⁶ on (t ≈ 18/μ in float64) a query that is exactly between two vertices
is decided by rounding, and two keys closer than rounding share a query's attention in halves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention, attend
from howsmooth.dynamics.velocity import one_head
from howsmooth.errors import InputError

ROWS = 128  # of scores held at once: with some thousand keys they stay in the cache
SMALLEST = -700.0  # e to this is still a normal number; below, exponentials take three times as long


class Renormalised:
    """Softmax attention of one head in the coordinates z = e^{−tV}x; its `at` is a function of depth for `Velocity`.

    >>> eye = torch.eye(1, dtype=torch.float64)
    >>> z = torch.tensor([[-1.0], [2.0]], dtype=torch.float64)
    >>> Renormalised(SelfAttention(eye, eye, eye)).at(1000.0)(z).flatten().tolist()
    [0.0, 0.0]
    """

    def __init__(self, layer: SelfAttention | Any):
        layer = getattr(layer, "layer", layer)  # of a softmax field
        self.A, self.c, self.V = one_head(layer)
        self.causal = layer.causal
        self.growth = float(torch.linalg.eigvals(self.V).real.max())  # μ

    def at(self, t: float) -> Callable[[Tensor], Tensor]:
        """The map z ↦ z' at depth t."""

        def velocity(z: Tensor) -> Tensor:
            q, k, scale = self.scores(t, z)
            return (mix(q, k, z, scale, self.causal) - z) @ self.V.to(z).mT

        return velocity

    def scores(self, t: float, z: Tensor) -> tuple[Tensor, Tensor, float]:
        """Queries, keys and the scale whose product are the scores at depth t, up to what softmax does not see."""
        E = torch.linalg.matrix_exp(t * (self.V - self.growth * torch.eye(len(self.V)).to(self.V))).to(z)
        k = z @ E.mT
        q = k @ self.A.to(z).mT
        if self.c is not None and self.c.any():
            q = q + math.exp(min(-self.growth * t, _log_room(q))) * self.c.to(z)
        size = float(q.detach().abs().max()) * float(k.detach().abs().max()) * z.shape[-1]
        room = _log_room(z) - math.log(max(size, 1.0))
        return q, k, math.exp(min(2 * self.growth * t, room))

    def probabilities(self, t: float, z: Tensor) -> Tensor:
        """P (n, n) at depth t."""
        q, k, scale = self.scores(t, z)
        eye = torch.eye(len(z), dtype=z.dtype, device=z.device)
        return attend(q.unsqueeze(-3), k.unsqueeze(-3), eye.unsqueeze(-3), scale=scale, causal=self.causal).squeeze(-3)

    def renormalise(self, t: float, x: Tensor) -> Tensor:
        """Z = e^{−tV}x."""
        return x @ torch.linalg.matrix_exp(-t * self.V).to(x).mT

    def restore(self, t: float, z: Tensor) -> Tensor:
        """X = e^{tV}z, refused where it is too large to be a number."""
        x = z @ torch.linalg.matrix_exp(t * self.V).to(z).mT
        if not torch.isfinite(x).all():
            raise InputError(
                f"expected a depth at which e^{{tV}} z is a number, got {t:g} with growth "
                f"{self.growth:g}; stay in renormalised coordinates"
            )
        return x


def _log_room(z: Tensor) -> float:
    return math.log(torch.finfo(z.dtype).max) - 12


def mix(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> Tensor:
    """softmax(scale · q kᵀ) v for q, k (n, d) and v (n, w).

    Without gradients, masks and GPUs, weights below e^{−700} of a row's largest come out as e^{−700}: no sum sees it.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> mix(eye, eye, eye, 1000.0)[0, 0].item()
    1.0
    """
    if causal or torch.is_grad_enabled() or q.device.type != "cpu" or q.dtype != torch.float64:
        return attend(*(t.unsqueeze(-3) for t in (q, k, v)), scale=scale, causal=causal).squeeze(-3)
    with_mass = torch.cat([v, torch.ones_like(v[:, :1])], 1)
    parts = []
    for rows in (scale * q).split(ROWS):
        s = rows @ k.mT
        parts.append(s.sub_(s.amax(1, keepdim=True)).clamp_(min=SMALLEST).exp_() @ with_mass)
    whole = torch.cat(parts)
    return whole[:, :-1] / whole[:, -1:]
