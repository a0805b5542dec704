"""The field of Sinkhorn attention: softmax whose columns are balanced, too.

The coupling of μ with itself that maximises E⟨Ax, y⟩ − ε KL(π | μ⊗μ) is π = e^{f(x) + g(y) + ⟨Ax, y⟩/ε} μ⊗μ with both
marginals μ. At any x, f(x) is what makes ∫ π(x, dy) = 1: so Γ(x) = ∫ V y π(x, dy) is a softmax field with masses
a_j e^{g_j}, and all that is left is the potential g at the points, a fixed point g = T(g) of

    f_i = −log Σ_j a_j e^{g_j + s_ij},    T(g)_j = −log Σ_i a_i e^{f_i + s_ij},    s_ij = ⟨A y_i, y_j⟩/ε
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from howsmooth.attention import backend
from howsmooth.attention.fields.field import BilinearField
from howsmooth.attention.fields.softmax import one_head
from howsmooth.attention.op import Batchable
from howsmooth.attention.pattern import Pattern
from howsmooth.errors import InputError, NotConverged


@dataclass(frozen=True, eq=False)
class SinkhornField(BilinearField):
    """Γ_μ(x) = ∫ V y π(x, dy), π the entropic coupling of μ with itself for ⟨Ax, y⟩ (see this file's head).

    Iterates until both marginals hold to `tol`, relative to each mass (or as far as rounding of the scores lets them),
    in O(n) memory; else `NotConverged`. Derivatives are those of the exact fixed point, by the implicit function
    theorem, to the second order; they hold an n × n matrix. With times, each time has a coupling of its own.
    """

    eps: float = 1.0
    tol: float = 1e-13
    max_steps: int = 10_000

    name: ClassVar[str] = "sinkhorn"

    def __post_init__(self):
        super().__post_init__()
        if not (0 < self.eps < float("inf") and 0 < self.tol < 1 and self.max_steps >= 1):
            raise InputError(
                "sinkhorn field: expected eps > 0, 0 < tol < 1 and max_steps ≥ 1, got "
                f"{self.eps}, {self.tol} and {self.max_steps}"
            )

    def velocity(self, x, points, log_weights, times, source_times):
        if log_weights is None:
            log_weights = points.new_zeros(points.shape[:-1])
        if times is not None:
            return self._slices(x, points, log_weights, times, source_times)
        log_weights = torch.log_softmax(log_weights, -1)
        g = self.potential(points, log_weights)
        A, V = self.A.to(x), self.V.to(x)
        return one_head(x @ A.mT / self.eps, points, (log_weights + g).unsqueeze(-1), points @ V.mT, None, None)

    def potential(self, points: Tensor, log_weights: Tensor) -> Tensor:
        """G (…, n), up to a constant; its derivatives in points and log weights are those of the fixed point."""
        queries = points @ self.A.to(points).mT / self.eps
        g = _Solve.apply(queries, points, log_weights, self.tol, self.max_steps).detach()
        if not _differentiated(points, log_weights):
            return g
        scores = queries @ points.mT

        def step(g: Tensor) -> Tensor:
            f = -torch.logsumexp(scores + (log_weights + g).unsqueeze(-2), -1)
            return -torch.logsumexp(scores + (log_weights + f).unsqueeze(-1), -2)

        with torch.no_grad():
            s, a = scores.detach(), log_weights.detach()
            rows = torch.softmax(s + (a + g).unsqueeze(-2), -1)
            f = -torch.logsumexp(s + (a + g).unsqueeze(-2), -1)
            columns = torch.softmax(s + (a + f).unsqueeze(-1), -2)
            # ∂T/∂g = columnsᵀ·rows keeps constants, to which nothing is sensitive: 1 aᵀ makes the rest invertible.
            chord = torch.linalg.inv(
                torch.eye(s.shape[-1], dtype=s.dtype, device=s.device) - columns.mT @ rows + a.exp().unsqueeze(-2)
            )
        # Each step with the fixed slope makes one order more of the derivatives exact, and moves g by rounding alone.
        for _ in range(2):
            g = g + (chord @ (step(g) - g).unsqueeze(-1)).squeeze(-1)
        return g

    def _slices(self, x, points, log_weights, times, source_times):
        if times.dim() > 1:
            members = zip(x, points, log_weights, times, source_times, strict=True)
            return torch.stack([self._slices(*member) for member in members])
        out = x.new_zeros(*x.shape[:-1], self.d_out)
        for time in times.unique():
            places, seen = torch.nonzero(times == time).squeeze(-1), torch.nonzero(source_times <= time).squeeze(-1)
            if len(seen):
                found = self.velocity(x[places], points[seen], log_weights[seen], None, None)
                out = out.index_copy(0, places, found)
        return out


class _Solve(Batchable):
    """g by Sinkhorn's iteration. Its derivative is given where it is used, so none comes from here."""

    @staticmethod
    def forward(queries, points, log_weights, tol, max_steps):
        shape = log_weights.shape
        q, y = (t.reshape(-1, 1, *t.shape[-2:]) for t in (queries, points))
        a = log_weights.reshape(-1, 1, shape[-1], 1)
        ones, nothing = torch.ones_like(a), torch.zeros_like(a)
        forth, back = torch.cat([q, ones], -1), torch.cat([y, ones], -1)
        # Scores of this size come with a rounding error that no iteration can remove.
        size = (q.norm(dim=-1).amax() * y.norm(dim=-1).amax()).clamp(min=1.0)
        floor = max(tol, 8 * torch.finfo(a.dtype).eps * float(size))
        g = torch.zeros_like(a)
        for _ in range(max_steps):
            f = -_log_sum(forth, torch.cat([y, a + g], -1), nothing)
            new = -_log_sum(back, torch.cat([q, a + f], -1), nothing)
            error = float((new - g).abs().max())  # |log(marginal / mass)| of the columns; rows are exact
            g = new - (new * a.exp()).sum(-2, keepdim=True)
            if error <= floor:
                return g.reshape(shape)
        raise NotConverged(
            f"Sinkhorn: marginals off by {error:.1e} after {max_steps} steps, wanted {floor:.1e}; use a "
            "larger eps or tol, or more max_steps",
            g.reshape(shape),
        )

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx, *_):
        return None, None, None, None, None

    @staticmethod
    def jvp(ctx, *_):
        return None


def _log_sum(q: Tensor, k: Tensor, values: Tensor) -> Tensor:
    """Log Σ_j e^{q_i·k_j}, (b, 1, n, 1), in blocks."""
    normaliser = backend.forward(q, k, values, Pattern(1.0))[1]
    return normaliser.sum(-1, keepdim=True)


def _differentiated(*tensors: Tensor) -> bool:
    if retrieve_all_functorch_interpreters():
        return True
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return recorded or any(torch.autograd.forward_ad.unpack_dual(t).tangent is not None for t in tensors)
