"""Clusters: tokens that a chain of steps no longer than a tolerance holds together (single linkage)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor

from howsmooth.errors import InputError

MOST = 10_000  # tokens: all their distances at once take 400 MB


@dataclass(frozen=True, eq=False)
class Clusters:
    """Which token is in which cluster, the largest cluster first.

    `gap` is the shortest step between two clusters (∞ for one): any tolerance from `reach`, the longest step needed
    inside one, up to there finds the same.
    """

    count: int
    sizes: tuple[int, ...]
    labels: Tensor  # (n,), 0 … count − 1
    centres: Tensor  # (count, d)
    tol: float
    reach: float
    gap: float


def clusters(x: Tensor, tol: float) -> Clusters:
    """The clusters of tokens x (n, d) at an absolute tolerance.

    >>> found = clusters(torch.tensor([[0.0], [0.01], [5.0]]), tol=0.1)
    >>> found.count, found.sizes, round(found.gap, 2)
    (2, (2, 1), 4.99)
    """
    points = as_points(x, MOST)
    refuse_wrong_tolerance(tol)
    if len(points) == 1:
        tree, raw = np.empty((0, 4)), np.ones(1, dtype=int)
    else:
        tree = linkage(points, "single")
        raw = fcluster(tree, tol, criterion="distance")
    order = np.argsort(-np.bincount(raw)[1:], kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    labels = rank[raw - 1]
    sizes = np.bincount(labels)
    centres = np.zeros((len(sizes), points.shape[1]))
    np.add.at(centres, labels, points)
    heights = tree[:, 2]
    inside, outside = heights[heights <= tol], heights[heights > tol]
    return Clusters(
        count=len(sizes), sizes=tuple(sizes.tolist()), labels=torch.from_numpy(labels),
        centres=torch.from_numpy(centres / sizes[:, None]), tol=float(tol),
        reach=float(inside.max()) if inside.size else 0.0, gap=float(outside.min()) if outside.size else math.inf)


def as_points(x: Tensor, most: int | None = None) -> np.ndarray:
    """Tokens as a float64 array (n, d), refused where they are none."""
    if not isinstance(x, Tensor) or x.dim() != 2 or 0 in x.shape or not x.dtype.is_floating_point:
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected tokens as a floating tensor (n, d), got {got}")
    if most is not None and len(x) > most:
        raise InputError(f"expected at most {most} tokens, got {len(x)}; look at a sample of them")
    points = x.detach().to("cpu", torch.float64).numpy()
    if not np.isfinite(points).all():
        raise InputError("expected finite tokens, got NaN or ∞")
    return points


def refuse_wrong_tolerance(tol: float) -> None:
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not 0 < tol < math.inf:
        raise InputError(f"expected a positive tolerance, an absolute distance, got {tol!r}")
