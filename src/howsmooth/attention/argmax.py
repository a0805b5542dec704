"""The key with the largest score of each query, to which attention converges as tokens grow.

At ρX scores grow like ρ², so that as ρ → ∞ each query attends to one key alone, the one with the largest score at
ρ = 1. Biases of queries and keys add terms of order ρ, and finite offsets of order 1: neither affects the limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.op import pattern_of
from howsmooth.errors import InputError

TIE_TOLERANCE = 1e-12  # relative to the largest scale·|q||k| of a row: closer scores may differ by rounding alone


@dataclass(frozen=True, eq=False)
class ArgmaxKeys:
    """The key with the largest score of each query, in each head. With a tie in any row there is no limit.

    Attributes:
        key: index of that key, (h, n); −1 if the query sees none.
        lead: its score minus the second largest, (h, n), at ρ = 1; ∞ where there is no second key.
        tied: whether that difference may be rounding, (h, n).
    """

    key: Tensor
    lead: Tensor
    tied: Tensor

    @property
    def gap(self) -> float:
        """The smallest lead of all rows."""
        return float(self.lead.min())

    @property
    def first_tie(self) -> tuple[int, int] | None:
        """Head and row of the first tie, or None."""
        if not bool(self.tied.any()):
            return None
        head, row = self.tied.nonzero()[0].tolist()
        return head, row


@torch.no_grad()
def argmax_keys(f: SelfAttention, x: Tensor) -> ArgmaxKeys:
    """Return argmax_j of scale·⟨q_i, k_j⟩ without biases, over the keys that query i sees.

    Masks, windows, rotary positions and offsets of −∞ are those of the layer. Computed in float64 on the CPU.

    Args:
        f: the layer, without a soft cap.
        x: tokens (n, d).

    Returns:
        The keys, with the differences to the second largest scores.

    Raises:
        InputError: if tokens do not fit the layer, scores are capped, or scores are not finite.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> x = torch.tensor([[1.0, 0.0], [0.5, 0.0], [0.0, 1.0]], dtype=torch.float64)
        >>> found = argmax_keys(SelfAttention(eye, eye, eye, scale=1.0), x)
        >>> found.key.tolist(), found.gap, found.first_tie
        ([[0, 0, 2]], 0.25, None)
    """
    if not isinstance(f, SelfAttention) or not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != f.d:
        got = f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected a SelfAttention and tokens (n, d) of its width, got {f!r} and {got}")
    if f.softcap is not None:
        raise InputError(
            f"expected scores without a soft cap, got softcap={f.softcap:g}; capped scores stay bounded, "
            "and attention does not converge to one key"
        )
    f, x = f.converted(device="cpu", dtype=torch.float64), x.detach().to(device="cpu", dtype=torch.float64)
    q, k, s = _visible_scores(f, x)
    first, key = s.max(-1)
    second = s.scatter(-1, key.unsqueeze(-1), -torch.inf).amax(-1)
    lead = torch.where(torch.isneginf(second), torch.inf, first - second)
    size = abs(f.scale) * q.norm(dim=-1) * k.norm(dim=-1).amax(-1, keepdim=True)
    return ArgmaxKeys(key.masked_fill(torch.isneginf(first), -1), lead, lead <= TIE_TOLERANCE * size)


def _visible_scores(f: SelfAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return q and k (h, n, k) without biases, and their scores (h, n, n), −∞ where a key is masked."""
    q, k, _ = f.replaced(bq=None, bk=None, bv=None).project(x)
    k = k.repeat_interleave(f.heads // f.kv_heads, 0)
    s = f.scale * q @ k.mT
    if not torch.isfinite(s).all():
        raise InputError(
            "expected finite tokens with scores within float64, got NaN or ∞; divide the tokens by a "
            "number, which leaves the largest score of each row the largest"
        )
    pattern = pattern_of(q, k, k, **f.pattern())
    i, j = torch.arange(len(x)).unsqueeze(1), torch.arange(len(x)).unsqueeze(0)
    visible, offsets = pattern.visible(i, j), pattern.bias(i, j, s.dtype)
    if visible is not None:
        s = s.masked_fill(~visible, -torch.inf)
    if offsets is not None:
        s = s.masked_fill(torch.isneginf(offsets), -torch.inf)
    return q, k, s
