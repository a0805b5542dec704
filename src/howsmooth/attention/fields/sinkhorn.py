"""The field of Sinkhorn attention: softmax attention whose columns are balanced, too.

The coupling of μ with itself that maximises E⟨Ax, y⟩ − ε KL(π | μ⊗μ) is π = e^{f(x) + g(y) + ⟨Ax, y⟩/ε} μ⊗μ with both
marginals μ. At any x, f(x) is determined by ∫ π(x, dy) = 1. So Γ(x) = ∫ V y π(x, dy) is a softmax field with weights
a_j e^{g_j}, where g is the potential at the points, a fixed point g = T(g) of

    f_i = −log Σ_j a_j e^{g_j + s_ij},    T(g)_j = −log Σ_i a_i e^{f_i + s_ij},    s_ij = ⟨A y_i, y_j⟩/ε
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._functorch.pyfunctorch import retrieve_all_functorch_interpreters

from howsmooth.attention import backend
from howsmooth.attention.autograd import Batchable
from howsmooth.attention.fields.field import BilinearField
from howsmooth.attention.fields.softmax import attend_one_head
from howsmooth.attention.pattern import Pattern
from howsmooth.errors import InputError, NotConverged


@dataclass(frozen=True, eq=False)
class SinkhornField(BilinearField):
    """Sinkhorn attention, `Γ_μ(x) = ∫ V y π(x, dy)`, where π is the entropic coupling of μ with itself for ⟨Ax, y⟩.

    The potential is iterated in memory linear in n until both marginals are correct to `tol`, relative to each weight,
    or to the rounding errors of the scores; else `NotConverged` is raised. Derivatives are those of the exact fixed
    point, by the implicit function theorem, to second order; they need an n × n matrix. With times, each time has its
    own coupling.

    Attributes:
        A: matrix of the scores, (d, d).
        V: matrix of the values, (d_out, d).
        eps: entropic regularisation ε > 0.
        tol: relative tolerance of the marginals.
        max_steps: maximal number of iterations.

    Example:
        >>> eye = torch.eye(1, dtype=torch.float64)
        >>> x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
        >>> SinkhornField(eye, eye).on_tokens(x)
        tensor([[-0.7616],
                [ 0.7616]], dtype=torch.float64)
    """

    eps: float = 1.0
    tol: float = 1e-13
    max_steps: int = 10_000

    name: ClassVar[str] = "sinkhorn"

    def __post_init__(self) -> None:
        """Refuse arguments that do not fit each other."""
        super().__post_init__()
        if not (0 < self.eps < float("inf") and 0 < self.tol < 1 and self.max_steps >= 1):
            raise InputError(
                "sinkhorn field: expected eps > 0, 0 < tol < 1 and max_steps ≥ 1, got "
                f"{self.eps}, {self.tol} and {self.max_steps}"
            )

    def velocity(
        self, x: Tensor, points: Tensor, log_weights: Tensor | None, times: Tensor | None, source_times: Tensor | None
    ) -> Tensor:
        """Compute the field, see `Field.velocity`."""
        if log_weights is None:
            log_weights = points.new_zeros(points.shape[:-1])
        if times is not None and source_times is not None:
            return self._by_time(x, points, log_weights, times, source_times)
        log_weights = torch.log_softmax(log_weights, -1)
        g = self.potential(points, log_weights)
        A, V = self.A.to(x), self.V.to(x)
        return attend_one_head(x @ A.mT / self.eps, points, (log_weights + g).unsqueeze(-1), points @ V.mT, None, None)

    def potential(self, points: Tensor, log_weights: Tensor) -> Tensor:
        """Return g (…, n), up to a constant, with the derivatives of the fixed point in points and log weights."""
        queries = points @ self.A.to(points).mT / self.eps
        g: Tensor = _Potential.apply(queries, points, log_weights, self.tol, self.max_steps).detach()
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
            # ∂T/∂g = columnsᵀ·rows maps constants to themselves, and Γ does not depend on them: adding 1 aᵀ makes the
            # matrix invertible.
            chord = torch.linalg.inv(
                torch.eye(s.shape[-1], dtype=s.dtype, device=s.device) - columns.mT @ rows + a.exp().unsqueeze(-2)
            )
        # Each Newton step with this fixed slope makes one more order of derivatives exact; g changes by rounding only.
        for _ in range(2):
            g = g + (chord @ (step(g) - g).unsqueeze(-1)).squeeze(-1)
        return g

    def _by_time(self, x: Tensor, points: Tensor, log_weights: Tensor, times: Tensor, source_times: Tensor) -> Tensor:
        """Compute the field separately for each time."""
        if times.dim() > 1:
            members = zip(x, points, log_weights, times, source_times, strict=True)
            return torch.stack([self._by_time(*member) for member in members])
        out = x.new_zeros(*x.shape[:-1], self.d_out)
        for time in times.unique():
            rows = torch.nonzero(times == time).squeeze(-1)
            visible = torch.nonzero(source_times <= time).squeeze(-1)
            if len(visible):
                found = self.velocity(x[rows], points[visible], log_weights[visible], None, None)
                out = out.index_copy(0, rows, found)
        return out


class _Potential(Batchable):
    """The potential g by Sinkhorn's iteration. Its derivatives are added by `SinkhornField.potential`."""

    @staticmethod
    def forward(queries: Tensor, points: Tensor, log_weights: Tensor, tol: float, max_steps: int) -> Tensor:
        """Iterate until the marginals are correct."""
        shape = log_weights.shape
        q, y = (t.reshape(-1, 1, *t.shape[-2:]) for t in (queries, points))
        a = log_weights.reshape(-1, 1, shape[-1], 1)
        ones, no_values = torch.ones_like(a), torch.zeros_like(a)
        row_queries, column_queries = torch.cat([q, ones], -1), torch.cat([y, ones], -1)
        # Scores of this size have rounding errors that no iteration can remove.
        size = (q.norm(dim=-1).amax() * y.norm(dim=-1).amax()).clamp(min=1.0)
        floor = max(tol, 8 * torch.finfo(a.dtype).eps * float(size))
        g = torch.zeros_like(a)
        for _ in range(max_steps):
            f = -_log_sum(row_queries, torch.cat([y, a + g], -1), no_values)
            new = -_log_sum(column_queries, torch.cat([q, a + f], -1), no_values)
            error = float((new - g).abs().max())  # |log(marginal / weight)| of the columns; rows are exact
            g = new - (new * a.exp()).sum(-2, keepdim=True)
            if error <= floor:
                return g.reshape(shape)
        raise NotConverged(
            f"Sinkhorn: marginals off by {error:.1e} after {max_steps} steps, tolerance {floor:.1e}; use a "
            "larger eps or tol, or more max_steps",
            g.reshape(shape),
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Mark the potential as a constant."""
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> tuple[None, ...]:
        """Return no gradients."""
        return None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> None:
        """Return no tangent."""


def _log_sum(q: Tensor, k: Tensor, values: Tensor) -> Tensor:
    """Compute log Σ_j e^{q_i·k_j}, (b, 1, n, 1), in blocks."""
    normaliser = backend.forward(q, k, values, Pattern(1.0))[1]
    return normaliser.sum(-1, keepdim=True)


def _differentiated(*tensors: Tensor) -> bool:
    """Return whether derivatives in one of the tensors are recorded."""
    if retrieve_all_functorch_interpreters():
        return True
    recorded = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    return recorded or any(torch.autograd.forward_ad.unpack_dual(t).tangent is not None for t in tensors)
