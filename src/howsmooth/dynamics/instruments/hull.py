"""The convex hull of tokens and its vertices, also where the tokens lie in a plane or on a line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import ConvexHull, QhullError
from torch import Tensor

from howsmooth.dynamics.instruments.clusters import as_points, clusters, refuse_wrong_tolerance
from howsmooth.errors import InputError

MOST_DIMENSIONS = 8  # a hull of n tokens has up to n^⌊d/2⌋ facets
ROUNDING = 1e-12  # of the widest axis: what is thinner is noise of the arithmetic


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
        raise InputError(f"expected tokens of at most {MOST_DIMENSIONS} dimensions for a hull, got {points.shape[1]}; "
                         "project them first")
    corners, dimension = _corners(_in_their_plane(points, tol))
    # Tokens of one cluster give a vertex many corners: it is one, and stands where they are on average.
    vertices = clusters(torch.from_numpy(points[corners]), tol).centres.numpy()
    far = np.linalg.norm(points[:, None] - vertices[None], axis=-1).min(1) if len(vertices) else np.zeros(len(points))
    return Hull(count=len(vertices), vertices=torch.from_numpy(vertices), dimension=dimension,
                at_vertices=float((far <= tol).mean()), at_origin=float((np.linalg.norm(points, axis=1) <= tol).mean()),
                tol=float(tol))


def _in_their_plane(points: np.ndarray, tol: float) -> np.ndarray:
    """Coordinates in the plane that the points span up to the tolerance and to rounding, widest first, (n, dimension).
    """
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
