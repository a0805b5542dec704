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
        if m.dim() < 1 or s.shape[-2:] != (m.shape[-1], m.shape[-1]):
            raise InputError(f"expected a mean (…, d) and a covariance (…, d, d), got {tuple(m.shape)} and "
                             f"{tuple(s.shape)} for the {which}")
        if not (torch.isfinite(m).all() and torch.isfinite(s).all()):
            raise InputError(f"expected finite means and covariances, got NaN or ∞ in the {which}")
        scale = s.abs().amax().clamp(min=1e-300)
        rounding = 64 * torch.finfo(s.dtype).eps * s.shape[-1] * scale
        if (s - s.mT).abs().amax() > rounding or torch.linalg.eigvalsh((s + s.mT) / 2).amin() < -rounding:
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
