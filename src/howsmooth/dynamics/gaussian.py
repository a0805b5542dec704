"""A Gaussian N(α, S) under attention: Γ_μ is affine for every kind of attention but the sigmoid.

A query x weights the points y by a factor whose logarithm is quadratic in y and linear in x. The weighted Gaussian is a
Gaussian again, its mean is affine in x, and

    Γ_μ(x) = g + B (x − α),    g = Γ_μ(α)

    softmax     g = Σ_h V_h(α + S(A_h α + c_h)) + b         B = Σ_h V_h S A_h
    L2          g = V M⁻¹(α + 2SKᵀQα)                       B = 2 V M⁻¹ S KᵀQ,  M = I + 2SKᵀK
    Sinkhorn    g = Vα                                      B = V Cov(y|x) A/ε,  Cov(y|x) = F (I − W γ² Wᵀ) Fᵀ,
                                                            FᵀAᵀF/ε = U s Wᵀ,  γ = 2s/(1 + √(1 + 4s²)),  FFᵀ = S
    linear      g = V(S + ααᵀ)Aα                            B = V(S + ααᵀ)A
    mean        g = Vα                                      B = 0

No formula divides by S, so they also apply to a Gaussian on a subspace (singular S).

Under softmax attention with V = I the flow has a closed form, in which S⁻¹ is linear in time:

    S(t)⁻¹ = S₀⁻¹ − t(A + Aᵀ)        without inverses:  S(t) = S₀^½ (I − tM)⁻¹ S₀^½,  M = S₀^½ (A + Aᵀ) S₀^½

which also holds for singular S₀. It blows up at t* = 1/λ_max(M) if M has a positive eigenvalue, and never otherwise.

Reference: Castin, Ablin, Carrillo and Peyré 2025, for the covariances; the means are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from howsmooth.attention.fields.field import Field
from howsmooth.attention.fields.integrals import LinearField, MeanPooling
from howsmooth.attention.fields.sinkhorn import SinkhornField
from howsmooth.attention.fields.softmax import L2Field, SoftmaxField
from howsmooth.dynamics.velocity import heads_of
from howsmooth.errors import InputError
from howsmooth.transport.distances import gaussian_wasserstein

_ROUNDING_TOLERANCE = 1e-10  # relative to ‖S‖: for the asymmetry of S and for negative eigenvalues
Array = NDArray[np.float64]
Closure = Callable[[Array, Array], tuple[Array, Array]]  # (α, F) ↦ (g, B), FFᵀ = S


@dataclass(frozen=True, eq=False)
class GaussianState:
    """N(mean, covariance) on R^d, in float64.

    Attributes:
        mean: (d,).
        covariance: (d, d), symmetric and positive semidefinite; it may be singular.

    Example:
        >>> state = GaussianState.of([0.0, 1.0], [[2.0, 0.0], [0.0, 0.0]])
        >>> state.d, state.rank
        (2, 1)
        >>> state.sample(3, torch.Generator().manual_seed(0))[:, 1].tolist()
        [1.0, 1.0, 1.0]
    """

    mean: Tensor
    covariance: Tensor

    def __post_init__(self) -> None:
        """Check shapes, symmetry and definiteness, and convert to float64 on the CPU."""
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
        if gap > _ROUNDING_TOLERANCE * scale:
            raise InputError(
                f"expected a symmetric covariance, got one that differs from its transpose by {gap:.3g}; "
                "(S + Sᵀ)/2 is symmetric"
            )
        covariance = (covariance + covariance.mT) / 2
        least = float(torch.linalg.eigvalsh(covariance)[0])
        if least < -_ROUNDING_TOLERANCE * scale:
            raise InputError(
                f"expected a covariance without negative eigenvalues, got one of {least:.3g}; "
                "a variance is never negative"
            )
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "covariance", covariance)

    @classmethod
    def of(cls, mean: ArrayLike | Tensor, covariance: ArrayLike | Tensor) -> GaussianState:
        """Make a state from lists, arrays or tensors."""
        return cls(torch.as_tensor(mean, dtype=torch.float64), torch.as_tensor(covariance, dtype=torch.float64))

    @classmethod
    def standard(cls, d: int, variance: float = 1.0) -> GaussianState:
        """Return N(0, variance·I) on R^d."""
        return cls.of([0.0] * d, (variance * torch.eye(d)).tolist())

    @classmethod
    def fitted(cls, tokens: Tensor) -> GaussianState:
        """Return the Gaussian with the mean and covariance (divisor n) of tokens (n, d)."""
        tokens = tokens.detach().double()
        mean = tokens.mean(0)
        centred = tokens - mean
        return cls(mean, centred.mT @ centred / len(tokens))

    @property
    def d(self) -> int:
        """The dimension."""
        return len(self.mean)

    @property
    def root(self) -> Tensor:
        """The symmetric square root S^½; eigenvalues that are 0 up to rounding are set to 0."""
        values, vectors = torch.linalg.eigh(self.covariance)
        values = torch.where(values > self.d * torch.finfo(values.dtype).eps * values[-1], values, 0.0)
        return (vectors * values.sqrt()) @ vectors.mT

    @property
    def rank(self) -> int:
        """The numerical rank of the covariance."""
        return int(torch.linalg.matrix_rank(self.covariance, hermitian=True))

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n independent tokens, (n, d)."""
        return self.mean + torch.randn(n, self.d, dtype=torch.float64, generator=generator) @ self.root

    def distance(self, other: GaussianState) -> float:
        """Return the Wasserstein distance W₂ to another Gaussian."""
        return float(gaussian_wasserstein(self.mean, self.covariance, other.mean, other.covariance))

    def as_record(self) -> dict[str, Any]:
        """Return mean and covariance as lists."""
        return {"mean": self.mean.tolist(), "covariance": self.covariance.tolist()}


