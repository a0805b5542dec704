"""Norms of matrices, many at once."""

from __future__ import annotations

import torch
from torch import Tensor


def top_value(m: Tensor) -> Tensor:
    """The largest singular value of each matrix (…, rows, cols), from its smaller Gram matrix: accurate at the top."""
    size = m.abs().amax((-2, -1), keepdim=True)
    m = m / torch.where(size > 0, size, 1.0)
    gram = m @ m.mT if m.shape[-2] <= m.shape[-1] else m.mT @ m
    return size[..., 0, 0] * top_eigenvalue(gram).sqrt()


def top_eigenvalue(m: Tensor) -> Tensor:
    """The largest eigenvalue of each symmetric positive matrix."""
    return torch.linalg.eigvalsh(m)[..., -1].clamp(min=0)


def norm(matrices: Tensor) -> Tensor:
    """The largest singular value of each matrix (…, rows, cols)."""
    return torch.linalg.matrix_norm(matrices, 2)


def largest_eigenvalue(m: Tensor, least: Tensor) -> Tensor:
    """max(least, the largest eigenvalue of all matrices (rows, a, a)), symmetric and positive.

    ‖M²‖_F^½ ≥ λ says cheaply which matrices need not be looked at.
    """
    size = m.abs().amax((-2, -1)).clamp(min=1e-300)
    scaled = m / size[:, None, None]
    above = torch.linalg.matrix_norm(scaled @ scaled).sqrt() * size
    first = above.argmax()
    best = torch.maximum(least, top_eigenvalue(m[first]))
    left = m[above > best]
    return torch.maximum(best, top_eigenvalue(left).max()) if len(left) else best
