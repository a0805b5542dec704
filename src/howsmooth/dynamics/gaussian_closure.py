"""What attention does to a Gaussian: Γ_μ is affine for μ = N(α, S), for every kind but the sigmoid.

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
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from howsmooth.attention.fields import Field, L2Field, LinearField, MeanPooling, SinkhornField, SoftmaxField
from howsmooth.dynamics.bilinear import heads_of
from howsmooth.errors import InputError

Array = NDArray[np.float64]
Closure = Callable[[Array, Array], tuple[Array, Array]]  # (α, F) ↦ (g, B), FFᵀ = S


def closure(field: Field) -> Closure:
    """The map (α, F) ↦ (g, B) of a field with values where its tokens live."""
    if not isinstance(field, Field):
        raise InputError(f"expected a Field, got {type(field).__name__}; for matrices, SoftmaxField.of(A, V)")
    if field.d_out != field.d:
        raise InputError(f"a flow: expected a field from R^d to R^d (a square V), got R^{field.d} to R^{field.d_out}; "
                         "add an output projection")
    return _closure(field)


@singledispatch
def _closure(field: Field) -> Closure:
    raise InputError(f"a Gaussian flow: expected softmax, L2, Sinkhorn, linear attention or mean pooling, got "
                     f"{field.name}, under which Gaussians do not stay Gaussian; use particles or the grid")


@_closure.register
def _(field: SoftmaxField) -> Closure:
    heads, constant = heads_of(field.layer, "a Gaussian flow")
    parts = [(_numpy(head.A), _numpy(head.V), _numpy(head.c)) for head in heads]
    constant = _numpy(constant)

    def softmax(mean: Array, factor: Array) -> tuple[Array, Array]:
        s = factor @ factor.T
        return (sum((v @ (mean + s @ (a @ mean + c)) for a, v, c in parts), constant),
                sum(v @ s @ a for a, v, _ in parts))

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
