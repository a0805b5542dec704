"""How tokens lie, in any dimension, and what attention sees of them.

diameter, farthest_move, w2     how far tokens are from each other, and from where they end
spread, directions              their directions, their sizes, how far they are from being one
log_energy                      the interaction energy E(μ) = ½ ∫∫ e^{⟨Ax, y⟩} dμ dμ
pattern_of_p, probabilities     the matrix P: its rank, how far it is from zeros and ones, and who is looked at
view, principal_view            a plane to look at tokens from
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from howsmooth.attention import SelfAttention, attend
from howsmooth.dynamics.instruments.clusters import as_points, leading_space, refuse_wrong_tolerance
from howsmooth.errors import InputError
from howsmooth.transport import TokenMeasure, wasserstein

BLOCK = 1 << 22  # distances or scores held at once
MOST_ROWS = 4096  # of a dense P


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
        cosine=float((total @ total - n) / (n * (n - 1))),
        effective_rank=float(np.exp(-(share * np.log(share)).sum())),
        participation=float((sigma**2).sum() ** 2 / (sigma**4).sum()),
        to_mean=float(np.linalg.norm(points - points.mean(0)) / np.linalg.norm(points)),
        size=float(np.median(norms)),
        largest=float(norms.max()),
    )


def directions(x: Tensor) -> Tensor:
    """x/|x| of each token (n, d), in float64 on the CPU.

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
    """Log E of tokens x (n, d) with equal masses, in O(n) memory.

    With A = Aᵀ = V it rises along the flow on R^d and on spheres: it is what attention ascends.

    >>> log_energy(torch.zeros(3, 1), torch.ones(1, 1)) == math.log(0.5)
    True
    """
    if A.shape != (x.shape[-1], x.shape[-1]):
        raise InputError(f"expected A of shape ({x.shape[-1]}, {x.shape[-1]}), got {tuple(A.shape)}")
    x = x.detach().double()
    q = x @ A.detach().double().to(x.device).mT
    rows = max(1, BLOCK // len(x))
    parts = [torch.logsumexp(block @ x.mT, (-2, -1)) for block in q.split(rows)]
    return float(torch.logsumexp(torch.stack(parts), 0)) - 2 * math.log(len(x)) - math.log(2)


@dataclass(frozen=True, eq=False)
class PatternOfP:
    """`rank` counts singular values above tol times the largest; `undecided` is max_ij min(P_ij, 1 − P_ij), 0 for a 0/1
    matrix; `leaders` are the tokens that some row gives more than half of its attention.
    """

    rank: int
    undecided: float
    leaders: tuple[int, ...]
    tol: float


def pattern_of_p(P: Tensor, tol: float = 1e-6) -> PatternOfP:
    """What P (n, n) looks like.

    >>> found = pattern_of_p(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    >>> found.rank, found.undecided, found.leaders
    (1, 0.0, (0,))
    """
    refuse_wrong_tolerance(tol)
    if P.dim() != 2 or not torch.isfinite(P).all():
        raise InputError(f"expected one finite matrix P, got shape {tuple(P.shape)}; look at the heads one by one")
    P = P.detach().double()
    sigma = torch.linalg.svdvals(P)
    return PatternOfP(
        rank=int((sigma > tol * sigma[0]).sum()),
        undecided=float(torch.minimum(P, 1 - P).max()),
        leaders=tuple((P > 0.5).any(0).nonzero()[:, 0].tolist()),
        tol=float(tol),
    )


def probabilities(layer, x: Tensor) -> Tensor:
    """P (h, n, n) of softmax attention at tokens x (n, d), of at most 4,096 tokens: attention whose values are the unit
    vectors.

    >>> eye = torch.eye(1)
    >>> probabilities(SelfAttention(eye, eye, eye), torch.zeros(2, 1))
    tensor([[[0.5000, 0.5000],
             [0.5000, 0.5000]]])
    """
    layer = getattr(layer, "layer", layer)  # of a softmax field
    if not isinstance(layer, SelfAttention):
        raise InputError(f"expected softmax attention for its P, got {type(layer).__name__}")
    if len(x) > MOST_ROWS:
        raise InputError(f"expected at most {MOST_ROWS} tokens for a dense P, got {len(x)}; look at a sample of them")
    q, k, _ = layer.project(x)
    return attend(q, k, torch.eye(len(x)).to(x).expand(k.shape[-3], -1, -1), **layer.pattern())


@dataclass(frozen=True, eq=False)
class View:
    """Coordinates to draw: tokens (…, d) times `axes` (d, 1 to 3), with a name for each."""

    axes: Tensor
    names: tuple[str, ...]

    def __call__(self, tokens: Tensor) -> Tensor:
        return tokens.double() @ self.axes.to(tokens.device)


def view(d: int, V: Tensor | None = None) -> View:
    """The plane for tokens of width d: themselves up to d = 2, else V's leading directions first.

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
    # The coordinate that has least to do with the leading direction.
    other = int(basis[:, 0].abs().argmin())
    return View(torch.cat([basis, eye[:, other : other + 1]], 1), ("along the leading eigenvector  φ₁*z", names[other]))


def principal_view(tokens: Tensor, count: int = 3) -> View:
    """The orthogonal axes along which tokens (…, d) vary most, at most `count`, named by their share of the variance.

    >>> principal_view(torch.tensor([[0.0, 3.0], [0.0, -3.0], [1.0, 0.0], [-1.0, 0.0]]), 1).names
    ('axis of 90 % of the variance',)
    """
    points = tokens.detach().double().flatten(0, -2)
    centred = points - points.mean(0)
    _, sigma, axes = torch.linalg.svd(centred, full_matrices=False)
    axes = axes[:count]
    # The sign of an axis is free: its largest entry is taken as positive, so that pictures do not flip.
    axes = axes * axes.gather(1, axes.abs().argmax(1, keepdim=True)).sign()
    shares = sigma.square() / sigma.square().sum().clamp(min=torch.finfo(torch.float64).tiny)
    return View(
        axes.mT,
        tuple(f"axis of {share:.0%} of the variance".replace("%", " %", 1) for share in shares[:count].tolist()),
    )
