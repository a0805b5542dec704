"""Products of attention in half precision on a CPU: factors are rounded where the kernels round them, sums are float32.

Whole score matrices are formed, so inputs must be short. Masks other than causal ones are not supported.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from howsmooth import kernels


@contextmanager
def emulated_kernels() -> Iterator[None]:
    """Let `product_dtype=torch.float16` or bfloat16 run on a CPU, within the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "unsupported", _unsupported)
        for launch in (forward, jvp, vjp):
            patch.setattr(kernels, launch.__name__, launch)
        yield


def _unsupported(q: Tensor, *_, **__) -> str | None:
    return None if q.dtype.itemsize == 2 else "only half precision is emulated"


def forward(q, k, v, *, scale, causal=False, **_):
    """As `howsmooth.kernels.forward`."""
    s = _scores(q, k, scale, causal)
    largest = s.amax(-1)
    e = (s - largest[..., None]).exp()
    total = e.sum(-1)
    o = _times(e.to(v.dtype), _repeated(v, q)) / total[..., None]
    return o.to(q.dtype), torch.stack([largest, total.log()], -1)


def jvp(q, k, v, o, normaliser, dq, dk, dv, *, scale, causal=False, out_dtype=None, **_):
    """As `howsmooth.kernels.jvp`."""
    k, v, dk, dv = (_repeated(t, q) for t in (k, v, dk, dv))
    e = (_scores(q, k, scale, causal) - normaliser[..., :1]).exp()
    w = (e * scale * (_times(dq, k.mT) + _times(q, dk.mT))).to(v.dtype)
    row_sum = w.float().sum(-1, keepdim=True)
    do = _times(e.to(v.dtype), dv) + _times(w, v) - row_sum * o.float()
    return (do * (-normaliser[..., 1:]).exp()).to(out_dtype or q.dtype), row_sum[..., 0]


def vjp(q, k, v, o, normaliser, g, *, scale, causal=False, **_):
    """As `howsmooth.kernels.vjp`."""
    key_heads = k.shape[1]
    k, v = _repeated(k, q), _repeated(v, q)
    p = (_scores(q, k, scale, causal) - normaliser.sum(-1, keepdim=True)).exp()
    r = (g.float() * o.float()).sum(-1, keepdim=True)
    ds = (p * (_times(g, v.mT) - r)).to(q.dtype)
    dk, dv = (_summed(t, key_heads).to(q.dtype) for t in (scale * _times(ds.mT, q), _times(p.to(q.dtype).mT, g)))
    return (scale * _times(ds, k)).to(q.dtype), dk, dv


def _times(a: Tensor, b: Tensor) -> Tensor:
    """Return the product of rounded factors, summed in float32."""
    return a.float() @ b.float()


def _scores(q: Tensor, k: Tensor, scale: float, causal: bool) -> Tensor:
    s = scale * _times(q, _repeated(k, q).mT)
    return s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1), -torch.inf) if causal else s


def _repeated(t: Tensor, q: Tensor) -> Tensor:
    """Return keys or values once for each query head."""
    return t.repeat_interleave(q.shape[1] // t.shape[1], 1)


def _summed(t: Tensor, key_heads: int) -> Tensor:
    return t.unflatten(1, (key_heads, -1)).sum(2)
