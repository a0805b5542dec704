"""Splitting by brute force: atoms cut into pieces, and the dense Jacobian of the longer sequence."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.attention import Rotary, SelfAttention, reference


def cut(log_weights: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Return the log weights of k uneven pieces of each atom, (n·k,)."""
    shares = torch.rand(len(log_weights), k, generator=generator, dtype=torch.float64) + 0.1
    return (log_weights[:, None] + (shares / shares.sum(-1, keepdim=True)).log()).flatten()


def split_norm(
    f: SelfAttention,
    x: Tensor,
    k: int,
    log_weights: Tensor | None = None,
    times: Tensor | None = None,
    residual: bool = False,
    seed: int = 0,
) -> float:
    """Return ‖D‖ of the layer at k copies of every token; copies keep their position, and masks allow equal times.

    Every copy is a token of its own in a plain dense Jacobian; weights and times enter as a table of offsets.
    """
    n = len(x)
    # By default equal copies, as in a sequence that repeats its tokens.
    equal = torch.zeros(n * k, dtype=torch.float64)
    pieces = equal if log_weights is None else cut(log_weights, k, torch.Generator().manual_seed(seed))
    table = pieces.expand(n * k, n * k).clone()
    if f.causal or times is not None:
        when = (torch.arange(n) if times is None else times).repeat_interleave(k)
        table[when[None, :] > when[:, None]] = -torch.inf
    rotary = f.rotary
    if rotary is not None:
        rotary = Rotary(*(t[:n].repeat_interleave(k, 0) for t in (rotary.cos, rotary.sin)), rotary.interleaved)
    copies = SelfAttention(
        f.wq,
        f.wk,
        f.wv,
        f.wo,
        bq=f.bq,
        bk=f.bk,
        bv=f.bv,
        bo=f.bo,
        heads=f.heads,
        kv_heads=f.kv_heads,
        scale=f.scale,
        softcap=f.softcap,
        rotary=rotary,
        score_bias=table,
    )
    j = reference.jacobian(copies, x.repeat_interleave(k, 0))
    if residual:
        j = j + torch.eye(len(j), dtype=j.dtype)
    root = (pieces / 2).exp()
    j = j.unflatten(0, (n * k, -1)) * root[:, None, None]
    j = j.flatten(0, 1).unflatten(1, (n * k, -1)) / root[:, None]
    return float(torch.linalg.matrix_norm(j.flatten(1), ord=2))
