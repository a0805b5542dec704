"""Where tokens gather: clusters, the convex hull and its vertices, hyperplanes, and plateaus of their number.

clusters        tokens that a chain of steps no longer than a tolerance holds together (single linkage)
hull            the convex hull and its vertices, also where the tokens lie in a plane or on a line
hyperplanes     tokens seen along the leading left eigenvector of V
plateaus        stretches of depth over which the number of clusters does not change
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

MOST_TOKENS = 10_000  # tokens: all their distances at once take 400 MB
MOST_DIMENSIONS = 8  # a hull of n tokens has up to n^⌊d/2⌋ facets
ROUNDING = 1e-12  # of the widest axis: what is thinner is noise of the arithmetic
SIMPLE = 1e-9  # eigenvalues closer than this, relative to the largest, count as one


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
    points = as_points(x, MOST_TOKENS)
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
        count=len(sizes),
        sizes=tuple(sizes.tolist()),
        labels=torch.from_numpy(labels),
        centres=torch.from_numpy(centres / sizes[:, None]),
        tol=float(tol),
        reach=float(inside.max()) if inside.size else 0.0,
        gap=float(outside.min()) if outside.size else math.inf,
    )


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


@dataclass(frozen=True, eq=False)
class Hull:
    """Vertices (count, d) of the hull, corners closer than `tol` taken together; `dimension` is that of its plane.

    `at_vertices` and `at_origin` are the shares of tokens within `tol` of a vertex, and of 0.
    """

    count: int
    vertices: Tensor
    dimension: int
    at_vertices: float
    at_origin: float
    tol: float


def hull(x: Tensor, tol: float) -> Hull:
    """The hull of tokens x (n, d), d ≤ 8, at an absolute tolerance.

    >>> square = torch.tensor([[0.0, 0.0], [0, 1], [1, 0], [1, 1], [0.5, 0.5]])
    >>> found = hull(square, tol=1e-6)
    >>> found.count, found.dimension, found.at_vertices
    (4, 2, 0.8)
    """
    points = as_points(x)
    refuse_wrong_tolerance(tol)
    if points.shape[1] > MOST_DIMENSIONS:
        raise InputError(
            f"expected tokens of at most {MOST_DIMENSIONS} dimensions for a hull, got {points.shape[1]}; "
            "project them first"
        )
    corners, dimension = _corners(_in_their_plane(points, tol))
    # Tokens of one cluster give a vertex many corners: it is one, and stands where they are on average.
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


def _in_their_plane(points: np.ndarray, tol: float) -> np.ndarray:
    """Coordinates in the plane that the points span up to the tolerance and to rounding, widest first, (n, dimension)."""
    centred = points - points[0]  # exact where tokens agree: the mean of large ones is not
    centred -= centred.mean(0)
    _, _, axes = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ axes.T
    sizes = np.abs(flat).max(0)
    return flat[:, sizes > max(tol, ROUNDING * sizes.max(initial=0))]


def _corners(flat: np.ndarray) -> tuple[np.ndarray, int]:
    """Which points are corners of their hull, and the dimension of it."""
    dimension = flat.shape[1]
    if dimension == 0:
        return np.array([0]), 0
    if dimension == 1:
        return np.array([flat[:, 0].argmin(), flat[:, 0].argmax()]), 1
    if len(flat) <= dimension + 1:
        return np.arange(len(flat)), dimension
    try:
        # The corners are the same whatever the units of the axes; what Qhull takes for flat is not.
        return ConvexHull(flat / np.abs(flat).max(0)).vertices, dimension
    except QhullError:  # flat along the last axis, for all that can be told
        return _corners(flat[:, :-1])


@dataclass(frozen=True, eq=False)
class Hyperplanes:
    """Levels φ₁*z at which tokens gather: each is a hyperplane. `values` are sorted, `sizes` go with them.

    All values may tend to 0, which is one hyperplane; so the tolerance is absolute.
    """

    count: int
    values: tuple[float, ...]
    sizes: tuple[int, ...]
    eigenvalue: float
    functional: Tensor  # φ₁*, (d,), unit norm
    tol: float


def leading_space(V: Tensor) -> tuple[float, Tensor]:
    """The largest real part of V's eigenvalues, and an orthonormal basis (d, m) of the left eigenvectors that have it.

    zᵀ times the basis is what of z grows fastest: m = 1 is the hyperplane picture, 1 < m < d polytope times subspace.

    >>> value, basis = leading_space(torch.diag(torch.tensor([2.0, 1.0])))
    >>> value, basis.abs().tolist()
    (2.0, [[1.0], [0.0]])
    """
    if V.dim() != 2 or V.shape[0] != V.shape[1]:
        raise InputError(f"expected a square V, got shape {tuple(V.shape)}")
    values, vectors = torch.linalg.eig(V.detach().double().mT)
    size = max(float(values.abs().max()), torch.finfo(torch.float64).tiny)
    near = values.real >= float(values.real.max()) - SIMPLE * size
    # A complex pair spans the plane of its real and imaginary parts; a defective eigenvalue has too few.
    spanned = torch.cat([vectors[:, near].real, vectors[:, near].imag], 1)
    basis, sigma, _ = torch.linalg.svd(spanned, full_matrices=False)
    basis = basis[:, sigma > math.sqrt(SIMPLE) * sigma[0]]
    top = basis.gather(0, basis.abs().argmax(0, keepdim=True))
    return float(values.real.max()), basis * torch.sign(top)


def hyperplanes(z: Tensor, V: Tensor, tol: float) -> Hyperplanes:
    """The levels of φ₁*z among tokens z (n, d).

    >>> z = torch.tensor([[1.0, 5.0], [1.0, -3.0], [0.0, 2.0]])
    >>> hyperplanes(z, torch.diag(torch.tensor([2.0, 1.0])), tol=1e-3).values
    (0.0, 1.0)
    """
    value, basis = leading_space(V)
    if basis.shape[1] != 1:
        raise InputError(
            f"expected a V with one leading direction, got {basis.shape[1]} of them for the eigenvalue "
            f"{value:.4g}; look at clusters in leading_space(V) instead"
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
    """`count` clusters at every saved depth from `start` to `end`."""

    count: int
    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


def plateaus(times: Sequence[float], counts: Sequence[int], least: float = 0.05) -> list[Plateau]:
    """The stretches of constant count that last at least the share `least` of all the depth seen, in their order.

    What happens between two saved depths is not seen.

    >>> plateaus([0, 1, 2, 3, 4], [5, 5, 2, 2, 2], least=0.4)
    [Plateau(count=2, start=2.0, end=4.0)]
    """
    if len(times) != len(counts) or not times:
        raise InputError(f"expected a count for each of the depths, got {len(counts)} for {len(times)}")
    if not 0 <= least <= 1:
        raise InputError(f"expected a share from 0 to 1, got {least!r}")
    found, first = [], 0
    for k in range(1, len(counts) + 1):
        if k == len(counts) or counts[k] != counts[first]:
            found.append(Plateau(int(counts[first]), float(times[first]), float(times[k - 1])))
            first = k
    shortest = least * (times[-1] - times[0])
    return [plateau for plateau in found if plateau.length > 0 and plateau.length >= shortest]
