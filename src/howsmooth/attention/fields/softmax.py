"""Fields of softmax attention, by inner products and by distances."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention.fields.field import Field, check_matrices, check_square
from howsmooth.attention.heads import SelfAttention, split_heads
from howsmooth.attention.op import attend
from howsmooth.attention.weighted import WeightedAttention
from howsmooth.errors import InputError


@dataclass(frozen=True, eq=False)
class SoftmaxField(Field):
    """Softmax attention, with all heads and biases of a layer: weights ∝ a_j e^{score}, in memory linear in n.

    In a causal layer without times, row i of x sees the points 0 … i; with times, these are the mask.

    Attributes:
        layer: the layer.
        lifted: the layer on points (y_j, log a_j), see `WeightedAttention`.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> gamma = SoftmaxField.of(eye, eye)
        >>> gamma.on_tokens(torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64))
        tensor([[ 0.7616,  0.0000],
                [-0.7616,  0.0000]], dtype=torch.float64)
    """

    layer: SelfAttention
    lifted: SelfAttention = field(init=False, repr=False)

    name: ClassVar[str] = "softmax"

    def __post_init__(self) -> None:
        """Build the layer on lifted points."""
        object.__setattr__(self, "lifted", WeightedAttention(self.layer).lifted)

    @classmethod
    def of(cls, A: Tensor, V: Tensor, c: Tensor | None = None) -> SoftmaxField:
        """Return the field of one head with score ⟨Ax + c, y⟩ and value Vy; A (d, d), V (d_out, d), c (d,)."""
        check_matrices(cls.name, A=A, V=V)
        check_square(cls.name, "A", A)
        return cls(SelfAttention(A, torch.eye(A.shape[0], dtype=A.dtype, device=A.device), V, bq=c, scale=1.0))

    @property
    def d(self) -> int:
        """Width of points."""
        return self.layer.d

    @property
    def d_out(self) -> int:
        """Width of values."""
        return self.layer.d_out

    def velocity(
        self, x: Tensor, points: Tensor, log_weights: Tensor | None, times: Tensor | None, source_times: Tensor | None
    ) -> Tensor:
        """Compute the field, see `Field.velocity`."""
        a = self.layer
        if x.dtype != a.dtype or x.device != a.device:
            raise InputError(
                f"softmax field: expected x as the weights are ({a.dtype} on {a.device}), got "
                f"{x.dtype} on {x.device}; use .to() on one of them"
            )
        if log_weights is not None:  # the logarithm of the weight is one more channel of the key
            a = self.lifted
            x = F.pad(x, (0, 1))
            points = torch.cat([points, torch.log_softmax(log_weights, -1).unsqueeze(-1)], -1)
        q = split_heads(F.linear(x, a.wq, a.bq), a.heads)
        k, v = (split_heads(F.linear(points, w, b), a.kv_heads) for w, b in ((a.wk, a.bk), (a.wv, a.bv)))
        if times is None and a.causal:
            if x.shape[-2] != points.shape[-2]:
                raise InputError(
                    "softmax field: expected as many rows of x as points for a causal layer without times, "
                    f"got {x.shape[-2]} and {points.shape[-2]}; give times and source_times"
                )
            o = attend(q, k, v, scale=a.scale, causal=True)
        else:
            o = attend_by_time(q, k, v, a.scale, times, source_times)
        o = o.transpose(-3, -2).flatten(-2)
        return o if a.wo is None else F.linear(o, a.wo, a.bo)


@dataclass(frozen=True, eq=False)
class L2Field(Field):
    """L2 attention, with weights ∝ a_j exp(−|Qx − Ky|²) and values Vy.

    The published code for flows of Gaussians divides KᵀQ by √d, and not KᵀK: Q/√d in place of Q gives the same.

    Attributes:
        q: matrix Q of the queries, (width, d).
        k: matrix K of the keys, (width, d).
        v: matrix V of the values, (d_out, d).

    Reference:
        kim2021lipschitz

    Example:
        >>> eye = torch.eye(1, dtype=torch.float64)
        >>> L2Field(eye, eye, eye).on_tokens(torch.tensor([[0.0], [100.0]], dtype=torch.float64)).flatten().tolist()
        [0.0, 100.0]
    """

    q: Tensor
    k: Tensor
    v: Tensor

    name: ClassVar[str] = "l2"

    def __post_init__(self) -> None:
        """Refuse arguments that do not fit each other."""
        check_matrices(self.name, q=self.q, k=self.k, v=self.v)
        if self.q.shape != self.k.shape:
            raise InputError(
                f"l2 field: expected q and k of one shape, got {tuple(self.q.shape)} and {tuple(self.k.shape)}"
            )

    @property
    def d(self) -> int:
        """Width of points."""
        return self.q.shape[1]

    @property
    def d_out(self) -> int:
        """Width of values."""
        return self.v.shape[0]

    def velocity(
        self, x: Tensor, points: Tensor, log_weights: Tensor | None, times: Tensor | None, source_times: Tensor | None
    ) -> Tensor:
        """Compute the field, see `Field.velocity`."""
        q, k, v = (w.to(x) for w in (self.q, self.k, self.v))
        # −|Qx − Ky|² = 2⟨Qx, Ky⟩ − |Ky|² − |Qx|²: the second term is one more channel of the key, and softmax cancels
        # the last. The mean is subtracted first, since squares of large entries would lose the differences.
        queries, keys = x @ q.mT, points @ k.mT
        mean = keys.mean(-2, keepdim=True).detach()
        queries, keys = 2 * (queries - mean), keys - mean
        offset = -keys.square().sum(-1, keepdim=True)
        if log_weights is not None:
            offset = offset + torch.log_softmax(log_weights, -1).unsqueeze(-1)
        return attend_one_head(queries, keys, offset, points @ v.mT, times, source_times)


def attend_one_head(
    queries: Tensor, keys: Tensor, offset: Tensor, values: Tensor, times: Tensor | None, source_times: Tensor | None
) -> Tensor:
    """Compute attention with score_ij = ⟨q_i, k_j⟩ + offset_j, differentiable in the offsets (…, n, 1), too."""
    queries = torch.cat([queries, queries.new_ones(*queries.shape[:-1], 1)], -1)
    keys = torch.cat([keys, offset], -1)
    q, k, v = (t.unsqueeze(-3) for t in (queries, keys, values))
    return attend_by_time(q, k, v, 1.0, times, source_times).squeeze(-3)


def attend_by_time(
    q: Tensor, k: Tensor, v: Tensor, scale: float, times: Tensor | None, source_times: Tensor | None
) -> Tensor:
    """Compute attention in which a query sees the keys with source times up to its own, in memory linear in n.

    If all times are different and those of queries and keys are the same, this is causal attention on sorted tokens.

    Args:
        q: queries (…, h, m, k).
        k: keys (…, h, n, k).
        v: values (…, h, n, w).
        scale: factor of q·k.
        times: times of the queries, (…, m), or None for attention without a mask.
        source_times: times of the keys, (…, n).

    Returns:
        The output (…, h, m, w).
    """
    if times is None or source_times is None:
        return attend(q, k, v, scale=scale)
    if times.dim() == 1:
        return _attend_one(q, k, v, scale, times, source_times)
    lead = times.shape[:-1]
    members = zip(*(t.flatten(0, len(lead) - 1) for t in (q, k, v, times, source_times)), strict=True)
    outputs = [_attend_one(a, b, c, scale, t, s) for a, b, c, t, s in members]
    return torch.unflatten(torch.stack(outputs), 0, lead)


def _attend_one(q: Tensor, k: Tensor, v: Tensor, scale: float, times: Tensor, source_times: Tensor) -> Tensor:
    """Compute `attend_by_time` for times without leading axes."""
    if torch.equal(times, source_times):
        order = torch.argsort(times, stable=True)
        steps = times[order].diff()
        if (steps > 0).all():
            if (times.diff() > 0).all():
                return attend(q, k, v, scale=scale, causal=True)
            back = torch.argsort(order)
            return attend(*(t[..., order, :] for t in (q, k, v)), scale=scale, causal=True)[..., back, :]

    def mask(i: Tensor, j: Tensor) -> Tensor:
        visible = source_times[j] <= times[i]
        return torch.where(visible, 0.0, -torch.inf)

    return attend(q, k, v, scale=scale, score_bias=mask)
