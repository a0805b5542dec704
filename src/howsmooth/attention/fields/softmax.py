"""Fields of softmax attention, by inner products and by distances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention.atoms import WeightedAttention
from howsmooth.attention.fields.field import Field, check_matrices, check_square
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.op import attend
from howsmooth.errors import InputError


@dataclass(frozen=True, eq=False)
class SoftmaxField(Field):
    """Γ_μ of a self-attention layer, all its heads and biases: weights ∝ a_j e^{score}, in O(n) memory.

    A causal layer without times lets place i see the points 0 … i; with times these decide.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> gamma = SoftmaxField.of(eye, eye)
    >>> gamma.on_tokens(torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64))
    tensor([[ 0.7616,  0.0000],
            [-0.7616,  0.0000]], dtype=torch.float64)
    """

    layer: SelfAttention
    lifted: SelfAttention = field(init=False, repr=False)

    name: ClassVar[str] = "softmax"

    def __post_init__(self):
        object.__setattr__(self, "lifted", WeightedAttention(self.layer).lifted)

    @classmethod
    def of(cls, A: Tensor, V: Tensor, c: Tensor | None = None) -> SoftmaxField:
        """One head with score ⟨Ax + c, y⟩ and value Vy."""
        check_matrices(cls.name, A=A, V=V)
        check_square(cls.name, "A", A)
        return cls(SelfAttention(A, torch.eye(A.shape[0], dtype=A.dtype, device=A.device), V, bq=c, scale=1.0))

    @property
    def d(self) -> int:
        return self.layer.d

    @property
    def d_out(self) -> int:
        return self.layer.d_out

    def velocity(self, x, points, log_weights, times, source_times):
        a = self.layer
        if x.dtype != a.dtype or x.device != a.device:
            raise InputError(
                f"softmax field: expected places as the weights are ({a.dtype} on {a.device}), got "
                f"{x.dtype} on {x.device}; use .to() on one of them"
            )
        if log_weights is not None:  # the logarithm of the mass is one more channel of the key
            a = self.lifted
            x = F.pad(x, (0, 1))
            points = torch.cat([points, torch.log_softmax(log_weights, -1).unsqueeze(-1)], -1)
        q = _heads(F.linear(x, a.wq, a.bq), a.heads)
        k, v = (_heads(F.linear(points, w, b), a.kv_heads) for w, b in ((a.wk, a.bk), (a.wv, a.bv)))
        if times is None and a.causal:
            if x.shape[-2] != points.shape[-2]:
                raise InputError(
                    "softmax field: expected as many places as points for a causal layer without times, "
                    f"got {x.shape[-2]} and {points.shape[-2]}; give times and source_times"
                )
            o = attend(q, k, v, scale=a.scale, causal=True)
        else:
            o = attend_by_time(q, k, v, a.scale, times, source_times)
        o = o.transpose(-3, -2).flatten(-2)
        return o if a.wo is None else F.linear(o, a.wo, a.bo)


@dataclass(frozen=True, eq=False)
class L2Field(Field):
    """Γ_μ with weights ∝ a_j e^{−|Qx − Ky|²} and values Vy; q, k (width, d), v (d_out, d)."""

    q: Tensor
    k: Tensor
    v: Tensor

    name: ClassVar[str] = "l2"

    def __post_init__(self):
        check_matrices(self.name, q=self.q, k=self.k, v=self.v)
        if self.q.shape != self.k.shape:
            raise InputError(
                f"l2 field: expected q and k of one shape, got {tuple(self.q.shape)} and {tuple(self.k.shape)}"
            )

    @property
    def d(self) -> int:
        return self.q.shape[1]

    @property
    def d_out(self) -> int:
        return self.v.shape[0]

    def velocity(self, x, points, log_weights, times, source_times):
        q, k, v = (w.to(x) for w in (self.q, self.k, self.v))
        # −|Qx − Ky|² = 2⟨Qx, Ky⟩ − |Ky|² − |Qx|²: one more channel of the key, and what softmax drops. Seen from the
        # middle of the keys, wherever that is, or squares would swallow the differences.
        queries, keys = x @ q.mT, points @ k.mT
        middle = keys.mean(-2, keepdim=True).detach()
        queries, keys = 2 * (queries - middle), keys - middle
        offset = -keys.square().sum(-1, keepdim=True)
        if log_weights is not None:
            offset = offset + torch.log_softmax(log_weights, -1).unsqueeze(-1)
        return one_head(queries, keys, offset, points @ v.mT, times, source_times)


def one_head(
    queries: Tensor, keys: Tensor, offset: Tensor, values: Tensor, times: Tensor | None, source_times: Tensor | None
) -> Tensor:
    """Attention with score_ij = ⟨q_i, k_j⟩ + offset_j, differentiable in the offsets (…, n, 1) too."""
    queries = torch.cat([queries, queries.new_ones(*queries.shape[:-1], 1)], -1)
    keys = torch.cat([keys, offset], -1)
    o = attend_by_time(*(t.unsqueeze(-3) for t in (queries, keys, values)), 1.0, times, source_times)
    return o.squeeze(-3)


def _heads(t: Tensor, heads: int) -> Tensor:
    """(…, n, h·k) → (…, h, n, k)."""
    return t.unflatten(-1, (heads, -1)).transpose(-3, -2)


def attend_by_time(
    q: Tensor, k: Tensor, v: Tensor, scale: float, times: Tensor | None, source_times: Tensor | None
) -> Tensor:
    """`attend` where query i sees the keys of source times ≤ its own; q (…, h, m, k), times (…, m).

    Nothing of size m·n is kept. One point per time is the causal op on sorted tokens, and as fast.
    """
    if times is None:
        return attend(q, k, v, scale=scale)
    if times.dim() == 1:
        return _attend_one(q, k, v, scale, times, source_times)
    lead = times.shape[:-1]
    members = zip(*(t.flatten(0, len(lead) - 1) for t in (q, k, v, times, source_times)), strict=True)
    outputs = [_attend_one(a, b, c, scale, t, s) for a, b, c, t, s in members]
    return torch.stack(outputs).unflatten(0, lead)


def _attend_one(q: Tensor, k: Tensor, v: Tensor, scale: float, times: Tensor, source_times: Tensor) -> Tensor:
    if torch.equal(times, source_times):
        order = torch.argsort(times, stable=True)
        steps = times[order].diff()
        if (steps > 0).all():
            if (times.diff() > 0).all():
                return attend(q, k, v, scale=scale, causal=True)
            back = torch.argsort(order)
            return attend(*(t[..., order, :] for t in (q, k, v)), scale=scale, causal=True)[..., back, :]

    def hidden(i: Tensor, j: Tensor) -> Tensor:
        seen = source_times[j] <= times[i]
        return torch.where(seen, 0.0, -torch.inf)

    return attend(q, k, v, scale=scale, score_bias=hidden)
