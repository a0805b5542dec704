"""Σ_j P_ij v_j from queries and keys: the op, or for few plain tokens on the CPU a loop that is kinder to the cache."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.attention import attend

ROWS = 128  # of scores held at once: with some thousand keys they stay in the cache
SMALLEST = -700.0  # e to this is still a normal number; below, exponentials take three times as long


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
