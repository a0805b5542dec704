"""A Gaussian N(α, S) as the state of a flow; S may be singular."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.transport import gaussian_wasserstein

_SYMMETRIC = 1e-10  # of ‖S‖: what rounding may leave of S − Sᵀ, and below 0 of its eigenvalues


@dataclass(frozen=True, eq=False)
class GaussianState:
    """N(mean, covariance) on R^d, in float64.

    >>> state = GaussianState.of([0.0, 1.0], [[2.0, 0.0], [0.0, 0.0]])
    >>> state.d, state.rank
    (2, 1)
    >>> state.sample(3, torch.Generator().manual_seed(0))[:, 1].tolist()
    [1.0, 1.0, 1.0]
    """

    mean: Tensor
    covariance: Tensor

    def __post_init__(self):
        mean, covariance = self.mean, self.covariance
        if not isinstance(mean, Tensor) or not isinstance(covariance, Tensor):
            raise InputError(f"expected mean and covariance as tensors, got {type(mean).__name__} and "
                             f"{type(covariance).__name__}; GaussianState.of takes lists")
        if mean.dim() != 1 or not len(mean) or covariance.shape != (len(mean), len(mean)):
            raise InputError(f"expected a mean (d) and a covariance (d, d), got {tuple(mean.shape)} and "
                             f"{tuple(covariance.shape)}")
        for name, t in (("mean", mean), ("covariance", covariance)):
            if not torch.isfinite(t).all():
                raise InputError(f"expected a finite {name}, got NaN or ∞")
        mean, covariance = mean.detach().double().cpu(), covariance.detach().double().cpu()
        scale = float(covariance.abs().max())
        gap = float((covariance - covariance.mT).abs().max())
        if gap > _SYMMETRIC * scale:
            raise InputError(f"expected a symmetric covariance, got one that differs from its transpose by {gap:.3g}; "
                             "(S + Sᵀ)/2 is symmetric")
        covariance = (covariance + covariance.mT) / 2
        least = float(torch.linalg.eigvalsh(covariance)[0])
        if least < -_SYMMETRIC * scale:
            raise InputError(f"expected a covariance without negative eigenvalues, got one of {least:.3g}; "
                             "a variance is never negative")
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    @classmethod
    def of(cls, mean, covariance) -> GaussianState:
        """From lists, arrays or tensors."""
        return cls(torch.as_tensor(mean, dtype=torch.float64), torch.as_tensor(covariance, dtype=torch.float64))

    @classmethod
    def standard(cls, d: int, variance: float = 1.0) -> GaussianState:
        return cls.of([0.0] * d, (variance * torch.eye(d)).tolist())

    @classmethod
    def fitted(cls, tokens: Tensor) -> GaussianState:
        """The mean and covariance (1/n) of tokens (n, d)."""
        tokens = tokens.detach().double()
        mean = tokens.mean(0)
        centred = tokens - mean
        return cls(mean, centred.mT @ centred / len(tokens))

    @property
    def d(self) -> int:
        return len(self.mean)

    @property
    def root(self) -> Tensor:
        """S^½, symmetric; directions that are 0 up to rounding are 0."""
        values, vectors = torch.linalg.eigh(self.covariance)
        values = torch.where(values > self.d * torch.finfo(values.dtype).eps * values[-1], values, 0.0)
        return (vectors * values.sqrt()) @ vectors.mT

    @property
    def rank(self) -> int:
        return int(torch.linalg.matrix_rank(self.covariance, hermitian=True))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """n tokens (n, d) drawn independently."""
        return self.mean + torch.randn(n, self.d, dtype=torch.float64, generator=generator) @ self.root

    def distance(self, other: GaussianState) -> float:
        """W₂ to another Gaussian."""
        return float(gaussian_wasserstein(self.mean, self.covariance, other.mean, other.covariance))

    def as_record(self) -> dict:
        return {"mean": self.mean.tolist(), "covariance": self.covariance.tolist()}
