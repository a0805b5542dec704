"""Far tokens: at ρX scores grow like ρ², and each query ends up with one key, the one that wins at ρ = 1.

Biases of queries and keys grow like ρ only and finite offsets not at all, so that neither decides anything.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.op import pattern_of
from howsmooth.errors import InputError

TIE = 1e-12  # of the largest scale·|q||k| of a row: closer scores cannot be told apart


@dataclass(frozen=True, eq=False)
class ArgmaxKeys:
    """Who looks at whom far out, in each head (h, n). With a tie in any row there is no limit."""

    key: Tensor  # the key that query i ends up with, −1 if it sees none
    lead: Tensor  # of its score over the second one, at ρ = 1; ∞ where there is no second
    tied: Tensor  # where that lead may be rounding

    @property
    def gap(self) -> float:
        """The smallest lead."""
        return float(self.lead.min())

    @property
    def first_tie(self) -> tuple[int, int] | None:
        """Head and row of a tie, if there is one."""
        return tuple(self.tied.nonzero()[0].tolist()) if bool(self.tied.any()) else None


def argmax_keys(f: SelfAttention, x: Tensor) -> ArgmaxKeys:
    """argmax_j of scale·⟨q_i, k_j⟩ without biases, over the keys that query i sees, for x (n, d).

    Masks, windows, rotary positions and offsets of −∞ are those of the layer. In float64 on the CPU, whatever comes in.

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
            "and no key wins"
        )
    f, x = f.to(device="cpu", dtype=torch.float64), x.detach().to(device="cpu", dtype=torch.float64)
    q, k, s = _visible_scores(f, x)
    first, key = s.max(-1)
    second = s.scatter(-1, key.unsqueeze(-1), -torch.inf).amax(-1)
    lead = torch.where(torch.isneginf(second), torch.inf, first - second)
    size = abs(f.scale) * q.norm(dim=-1) * k.norm(dim=-1).amax(-1, keepdim=True)
    return ArgmaxKeys(key.masked_fill(torch.isneginf(first), -1), lead, lead <= TIE * size)


def _visible_scores(f: SelfAttention, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q and k (h, n, k) without biases, and their scores (h, n, n), −∞ where a key is hidden."""
    plain = SelfAttention(f.wq, f.wk, f.wv, heads=f.heads, kv_heads=f.kv_heads, scale=f.scale, rotary=f.rotary)
    q, k, _ = plain.project(x)
    k = k.repeat_interleave(f.heads // f.kv_heads, 0)
    s = f.scale * q @ k.mT
    if not torch.isfinite(s).all():
        raise InputError(
            "expected finite tokens with scores within float64, got NaN or ∞; divide the tokens by a "
            "number: it changes no winner"
        )
    pattern = pattern_of(q, k, k, **f.pattern())
    i, j = torch.arange(len(x)).unsqueeze(1), torch.arange(len(x)).unsqueeze(0)
    seen, offsets = pattern.visible(i, j), pattern.bias(i, j, s.dtype)
    if seen is not None:
        s = s.masked_fill(~seen, -torch.inf)
    if offsets is not None:
        s = s.masked_fill(torch.isneginf(offsets), -torch.inf)
    return q, k, s
