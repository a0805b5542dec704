"""Score offsets written out."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.attention.pattern import Pattern
from howsmooth.errors import InputError


def offsets(f: SelfAttention, n: int) -> tuple[Tensor, Tensor]:
    """β (h or 1, n, n), and which pairs the mask hides (n, n); both of one pair alone if there are no offsets."""
    if f.score_bias is None:
        return torch.zeros(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.bool)
    pattern = Pattern(1.0, f.causal, f.window, None, f.score_bias)
    i, j = torch.arange(n).unsqueeze(1), torch.arange(n).unsqueeze(0)
    bias = pattern.bias(i.to(f.device), j.to(f.device), torch.float64).cpu()
    bias = bias.reshape((1,) * (3 - bias.dim()) + bias.shape)
    if isinstance(f.score_bias, Tensor) and tuple(bias.shape[-2:]) != (n, n):
        raise InputError(f"expected a score_bias table of at least {n} × {n}, got {tuple(f.score_bias.shape)}")
    seen = pattern.visible(i, j)
    return bias.expand(-1, n, n), torch.zeros(n, n, dtype=torch.bool) if seen is None else ~seen
