"""W₂ between Gaussians: the Bures distance, in closed form."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.errors import InputError


def gaussian_wasserstein(mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor) -> Tensor:
    """W₂(N(m, S), N(m', S')) = (|m − m'|² + tr S + tr S' − 2 tr (S^½ S' S^½)^½)^½ for means (…, d), one per member.

    Covariances (…, d, d) may be singular.

    >>> zero, eye = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    >>> round(float(gaussian_wasserstein(zero, eye, zero + 3, 4 * eye)), 6)
    4.472136
    """
    for which, m, s in (("first", mean, covariance), ("second", other_mean, other_covariance)):
        if not (isinstance(m, Tensor) and isinstance(s, Tensor) and m.is_floating_point() and s.is_floating_point()):
            raise InputError(f"expected a mean and a covariance as tensors of a floating dtype, got {type(m).__name__} "
                             f"and {type(s).__name__} for the {which}; use torch.tensor")
        if m.dim() < 1 or s.shape[-2:] != (m.shape[-1], m.shape[-1]):
            raise InputError(f"expected a mean (…, d) and a covariance (…, d, d), got {tuple(m.shape)} and "
                             f"{tuple(s.shape)} for the {which}")
        if not (torch.isfinite(m).all() and torch.isfinite(s).all()):
            raise InputError(f"expected finite means and covariances, got NaN or ∞ in the {which}")
        rounding = 64 * torch.finfo(s.dtype).eps * s.shape[-1] * s.abs().amax((-2, -1))  # of each member
        least = torch.linalg.eigvalsh((s + s.mT) / 2).amin(-1)
        if ((s - s.mT).abs().amax((-2, -1)) > rounding).any() or (least < -rounding).any():
            raise InputError(f"expected symmetric covariances without negative eigenvalues, got others in the {which}")
    if mean.shape[-1] != other_mean.shape[-1]:
        raise InputError(f"expected Gaussians in one dimension, got {mean.shape[-1]} and {other_mean.shape[-1]}")
    root, other_root = _root(covariance), _root(other_covariance)
    # tr (S^½ S' S^½)^½ is the sum of the singular values of S'^½ S^½: no square is taken that a root undoes. In terms
    # of the optimal rotation the distance is a sum of squares, min_Q |S^½ − S'^½ Q|², which does not cancel.
    u, _, w = torch.linalg.svd(other_root @ root)
    difference = root - other_root @ (u @ w)
    return ((mean - other_mean).square().sum(-1) + difference.square().sum((-2, -1))).sqrt()


def _root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2) @ vectors.mT
