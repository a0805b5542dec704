"""Which implementation of `attend` runs for given tensors, and why it is not the fastest."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from howsmooth import kernels
from howsmooth.attention.arguments import is_causal_bias
from howsmooth.attention.pattern import ScoreBias

if TYPE_CHECKING:
    from howsmooth.attention.op import Mask

KERNELS, BLOCKS = "Triton kernels", "blocks of queries in PyTorch"


class Implementation(NamedTuple):
    """What computes attention and its derivatives.

    Attributes:
        name: "Triton kernels" or "blocks of queries in PyTorch".
        reason: Why the kernels do not run; None if they do.
    """

    name: str
    reason: str | None


def implementation(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    score_bias: ScoreBias | None = None,
    mask: Mask | None = None,
    padding: Tensor | None = None,
) -> Implementation:
    """Return which implementation of `attend` runs for these arguments, and why not the kernels.

    The other arguments of `attend` do not affect the choice.

    Args:
        q: Queries (…, h, n, k).
        k: Keys (…, hkv, m, k).
        v: Values (…, hkv, m, w).
        score_bias: As in `attend`.
        mask: As in `attend`.
        padding: As in `attend`.

    Returns:
        The name and the reason.

    Example:
        >>> x = torch.zeros(2, 300, 64)
        >>> implementation(x, x, x, score_bias=lambda i, j: i - j).reason
        'the kernels take a score_bias as a table, got a function'
    """
    lead = torch.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    b = math.prod(lead)
    q, k, v = (t.expand(*lead, *t.shape[-3:]).reshape(b, *t.shape[-3:]) for t in (q, k, v))
    if padding is not None:
        padding = padding.expand(*lead, padding.shape[-1]).reshape(b, padding.shape[-1])
    # A CausalBias of PyTorch is a causal mask, which does not affect the choice.
    score_bias = None if is_causal_bias(score_bias) else score_bias
    mask = None if is_causal_bias(mask) else mask
    is_table = isinstance(mask, Tensor)
    table = mask if is_table else score_bias
    is_sparse = mask is not None and not is_table
    reason = kernels.unsupported(q, k, v, score_bias=table, padding=padding, sparse=is_sparse)
    return Implementation(KERNELS if reason is None else BLOCKS, reason)


def implementation_on(device: torch.device | str, dtype: torch.dtype) -> Implementation:
    """Return which implementation of `attend` runs for heads of width 64 without a mask, and why not the kernels.

    Example:
        >>> implementation_on("cpu", torch.float32).name
        'blocks of queries in PyTorch'
    """
    x = torch.empty(1, 1, 1, 64, device=device, dtype=dtype)
    return implementation(x, x, x)
