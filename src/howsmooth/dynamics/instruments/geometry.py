"""Geometry of tokens in any dimension, and of their attention probabilities.

diameter, farthest_move, w2     distances between tokens, and between two states of them
spread, directions              their directions and norms, and how close they are to a single token
log_energy                      the interaction energy E(μ) = ½ ∫∫ e^{⟨Ax, y⟩} dμ dμ
pattern_of_p, probabilities     the matrix P: its rank, its distance from a 0/1 matrix, its dominant columns
view, principal_view            planes to project tokens on
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsmooth.attention.fields.softmax import SoftmaxField
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.op import attend
from howsmooth.dynamics.instruments.clusters import as_points, check_tolerance, leading_space
from howsmooth.errors import InputError
from howsmooth.transport.distances import wasserstein
from howsmooth.transport.measures import TokenMeasure

BLOCK_ELEMENTS = 1 << 22  # distances or scores in memory at once
MAX_DENSE_ROWS = 4096  # tokens up to which P is formed


def diameter(x: Tensor) -> float:
    """Return the largest distance between two tokens, in O(n) memory.

    Args:
        x: The tokens, (n, d).

    Returns:
        max_ij |x_i − x_j|.

    Raises:
        InputError: If x has another shape or no entries.

    Example:
        >>> diameter(torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 1.0]]))
        5.0
    """
    x = x.detach().double()
    if x.dim() != 2 or 0 in x.shape:
        raise InputError(f"expected tokens of shape (n, d), got {tuple(x.shape)}")
    rows = max(1, BLOCK_ELEMENTS // len(x))
    exact = "donot_use_mm_for_euclid_dist"
    return max(float(torch.cdist(block, x, compute_mode=exact).max()) for block in x.split(rows))


def farthest_move(x: Tensor, y: Tensor) -> float:
    """Return the largest distance between a token in x and the same token in y.

    Args:
        x: The tokens, (n, d).
        y: The same tokens in another state, (n, d).

    Returns:
        max_i |x_i − y_i|.

    Example:
        >>> farthest_move(torch.zeros(2, 2), torch.tensor([[0.0, 1.0], [3.0, 4.0]]))
        5.0
    """
    return float(torch.linalg.vector_norm(x.double() - y.double(), dim=-1).max())


def w2(x: Tensor, y: Tensor) -> float:
    """Return the exact Wasserstein distance W₂ between two sets of tokens with equal masses.

    Args:
        x: Tokens, (n, d).
        y: Tokens, (m, d).

    Returns:
        W₂ of the two uniform measures.

    Example:
        >>> w2(torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [3.0]])) == 2.5**0.5
        True
    """
    return wasserstein(TokenMeasure(x), TokenMeasure(y), certify=False).value


@dataclass(frozen=True)
class Spread:
    """Spread of n tokens and of their directions x/|x|, the part of a token that a normalisation layer keeps.

    Attributes:
        cosine: Mean cosine between two different tokens; 1 if all have the same direction.
        effective_rank: Of the directions as a matrix (n, d): e to the entropy of σ/Σσ, between 1 and min(n, d).
        participation: Participation ratio (Σσ²)²/Σσ⁴ of the same singular values, between 1 and min(n, d).
        to_mean: `√Σ|x − x̄|² / √Σ|x|²`; 0 if all tokens are equal.
        size: Median norm.
        largest: Largest norm.
    """

    cosine: float
    effective_rank: float
    participation: float
    to_mean: float
    size: float
    largest: float


def spread(x: Tensor) -> Spread:
    """Measure the spread of at least two tokens.

    Args:
        x: The tokens, (n, d), none of them 0.

    Returns:
        Ranks and cosines of their directions, and norms.

    Raises:
        InputError: If there are fewer than two tokens, or one of them is 0.

    Example:
        >>> found = spread(torch.eye(3, dtype=torch.float64))
        >>> found.cosine, round(found.effective_rank, 9), round(found.participation, 9)
        (0.0, 3.0, 3.0)
    """
    points = as_points(x)
    if len(points) < 2:
        raise InputError(f"expected at least 2 tokens to measure their spread, got {len(points)}")
    norms, u = np.linalg.norm(points, axis=1), directions(x).numpy()
    n, total = len(points), u.sum(0)
    sigma = np.linalg.svd(u, compute_uv=False)
    share = sigma[sigma > 0] / sigma.sum()
    return Spread(
        cosine=float((total @ total - n) / (n * (n - 1))),
        effective_rank=float(np.exp(-(share * np.log(share)).sum())),
        participation=float((sigma**2).sum() ** 2 / (sigma**4).sum()),
        to_mean=float(np.linalg.norm(points - points.mean(0)) / np.linalg.norm(points)),
        size=float(np.median(norms)),
        largest=float(norms.max()),
    )


def directions(x: Tensor) -> Tensor:
    """Return the directions x/|x| of tokens.

    Args:
        x: The tokens, (n, d).

    Returns:
        The directions (n, d), in float64 on the CPU.

    Raises:
        InputError: If a token is 0.

    Example:
        >>> directions(torch.tensor([[3.0, 4.0]])).tolist()
        [[0.6, 0.8]]
    """
    points = torch.from_numpy(as_points(x))
    norms = torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    if bool((norms == 0).any()):
        raise InputError(
            f"expected tokens other than 0, got 0 as token {int((norms == 0).nonzero()[0, 0])}; it has no direction"
        )
    return points / norms


def log_energy(x: Tensor, A: Tensor) -> float:
    """Return the logarithm of the interaction energy E of tokens with equal masses, in O(n) memory.

    If A = Aᵀ = V, E increases along the flow, on R^d and on spheres: attention is an ascent of E.

    Args:
        x: The tokens, (n, d).
        A: Matrix of the scores ⟨Ax, y⟩, (d, d).

    Returns:
        log ½ ∫∫ e^{⟨Ax, y⟩} dμ dμ.

    Raises:
        InputError: If A has another shape.

    Example:
        >>> log_energy(torch.zeros(3, 1), torch.ones(1, 1)) == math.log(0.5)
        True
    """
    if A.shape != (x.shape[-1], x.shape[-1]):
        raise InputError(f"expected A of shape ({x.shape[-1]}, {x.shape[-1]}), got {tuple(A.shape)}")
    x = x.detach().double()
    q = x @ A.detach().double().to(x.device).mT
    rows = max(1, BLOCK_ELEMENTS // len(x))
    parts = [torch.logsumexp(block @ x.mT, (-2, -1)) for block in q.split(rows)]
    return float(torch.logsumexp(torch.stack(parts), 0)) - 2 * math.log(len(x)) - math.log(2)


@dataclass(frozen=True, eq=False)
class PatternOfP:
    """Rank and dominant columns of a matrix P of attention probabilities.

    Attributes:
        rank: Number of singular values above `tol` times the largest.
        undecided: max_ij min(P_ij, 1 − P_ij); 0 for a 0/1 matrix.
        leaders: Tokens with more than half of the attention of some query.
        tol: Relative tolerance of the rank.
    """

    rank: int
    undecided: float
    leaders: tuple[int, ...]
    tol: float


def pattern_of_p(P: Tensor, tol: float = 1e-6) -> PatternOfP:
    """Measure rank and dominant columns of a matrix of attention probabilities.

    Args:
        P: The probabilities of one head, (n, n).
        tol: Relative tolerance of the rank.

    Returns:
        The rank, the distance from a 0/1 matrix, and the dominant columns.

    Raises:
        InputError: If P is no finite matrix, or the tolerance is not positive.

    Example:
        >>> found = pattern_of_p(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
        >>> found.rank, found.undecided, found.leaders
        (1, 0.0, (0,))
    """
    check_tolerance(tol)
    if P.dim() != 2 or not torch.isfinite(P).all():
        raise InputError(f"expected one finite matrix P, got shape {tuple(P.shape)}; take the heads one by one")
    P = P.detach().double()
    sigma = torch.linalg.svdvals(P)
    return PatternOfP(
        rank=int((sigma > tol * sigma[0]).sum()),
        undecided=float(torch.minimum(P, 1 - P).max()),
        leaders=tuple((P > 0.5).any(0).nonzero()[:, 0].tolist()),
        tol=float(tol),
    )


def probabilities(layer: SoftmaxField | SelfAttention | Any, x: Tensor) -> Tensor:
    """Return the probabilities P of softmax attention, computed as attention with the unit vectors as values.

    Args:
        layer: A `SelfAttention` or a `SoftmaxField`.
        x: The tokens, (n, d), at most 4,096 of them.

    Returns:
        P of each head, (h, n, n).

    Raises:
        InputError: If the layer is no softmax attention, or there are too many tokens.

    Example:
        >>> eye = torch.eye(1)
        >>> probabilities(SelfAttention(eye, eye, eye), torch.zeros(2, 1))
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]])
    """
    layer = getattr(layer, "layer", layer)  # of a softmax field
    if not isinstance(layer, SelfAttention):
        raise InputError(f"expected softmax attention for its P, got {type(layer).__name__}")
    if len(x) > MAX_DENSE_ROWS:
        raise InputError(f"expected at most {MAX_DENSE_ROWS} tokens for a dense P, got {len(x)}; take a sample of them")
    q, k, _ = layer.project(x)
    return attend(q, k, torch.eye(len(x)).to(x).expand(k.shape[-3], -1, -1), **layer.pattern())


@dataclass(frozen=True, eq=False)
class View:
    """A projection of tokens onto one to three axes.

    Attributes:
        axes: The axes as columns, (d, 1 to 3).
        names: A name for each.
    """

    axes: Tensor
    names: tuple[str, ...]

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the coordinates of tokens (…, d) along the axes."""
        return tokens.double() @ self.axes.to(tokens.device)


