"""How tokens are spread, in any dimension: their directions, their sizes, how far they are from being one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from howsmooth.dynamics.instruments.clusters import as_points
from howsmooth.errors import InputError


@dataclass(frozen=True)
class Spread:
    """Of n tokens, and of their directions x/|x|, which all norms of a Transformer's layers see.

    `cosine` is the mean cosine between two different tokens: 1 when all point the same way. The two ranks are those of
    the directions as a matrix (n, d): `effective_rank` is e to the entropy of σ/Σσ, `participation` (Σσ²)²/Σσ⁴; both
    lie between 1 (one direction) and min(n, d). `to_mean` is √Σ|x − x̄|² / √Σ|x|²: 0 when all tokens are one.
    `size` is the median norm, `largest` the largest.
    """

    cosine: float
    effective_rank: float
    participation: float
    to_mean: float
    size: float
    largest: float


def spread(x: Tensor) -> Spread:
    """The spread of at least two tokens x (n, d).

    >>> found = spread(torch.eye(3, dtype=torch.float64))
    >>> found.cosine, round(found.effective_rank, 9), round(found.participation, 9)
    (0.0, 3.0, 3.0)
    """
    points = as_points(x)
    if len(points) < 2:
        raise InputError(f"expected at least 2 tokens to see how they are spread, got {len(points)}")
    norms, u = np.linalg.norm(points, axis=1), directions(x).numpy()
    n, total = len(points), u.sum(0)
    sigma = np.linalg.svd(u, compute_uv=False)
    share = sigma[sigma > 0] / sigma.sum()
    return Spread(
        cosine=float((total @ total - n) / (n * (n - 1))), effective_rank=float(np.exp(-(share * np.log(share)).sum())),
        participation=float((sigma**2).sum() ** 2 / (sigma**4).sum()),
        to_mean=float(np.linalg.norm(points - points.mean(0)) / np.linalg.norm(points)),
        size=float(np.median(norms)), largest=float(norms.max()))


def directions(x: Tensor) -> Tensor:
    """x/|x| of each token (n, d), in float64 on the CPU.

    >>> directions(torch.tensor([[3.0, 4.0]])).tolist()
    [[0.6, 0.8]]
    """
    points = torch.from_numpy(as_points(x))
    norms = torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    if bool((norms == 0).any()):
        raise InputError(f"expected tokens other than 0, got 0 as token {int((norms == 0).nonzero()[0, 0])}; it has no "
                         "direction")
    return points / norms
