"""Attention with every option of `attend`, small enough for a dense reference."""

from __future__ import annotations

import torch

from howsmooth import Rotary, SelfAttention


def normal(seed: int, *shape: int, dtype=torch.float64) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def distance_bias(i, j):
    """Offsets as in ALiBi: two heads with different slopes."""
    return -(i - j).abs() * torch.tensor([0.2, 0.7], dtype=torch.float64).view(2, 1, 1)


PATTERNS = {
    "full": {},
    "causal": dict(causal=True),
    "window": dict(window=3),
    "causal window": dict(causal=True, window=2),
    "softcap": dict(softcap=1.5),
    "causal softcap": dict(causal=True, softcap=0.7),
    "scale": dict(scale=3.0),
    "offset": dict(causal=True, offset=-2),
    "bias": dict(score_bias=lambda i, j: -0.3 * (i - j).abs()),
}

# (query heads, key heads, queries, keys, key width, value width)
LAYOUTS = [(1, 1, 1, 1, 1, 1), (2, 2, 7, 7, 3, 3), (4, 2, 6, 6, 3, 5), (2, 2, 5, 9, 4, 4), (3, 1, 9, 5, 2, 6)]


def rotary(interleaved: bool = False) -> Rotary:
    angle = torch.arange(16, dtype=torch.float64)[:, None] * torch.tensor([1.0, 0.3], dtype=torch.float64)
    angle = angle.repeat_interleave(2, 1) if interleaved else torch.cat([angle, angle], 1)
    return Rotary(angle.cos(), angle.sin(), interleaved)


LAYERS = {
    "one head": dict(heads=1),
    "two heads": dict(heads=2),
    "causal": dict(heads=2, causal=True),
    "grouped": dict(heads=4, kv_heads=2, causal=True),
    "one key head": dict(heads=4, kv_heads=1),
    "rotary": dict(heads=2, rotary=rotary()),
    "rotary interleaved": dict(heads=2, causal=True, rotary=rotary(True)),
    "softcap": dict(heads=2, softcap=2.0),
    "window": dict(heads=2, window=2),
    "causal window": dict(heads=2, window=3, causal=True),
    "bias function": dict(heads=2, score_bias=distance_bias),
    "bias table": dict(heads=2, score_bias=normal(9, 2, 4, 4)),
    "scale": dict(heads=2, scale=0.1),
}


def layer(name: str, *, d: int = 6, d_out: int | None = 5, biases: bool = True) -> SelfAttention:
    options = LAYERS[name]
    heads = options["heads"]
    keys, k, w = options.get("kv_heads", heads), 5, 3
    weights = dict(wq=(heads * k, d), wk=(keys * k, d), wv=(keys * w, d))
    if d_out is not None:
        weights["wo"] = (d_out, heads * w)
    tensors = {name: normal(seed, *shape) for seed, (name, shape) in enumerate(weights.items())}
    if biases:
        tensors |= {"b" + name[1]: normal(10 + seed, shape[0]) for seed, (name, shape) in enumerate(weights.items())}
    return SelfAttention(**tensors, **options)