def view(d: int, V: Tensor | None = None) -> View:
    """Return the plane to draw tokens in: all of R^d up to d = 2, else the leading directions of V first.

    Args:
        d: Dimension of the tokens.
        V: Matrix of the values, (d, d); None if it is not known.

    Returns:
        The projection onto one or two axes.

    Example:
        >>> view(3, torch.diag(torch.tensor([0.1, 2.0, 0.5]))).names
        ('along the leading eigenvector  φ₁*z', 'coordinate 1')
    """
    eye = torch.eye(d, dtype=torch.float64)
    names = tuple(f"coordinate {i + 1}" for i in range(d))
    if d <= 2:
        return View(eye, names)
    basis = leading_space(V)[1] if V is not None else eye
    if basis.shape[1] == d:
        return View(eye[:, :2], names[:2])
    if basis.shape[1] > 1:
        return View(basis[:, :2], ("first leading direction", "second leading direction"))
    # The coordinate axis closest to orthogonal to the leading direction.
    other = int(basis[:, 0].abs().argmin())
    return View(torch.cat([basis, eye[:, other : other + 1]], 1), ("along the leading eigenvector  φ₁*z", names[other]))


def principal_view(tokens: Tensor, count: int = 3) -> View:
    """Return the principal axes of tokens, named by their fraction of the variance.

    Args:
        tokens: The tokens, (…, d).
        count: Maximal number of axes.

    Returns:
        The projection onto the axes.

    Example:
        >>> principal_view(torch.tensor([[0.0, 3.0], [0.0, -3.0], [1.0, 0.0], [-1.0, 0.0]]), 1).names
        ('axis of 90 % of the variance',)
    """
    points = tokens.detach().double().flatten(0, -2)
    centred = points - points.mean(0)
    _, sigma, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:count]
    # The sign of an axis is arbitrary: make its largest entry positive, so that figures do not flip.
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    shares = sigma.square() / sigma.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    return View(
        axes.mT,
        tuple(f"axis of {share:.0%} of the variance".replace("%", " %", 1) for share in shares[:count].tolist()),
    )
