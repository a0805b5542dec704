"""The matrix P itself: its rank, how far it is from zeros and ones, and who is looked at."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention, attend
from howsmooth.dynamics.instruments.clusters import refuse_wrong_tolerance
from howsmooth.errors import InputError

MOST = 4096


@dataclass(frozen=True, eq=False)
class PatternOfP:
    """`rank` counts singular values above tol times the largest; `undecided` is max_ij min(P_ij, 1 − P_ij), 0 for a 0/1
    matrix; `leaders` are the tokens that some row gives more than half of its attention."""

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
    return PatternOfP(rank=int((sigma > tol * sigma[0]).sum()), undecided=float(torch.minimum(P, 1 - P).max()),
                      leaders=tuple((P > 0.5).any(0).nonzero()[:, 0].tolist()), tol=float(tol))


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
    if len(x) > MOST:
        raise InputError(f"expected at most {MOST} tokens for a dense P, got {len(x)}; look at a sample of them")
    q, k, _ = layer.project(x)
    return attend(q, k, torch.eye(len(x)).to(x).expand(k.shape[-3], -1, -1), **layer.pattern())
