"""Attention by distance with the weights of a softmax layer: queries in the place of keys, values as they were."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.attention import SelfAttention, attend
from howsmooth.errors import InputError


class DistanceAttention:
    """P_ij ∝ exp(−scale/2 · |q_i − q_j|²), o = P v, with q, v, mask, positions and projection of a softmax layer.

    Since −|q_i − q_j|²/2 = ⟨q_i, q_j⟩ − |q_j|²/2 − |q_i|²/2, it is the softmax layer with keys tied to its queries, and
    less weight for long ones. Values do not go through the queries as in `L2Attention`, and nothing bounds the
    derivative over all inputs.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> f = DistanceAttention(SelfAttention(eye, eye, eye))
    >>> f(torch.tensor([[99.0, 0.0], [0.0, 99.0]], dtype=torch.float64))  # each token sees itself
    tensor([[99.,  0.],
            [ 0., 99.]], dtype=torch.float64)
    """

    def __init__(self, f: SelfAttention):
        if not isinstance(f, SelfAttention):
            raise InputError(f"DistanceAttention: expected a SelfAttention, got {type(f).__name__}")
        if f.softcap is not None:
            raise InputError("DistanceAttention: expected a layer without a soft cap of its scores, got one with it")
        self.f = f

    @property
    def dtype(self) -> torch.dtype:
        return self.f.dtype

    def __call__(self, x: Tensor) -> Tensor:
        f = self.f if x.dtype == self.f.dtype else self.f.to(x.dtype)
        f.check_tokens(x, None)
        q, _, v = f.project(x)
        queries = torch.cat([q, torch.ones_like(q[..., :1])], -1)
        keys = torch.cat([q, -q.square().sum(-1, keepdim=True) / 2], -1)
        o = attend(queries, keys, v.repeat_interleave(f.heads // f.kv_heads, -3), **f.pattern())
        o = o.transpose(-3, -2).flatten(-2)
        return o if f.wo is None else F.linear(o, f.wo, f.bo)

    def __repr__(self) -> str:
        return f"DistanceAttention({self.f!r})"
