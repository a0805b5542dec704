"""Attention of two tokens on a line with score −xy and value y, in sixty digits: far from 0 float64 has too few."""

from __future__ import annotations

from decimal import Decimal, localcontext

import torch

OFFSETS = (10.0, 1e3, 1e4, 1e5)


def tokens(offset: float) -> torch.Tensor:
    return torch.tensor([[offset + 1 / offset], [offset]], dtype=torch.float64)


def truths(x: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return |∂₁G(x_i, μ)| for both tokens, and the norm of the whole derivative."""
    with localcontext() as digits:
        digits.prec = 60
        x = [Decimal(float(t)) for t in x.flatten()]
        own, rows = [], []
        for t in x:
            weights = [(t * (min(x) - y)).exp() for y in x]
            p = [w / sum(weights) for w in weights]
            mean = sum(w * y for w, y in zip(p, x, strict=True))
            rows.append([w * (1 - (y - mean) * t) for w, y in zip(p, x, strict=True)])
            own.append(p[0] * p[1] * (x[0] - x[1]) ** 2)
        for i in range(2):
            rows[i][i] -= own[i]
        squares = sum(entry**2 for row in rows for entry in row)
        det = rows[0][0] * rows[1][1] - rows[0][1] * rows[1][0]
        norm = ((squares + (squares**2 - 4 * det**2).sqrt()) / 2).sqrt()
        return torch.tensor([float(t) for t in own], dtype=torch.float64), float(norm)
