"""A Gaussian N(α, S), and what attention does to it: Γ_μ is affine on it, for every kind but the sigmoid.

Whatever the kind, a place x weighs the points y by a factor whose logarithm is quadratic in y and linear in x. The
weighted Gaussian is a Gaussian again, its mean is affine in x, and

    Γ_μ(x) = g + B (x − α),    g = Γ_μ(α)

    softmax     g = Σ_h V_h(α + S(A_h α + c_h)) + b         B = Σ_h V_h S A_h
    L2          g = V M⁻¹(α + 2SKᵀQα)                       B = 2 V M⁻¹ S KᵀQ,  M = I + 2SKᵀK
    Sinkhorn    g = Vα                                      B = V Cov(y|x) A/ε,  Cov(y|x) = F (I − W γ² Wᵀ) Fᵀ,
                                                            FᵀAᵀF/ε = U s Wᵀ,  γ = 2s/(1 + √(1 + 4s²)),  FFᵀ = S
    linear      g = V(S + ααᵀ)Aα                            B = V(S + ααᵀ)A
    mean        g = Vα                                      B = 0

Nothing is divided by S, so that a Gaussian on a subspace (singular S) is served by the same lines.

Under softmax attention with V = I the flow has a closed form, in which S⁻¹ is linear in time:

    S(t)⁻¹ = S₀⁻¹ − t(A + Aᵀ)        without inverses:  S(t) = S₀^½ (I − tM)⁻¹ S₀^½,  M = S₀^½ (A + Aᵀ) S₀^½

which holds for singular S₀ too and ends at t* = 1/λ_max(M) if M has a positive eigenvalue, never otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsmooth.attention.fields import Field, L2Field, LinearField, MeanPooling, SinkhornField, SoftmaxField
from howsmooth.dynamics.velocity import heads_of
from howsmooth.errors import InputError
from howsmooth.transport import gaussian_wasserstein

_SYMMETRIC = 1e-10  # of ‖S‖: what rounding may leave of S − Sᵀ, and below 0 of its eigenvalues
Array = NDArray[np.float64]
Closure = Callable[[Array, Array], tuple[Array, Array]]  # (α, F) ↦ (g, B), FFᵀ = S


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
            raise InputError(
                f"expected mean and covariance as tensors, got {type(mean).__name__} and "
                f"{type(covariance).__name__}; GaussianState.of takes lists"
            )
        if mean.dim() != 1 or not len(mean) or covariance.shape != (len(mean), len(mean)):
            raise InputError(
                f"expected a mean (d) and a covariance (d, d), got {tuple(mean.shape)} and {tuple(covariance.shape)}"
            )
        for name, t in (("mean", mean), ("covariance", covariance)):
            if not torch.isfinite(t).all():
                raise InputError(f"expected a finite {name}, got NaN or ∞")
        mean, covariance = mean.detach().double().cpu(), covariance.detach().double().cpu()
        scale = float(covariance.abs().max())
        gap = float((covariance - covariance.mT).abs().max())
        if gap > _SYMMETRIC * scale:
            raise InputError(
                f"expected a symmetric covariance, got one that differs from its transpose by {gap:.3g}; "
                "(S + Sᵀ)/2 is symmetric"
            )
        covariance = (covariance + covariance.mT) / 2
        least = float(torch.linalg.eigvalsh(covariance)[0])
        if least < -_SYMMETRIC * scale:
            raise InputError(
                f"expected a covariance without negative eigenvalues, got one of {least:.3g}; "
                "a variance is never negative"
            )
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
        """N tokens (n, d) drawn independently."""
        return self.mean + torch.randn(n, self.d, dtype=torch.float64, generator=generator) @ self.root

    def distance(self, other: GaussianState) -> float:
        """W₂ to another Gaussian."""
        return float(gaussian_wasserstein(self.mean, self.covariance, other.mean, other.covariance))

    def as_record(self) -> dict:
        return {"mean": self.mean.tolist(), "covariance": self.covariance.tolist()}


def closure(field: Field) -> Closure:
    """The map (α, F) ↦ (g, B) of a field with values where its tokens live."""
    if not isinstance(field, Field):
        raise InputError(f"expected a Field, got {type(field).__name__}; for matrices, SoftmaxField.of(A, V)")
    if field.d_out != field.d:
        raise InputError(
            f"a flow: expected a field from R^d to R^d (a square V), got R^{field.d} to R^{field.d_out}; "
            "add an output projection"
        )
    return _closure(field)


@singledispatch
def _closure(field: Field) -> Closure:
    raise InputError(
        f"a Gaussian flow: expected softmax, L2, Sinkhorn, linear attention or mean pooling, got "
        f"{field.name}, under which Gaussians do not stay Gaussian; use particles or the grid"
    )


@_closure.register
def _(field: SoftmaxField) -> Closure:
    heads, constant = heads_of(field.layer, "a Gaussian flow")
    parts = [(_numpy(head.A), _numpy(head.V), _numpy(head.c)) for head in heads]
    constant = _numpy(constant)

    def softmax(mean: Array, factor: Array) -> tuple[Array, Array]:
        s = factor @ factor.T
        return (
            sum((v @ (mean + s @ (a @ mean + c)) for a, v, c in parts), constant),
            sum((v @ s @ a for a, v, _ in parts), np.zeros_like(s)),
        )

    return softmax


@_closure.register
def _(field: L2Field) -> Closure:
    q, k, v = _numpy(field.q), _numpy(field.k), _numpy(field.v)
    eye = np.eye(field.d)

    def l2(mean: Array, factor: Array) -> tuple[Array, Array]:
        s = factor @ factor.T
        m = eye + 2 * s @ k.T @ k
        slope = 2 * v @ np.linalg.solve(m, s @ k.T @ q)
        return v @ np.linalg.solve(m, mean) + slope @ mean, slope

    return l2


@_closure.register
def _(field: SinkhornField) -> Closure:
    a, v = _numpy(field.A) / field.eps, _numpy(field.V)

    def sinkhorn(mean: Array, factor: Array) -> tuple[Array, Array]:
        _, s, w = np.linalg.svd(factor.T @ a.T @ factor)
        g = 2 * s / (1 + np.sqrt(1 + 4 * s * s))
        spread = factor @ (w.T * (1 - g * g)) @ w @ factor.T
        return v @ mean, v @ spread @ a

    return sinkhorn


@_closure.register
def _(field: LinearField) -> Closure:
    a, v = _numpy(field.A), _numpy(field.V)

    def linear(mean: Array, factor: Array) -> tuple[Array, Array]:
        slope = v @ (factor @ factor.T + np.outer(mean, mean)) @ a
        return slope @ mean, slope

    return linear


@_closure.register
def _(field: MeanPooling) -> Closure:
    v = _numpy(field.V)
    return lambda mean, factor: (v @ mean, np.zeros_like(v))


def _numpy(t: Tensor) -> Array:
    return t.detach().double().cpu().numpy()


def blow_up_time(a: Tensor, start: GaussianState) -> float:
    """t* of S under softmax attention with score ⟨Ax, y⟩ and V = I; ∞ where nothing blows up. A query bias is no part.

    >>> blow_up_time(torch.eye(2), GaussianState.of([0, 0], [[4.0, 0.0], [0.0, 0.0]]))
    0.125
    >>> blow_up_time(-torch.eye(2), GaussianState.standard(2))
    inf
    """
    top = float(torch.linalg.eigvalsh(_growth(a, start))[-1])
    # Rounding alone can leave a positive eigenvalue of a matrix that has none.
    small = start.d * torch.finfo(torch.float64).eps * float(_growth(a, start).abs().max())
    return 1 / top if top > small else math.inf


def covariance_at(a: Tensor, start: GaussianState, t: float) -> Tensor:
    """S(t) under softmax attention with V = I, for times before the blow-up."""
    end = blow_up_time(a, start)
    if not 0 <= t < end:
        raise InputError(f"expected a time from 0 to before the blow-up at {end:.6g}, got {t}")
    root = start.root
    return root @ torch.linalg.solve(torch.eye(start.d, dtype=torch.float64) - t * _growth(a, start), root)


def _growth(a: Tensor, start: GaussianState) -> Tensor:
    if not isinstance(a, Tensor) or a.shape != (start.d, start.d) or not bool(torch.isfinite(a).all()):
        got = f"shape {tuple(a.shape)}" if isinstance(a, Tensor) else type(a).__name__
        raise InputError(f"expected A as a finite matrix ({start.d}, {start.d}), got {got}")
    root = start.root
    return root @ (a + a.mT).double() @ root
