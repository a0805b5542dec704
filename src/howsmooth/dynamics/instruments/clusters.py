"""Clusters, convex hulls and hyperplanes of tokens, and plateaus of the number of clusters.

clusters        single linkage: tokens connected by steps no longer than a tolerance
hull            the convex hull and its vertices, also of tokens in a plane or on a line
hyperplanes     clusters of the coordinate along the leading left eigenvector of V
plateaus        intervals of depth over which the number of clusters does not change
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial import ConvexHull, QhullError
from torch import Tensor

from howsmooth.errors import InputError

MAX_TOKENS = 10_000  # single linkage takes 400 MB for their distances
MAX_DIMENSIONS = 8  # a hull of n tokens has up to n^⌊d/2⌋ facets
ROUNDING = 1e-12  # relative to the widest axis: thinner axes are rounding errors
EIGENVALUE_TOLERANCE = 1e-9  # eigenvalues closer than this, relative to the largest, count as equal


@dataclass(frozen=True, eq=False)
class Clusters:
    """Clusters of tokens, the largest first.

    All tolerances from `reach` to `gap` yield the same clusters.

    Attributes:
        count: Number of clusters.
        sizes: Number of tokens in each.
        labels: Cluster of each token, (n,), from 0 to count − 1.
        centres: Mean of each cluster, (count, d).
        tol: The tolerance, an absolute distance.
        reach: The longest step needed within a cluster.
        gap: The shortest distance between two clusters; ∞ if there is only one.
    """

    count: int
    sizes: tuple[int, ...]
    labels: Tensor
    centres: Tensor
    tol: float
    reach: float
    gap: float


def clusters(x: Tensor, tol: float) -> Clusters:
    """Find the clusters of tokens by single linkage.

    Args:
        x: The tokens (n, d), at most 10,000 of them.
        tol: An absolute distance: tokens connected by steps up to it are in one cluster.

    Returns:
        The clusters, the largest first.

    Raises:
        InputError: If x is no finite tensor (n, d) or has too many tokens, or the tolerance is not positive.

    Example:
        >>> found = clusters(torch.tensor([[0.0], [0.01], [5.0]]), tol=0.1)
        >>> found.count, found.sizes, round(found.gap, 2)
        (2, (2, 1), 4.99)
    """
    points = as_points(x, MAX_TOKENS)
    check_tolerance(tol)
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
        count=len(sizes),
        sizes=tuple(sizes.tolist()),
        labels=torch.from_numpy(labels),
        centres=torch.from_numpy(centres / sizes[:, None]),
        tol=float(tol),
        reach=float(inside.max()) if inside.size else 0.0,
        gap=float(outside.min()) if outside.size else math.inf,
    )


def as_points(x: Tensor, most: int | None = None) -> np.ndarray:
    """Return tokens as a float64 array (n, d); raise `InputError` for another shape or dtype, NaN or ∞."""
    if not isinstance(x, Tensor) or x.dim() != 2 or 0 in x.shape or not x.dtype.is_floating_point:
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected tokens as a floating tensor (n, d), got {got}")
    if most is not None and len(x) > most:
        raise InputError(f"expected at most {most} tokens, got {len(x)}; take a sample of them")
    points = x.detach().to("cpu", torch.float64).numpy()
    if not np.isfinite(points).all():
        raise InputError("expected finite tokens, got NaN or ∞")
    return points


def check_tolerance(tol: float) -> None:
    """Raise `InputError` unless the tolerance is a positive finite number."""
    if isinstance(tol, bool) or not isinstance(tol, (int, float)) or not 0 < tol < math.inf:
        raise InputError(f"expected a positive tolerance, an absolute distance, got {tol!r}")


@dataclass(frozen=True, eq=False)
class Hull:
    """The convex hull of tokens.

    Attributes:
        count: Number of vertices; those closer than `tol` count as one.
        vertices: The vertices, (count, d).
        dimension: Dimension of the affine span.
        at_vertices: Fraction of tokens within `tol` of a vertex.
        at_origin: Fraction of tokens within `tol` of 0.
        tol: The tolerance, an absolute distance.
    """

    count: int
    vertices: Tensor
    dimension: int
    at_vertices: float
    at_origin: float
    tol: float


def hull(x: Tensor, tol: float) -> Hull:
    """Compute the convex hull of tokens.

    Args:
        x: The tokens (n, d), d ≤ 8.
        tol: An absolute distance: vertices connected by steps up to it count as one, and axes thinner than it are
            dropped.

    Returns:
        The hull and its vertices.

    Raises:
        InputError: If x is no finite tensor (n, d) with d ≤ 8, or the tolerance is not positive.

    Example:
        >>> square = torch.tensor([[0.0, 0.0], [0, 1], [1, 0], [1, 1], [0.5, 0.5]])
        >>> found = hull(square, tol=1e-6)
        >>> found.count, found.dimension, found.at_vertices
        (4, 2, 0.8)
    """
    points = as_points(x)
    check_tolerance(tol)
    if points.shape[1] > MAX_DIMENSIONS:
        raise InputError(
            f"expected tokens of at most {MAX_DIMENSIONS} dimensions for a hull, got {points.shape[1]}; "
            "project them first"
        )
    corners, dimension = _hull_vertices(_affine_coordinates(points, tol))
    # The tokens of one cluster can all be vertices of the exact hull: merge them to their mean.
    vertices = clusters(torch.from_numpy(points[corners]), tol).centres.numpy()
    far = np.linalg.norm(points[:, None] - vertices[None], axis=-1).min(1) if len(vertices) else np.zeros(len(points))
    return Hull(
        count=len(vertices),
        vertices=torch.from_numpy(vertices),
        dimension=dimension,
        at_vertices=float((far <= tol).mean()),
        at_origin=float((np.linalg.norm(points, axis=1) <= tol).mean()),
        tol=float(tol),
    )


def _affine_coordinates(points: np.ndarray, tol: float) -> np.ndarray:
    """Return coordinates in the affine span, up to the tolerance and rounding, widest axis first, (n, dimension)."""
    centred = points - points[0]  # exact for equal tokens, unlike the subtraction of a rounded mean
    centred -= centred.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ axes.T
    sizes = np.abs(flat).max(0)
    return flat[:, sizes > max(tol, ROUNDING * sizes.max(initial=0))]


def _hull_vertices(flat: np.ndarray) -> tuple[np.ndarray, int]:
    """Return the indices of the vertices of the hull, and its dimension."""
    dimension = flat.shape[1]
    if dimension == 0:
        return np.array([0]), 0
    if dimension == 1:
        return np.array([flat[:, 0].argmin(), flat[:, 0].argmax()]), 1
    if len(flat) <= dimension + 1:
        return np.arange(len(flat)), dimension
    try:
        # Vertices do not depend on the scales of the axes, but Qhull's test for flatness does.
        return ConvexHull(flat / np.abs(flat).max(0)).vertices, dimension
    except QhullError:  # numerically flat along the last axis
        return _hull_vertices(flat[:, :-1])


@dataclass(frozen=True, eq=False)
class Hyperplanes:
    """Clusters of the values φ₁*z: each is a hyperplane.

    The tolerance is absolute, since all values may tend to 0, which is a single hyperplane.

    Attributes:
        count: Number of hyperplanes.
        values: Value of φ₁*z on each, in increasing order.
        sizes: Number of tokens on each.
        eigenvalue: The leading eigenvalue of V.
        functional: φ₁*, (d,), of unit norm.
        tol: The tolerance, an absolute distance.
    """

    count: int
    values: tuple[float, ...]
    sizes: tuple[int, ...]
    eigenvalue: float
    functional: Tensor
    tol: float


def leading_space(V: Tensor) -> tuple[float, Tensor]:
    """Return the largest real part of V's eigenvalues, and a basis of the left eigenvectors that attain it.

    The coordinates zᵀ·basis grow fastest. With m = 1 tokens gather on hyperplanes; with 1 < m < d they gather at the
    product of a polytope and a subspace.

    Args:
        V: A square matrix, (d, d).

    Returns:
        The real part, and the orthonormal basis (d, m).

    Raises:
        InputError: If V is not square.

    Example:
        >>> value, basis = leading_space(torch.diag(torch.tensor([2.0, 1.0])))
        >>> value, basis.abs().tolist()
        (2.0, [[1.0], [0.0]])
    """
    if V.dim() != 2 or V.shape[0] != V.shape[1]:
        raise InputError(f"expected a square V, got shape {tuple(V.shape)}")
    values, vectors = torch.linalg.eig(V.detach().double().mT)
    size = max(float(values.abs().max()), torch.finfo(torch.float64).tiny)
    near = values.real >= float(values.real.max()) - EIGENVALUE_TOLERANCE * size
    # A complex pair spans the plane of its real and imaginary parts. The SVD drops duplicates of a defective one.
    spanned = torch.cat([vectors[:, near].real, vectors[:, near].imag], 1)
    basis, sigma, _ = torch.linalg.svd(spanned, full_matrices=False)
    basis = basis[:, sigma > math.sqrt(EIGENVALUE_TOLERANCE) * sigma[0]]
    top = basis.gather(0, basis.abs().argmax(0, keepdim=True))
    return float(values.real.max()), basis * torch.sign(top)


def hyperplanes(z: Tensor, V: Tensor, tol: float) -> Hyperplanes:
    """Find the hyperplanes on which tokens gather, for a V with one leading direction.

    Args:
        z: The tokens, (n, d).
        V: The matrix of the values, (d, d).
        tol: An absolute distance between values of φ₁*z.

    Returns:
        The values of φ₁*z at which tokens gather.

    Raises:
        InputError: If V has several leading directions.

    Reference:
        geshkovski2023emergence: at most three hyperplanes.

    Example:
        >>> z = torch.tensor([[1.0, 5.0], [1.0, -3.0], [0.0, 2.0]])
        >>> hyperplanes(z, torch.diag(torch.tensor([2.0, 1.0])), tol=1e-3).values
        (0.0, 1.0)
    """
    value, basis = leading_space(V)
    if basis.shape[1] != 1:
        raise InputError(
            f"expected a V with one leading direction, got {basis.shape[1]} of them for the eigenvalue "
            f"{value:.4g}; compute clusters in leading_space(V) instead"
        )
    functional = basis[:, 0]
    found: Clusters = clusters((z.detach().double() @ functional.to(z.device)).unsqueeze(-1), tol)
    order = found.centres[:, 0].argsort()
    return Hyperplanes(
        count=found.count,
        values=tuple(found.centres[order, 0].tolist()),
        sizes=tuple(found.sizes[i] for i in order.tolist()),
        eigenvalue=value,
        functional=functional,
        tol=float(tol),
    )


@dataclass(frozen=True)
class Plateau:
    """An interval of depth over which the number of clusters is constant at all saved depths.

    Attributes:
        count: Number of clusters.
        start: First depth.
        end: Last depth.
    """

    count: int
    start: float
    end: float

    @property
    def length(self) -> float:
        """The length of the interval."""
        return self.end - self.start


def plateaus(times: Sequence[float], counts: Sequence[int], least: float = 0.05) -> list[Plateau]:
    """Find the intervals of constant count that cover at least the fraction `least` of the depth.

    Changes between two saved depths are not noticed.

    Args:
        times: The saved depths, in order.
        counts: The number of clusters at each.
        least: The smallest fraction of the whole depth.

    Returns:
        The plateaus in order of depth.

    Raises:
        InputError: If the numbers of depths and counts differ, or the fraction is not in [0, 1].

    Example:
        >>> plateaus([0, 1, 2, 3, 4], [5, 5, 2, 2, 2], least=0.4)
        [Plateau(count=2, start=2.0, end=4.0)]
    """
    if len(times) != len(counts) or not times:
        raise InputError(f"expected a count for each of the depths, got {len(counts)} for {len(times)}")
    if not 0 <= least <= 1:
        raise InputError(f"expected a fraction from 0 to 1, got {least!r}")
    found, first = [], 0
    for k in range(1, len(counts) + 1):
        if k == len(counts) or counts[k] != counts[first]:
            found.append(Plateau(int(counts[first]), float(times[first]), float(times[k - 1])))
            first = k
    shortest = least * (times[-1] - times[0])
    return [plateau for plateau in found if plateau.length > 0 and plateau.length >= shortest]