def closure(field: Field) -> Closure:
    """Return the map (α, F) ↦ (g, B) of a field from R^d to R^d.

    Raises:
        InputError: If the field does not map R^d to itself, or does not keep Gaussians Gaussian.
    """
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
    bias = _numpy(constant)

    def softmax(mean: Array, factor: Array) -> tuple[Array, Array]:
        s = factor @ factor.T
        return (
            sum((v @ (mean + s @ (a @ mean + c)) for a, v, c in parts), bias),
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
    """Return the blow-up time t* under softmax attention with scores ⟨Ax, y⟩ and V = I, or ∞ if there is none.

    A query bias does not change t*.

    Args:
        a: The matrix A, (d, d).
        start: The Gaussian at t = 0.

    Returns:
        t* = 1/λ_max(S₀^½ (A + Aᵀ) S₀^½) if that eigenvalue is positive, else ∞.

    Raises:
        InputError: If A is not a finite (d, d) matrix.

    Example:
        >>> blow_up_time(torch.eye(2), GaussianState.of([0, 0], [[4.0, 0.0], [0.0, 0.0]]))
        0.125
        >>> blow_up_time(-torch.eye(2), GaussianState.standard(2))
        inf
    """
    growth = _growth_matrix(a, start)
    top = float(torch.linalg.eigvalsh(growth)[-1])
    # Rounding can turn a zero eigenvalue into a small positive one.
    threshold = start.d * torch.finfo(torch.float64).eps * float(growth.abs().max())
    return 1 / top if top > threshold else math.inf


def covariance_at(a: Tensor, start: GaussianState, t: float) -> Tensor:
    """Return S(t) under softmax attention with V = I, for a time before the blow-up.

    Args:
        a: The matrix A, (d, d).
        start: The Gaussian at t = 0.
        t: From 0 to before `blow_up_time(a, start)`.

    Returns:
        The covariance (d, d).

    Raises:
        InputError: If t is not in that interval.

    Example:
        >>> covariance_at(torch.eye(1), GaussianState.standard(1), 0.25).item()  # 1 / (1 − 2t)
        2.0
    """
    end = blow_up_time(a, start)
    if not 0 <= t < end:
        raise InputError(f"expected a time from 0 to before the blow-up at {end:.6g}, got {t}")
    root = start.root
    return root @ torch.linalg.solve(torch.eye(start.d, dtype=torch.float64) - t * _growth_matrix(a, start), root)


def _growth_matrix(a: Tensor, start: GaussianState) -> Tensor:
    """Return S₀^½ (A + Aᵀ) S₀^½."""
    if not isinstance(a, Tensor) or a.shape != (start.d, start.d) or not bool(torch.isfinite(a).all()):
        got = f"shape {tuple(a.shape)}" if isinstance(a, Tensor) else type(a).__name__
        raise InputError(f"expected A as a finite matrix ({start.d}, {start.d}), got {got}")
    root = start.root
    return root @ (a + a.mT).double() @ root
