"""How far tokens are from each other, and from where they end."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.transport import TokenMeasure, wasserstein

BLOCK = 1 << 22  # distances held at once


def diameter(x: Tensor) -> float:
    """The largest distance between two of the tokens x (n, d), in O(n) memory.

    >>> diameter(torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]]))
    5.0
    """
    x = x.detach().double()
    if x.dim() != 2 or 0 in x.shape:
        raise InputError(f"expected tokens of shape (n, d), got {tuple(x.shape)}")
    rows = max(1, BLOCK // len(x))
    exact = "donot_use_mm_for_euclid_dist"
    return max(float(torch.cdist(block, x, compute_mode=exact).max()) for block in x.split(rows))


def farthest_move(x: Tensor, y: Tensor) -> float:
    """max_i |x_i − y_i|: how far the token that has most left to go is from its place in y."""
    return float(torch.linalg.vector_norm(x.double() - y.double(), dim=-1).max())


def w2(x: Tensor, y: Tensor) -> float:
    """W₂ of the tokens as measures of equal masses: exact optimal transport, whichever token ends where.

    >>> w2(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [3.0]])) == 2.5**0.5
    True
    """
    return wasserstein(TokenMeasure(x), TokenMeasure(y), certify=False).value
