"""Renormalised coordinates z = e^{−tV}x, in which clusters converge, computed without forming e^{tV}.

    z_i' = Σ_j P_ij V (z_j − z_i),    scores ⟨A e^{tV} z_i + c, e^{tV} z_j⟩

With μ the largest real part of V's eigenvalues and E = e^{t(V − μI)}, which does not grow (or only as a power of t),

    score_ij = e^{2μt} ⟨A E z_i + e^{−μt} c, E z_j⟩

so only one number can overflow, and it is the scale of a softmax. It is capped where scores would leave the range of
the dtype. Differences of computed scores are either exactly 0 or at least one rounding unit of the scores, and in both
cases the capped scale yields the same P as the true one. So t may be arbitrarily large. What is lost is the order among
keys whose scores agree to all digits: from e^{2μt}·|score| ≈ 10¹⁶ on (t ≈ 18/μ in float64), rounding decides to which
of two vertices a query exactly between them attends, and two keys closer than rounding share its attention equally.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.op import attend
from howsmooth.dynamics.velocity import single_head_matrices
from howsmooth.errors import InputError

BLOCK_ROWS = 128  # of scores at once: with a few thousand keys they fit into the cache
MIN_EXPONENT = -700.0  # e^{−700} is still a normal number; smaller exponentials take three times as long


class Renormalised:
    """Softmax attention of one head in the coordinates z = e^{−tV}x.

    The method `at` is a function of depth that `Velocity` accepts.

    Args:
        layer: A `SelfAttention` with one head, or a `SoftmaxField` of one; mask and query bias are allowed.

    Raises:
        InputError: If the layer has several heads, rotary positions, a window, a soft cap, or a value or output bias,
            or if V is not square.

    Reference:
        geshkovski2023emergence, for the coordinates; the scaling that avoids overflow is this project's.

    Example:
        >>> eye = torch.eye(1, dtype=torch.float64)
        >>> z = torch.tensor([[-1.0], [2.0]], dtype=torch.float64)
        >>> Renormalised(SelfAttention(eye, eye, eye)).at(1000.0)(z).flatten().tolist()
        [0.0, 0.0]
    """

    def __init__(self, layer: SelfAttention | Any) -> None:
        """Read A, c and V of the layer."""
        layer = getattr(layer, "layer", layer)  # of a softmax field
        self.A, self.c, self.V = single_head_matrices(layer)
        self.causal = layer.causal
        self.growth = float(torch.linalg.eigvals(self.V).real.max())  # μ

    def at(self, t: float) -> Callable[[Tensor], Tensor]:
        """Return the map z ↦ z' at depth t."""

        def velocity(z: Tensor) -> Tensor:
            q, k, scale = self.scores(t, z)
            return (softmax_average(q, k, z, scale, self.causal) - z) @ self.V.to(z).mT

        return velocity

    def scores(self, t: float, z: Tensor) -> tuple[Tensor, Tensor, float]:
        """Return queries, keys and a scale whose products are the scores at depth t, up to a constant in each row."""
        E = torch.linalg.matrix_exp(t * (self.V - self.growth * torch.eye(len(self.V)).to(self.V))).to(z)
        k = z @ E.mT
        q = k @ self.A.to(z).mT
        if self.c is not None and self.c.any():
            q = q + math.exp(min(-self.growth * t, _log_headroom(q))) * self.c.to(z)
        size = float(q.detach().abs().max()) * float(k.detach().abs().max()) * z.shape[-1]
        headroom = _log_headroom(z) - math.log(max(size, 1.0))
        return q, k, math.exp(min(2 * self.growth * t, headroom))

    def probabilities(self, t: float, z: Tensor) -> Tensor:
        """Return the attention probabilities P (n, n) at depth t."""
        q, k, scale = self.scores(t, z)
        eye = torch.eye(len(z), dtype=z.dtype, device=z.device)
        return attend(q.unsqueeze(-3), k.unsqueeze(-3), eye.unsqueeze(-3), scale=scale, causal=self.causal).squeeze(-3)

    def renormalise(self, t: float, x: Tensor) -> Tensor:
        """Return z = e^{−tV}x."""
        return x @ torch.linalg.matrix_exp(-t * self.V).to(x).mT

    def restore(self, t: float, z: Tensor) -> Tensor:
        """Return x = e^{tV}z.

        Raises:
            InputError: If it overflows.
        """
        x = z @ torch.linalg.matrix_exp(t * self.V).to(z).mT
        if not torch.isfinite(x).all():
            raise InputError(
                f"expected a depth at which e^{{tV}} z is finite, got {t:g} with growth "
                f"{self.growth:g}; stay in renormalised coordinates"
            )
        return x


def _log_headroom(z: Tensor) -> float:
    """Return the logarithm of a number that is safely below the largest of the dtype."""
    return math.log(torch.finfo(z.dtype).max) - 12


def softmax_average(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool = False) -> Tensor:
    """Return softmax(scale · q kᵀ) v for q, k (n, d) and v (n, w).

    On the CPU in float64, without mask and gradients, weights below e^{−700} times the largest of their row are set to
    e^{−700}, which changes no digit of the sums.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> softmax_average(eye, eye, eye, 1000.0)[0, 0].item()
        1.0
    """
    if causal or torch.is_grad_enabled() or q.device.type != "cpu" or q.dtype != torch.float64:
        return attend(*(t.unsqueeze(-3) for t in (q, k, v)), scale=scale, causal=causal).squeeze(-3)
    with_mass = torch.cat([v, torch.ones_like(v[:, :1])], 1)
    parts = []
    for rows in (scale * q).split(BLOCK_ROWS):
        s = rows @ k.mT
        parts.append(s.sub_(s.amax(1, keepdim=True)).clamp_(min=MIN_EXPONENT).exp_() @ with_mass)
    whole = torch.cat(parts)
    return whole[:, :-1] / whole[:, -1:]
