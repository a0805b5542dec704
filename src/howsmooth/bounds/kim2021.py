"""Bounds of Kim, Papamakarios and Mnih, "The Lipschitz Constant of Self-Attention" (ICML 2021)."""

from __future__ import annotations

import math

import torch
from scipy.special import lambertw
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.l2 import L2Attention
from howsmooth.bounds import conditions
from howsmooth.bounds.bound import Bound, log
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.norms import spectral_norm
from howsmooth.errors import InputError

KEY = "kim2021lipschitz"


def r_squared_lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return a lower bound on the constant on B_R^n that grows like R².

        v_n R² max_u ‖Vu‖‖Aᵀu‖ − ‖V‖/n,    v_n = (n−1)/n, less 1/n² for even n

    So dot-product attention is not Lipschitz on all of space. One token (the last, under a mask) is at 0, where all
    scores are 0, and the others are at ±Ru in halves; v_n is their variance in units of R². Every unit vector u gives a
    valid bound; a good one is found by ascent. For one head, masked or not, with bilinear scores, without query bias
    and window.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        kim2021lipschitz, dot-product attention is not Lipschitz; docs/bounds.md, proof 4, for the constant.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> r_squared_lower(SelfAttention(one, one, one), 3, 2.0).value  # (2/3)·4 − 1/3
        2.333333333333333
    """
    name, form = "kim2021.r_squared_lower", form_of(f)
    conditions.check_n(n)
    conditions.check_radius(radius)
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
    )
    form.require_bilinear_scores(name)
    variance = (n - 1) / n - ((1 / n) ** 2 if n % 2 == 0 else 0)
    value = variance * radius**2 * _largest_gain_product(form) - float(form.value_norm[0]) / n
    return Bound(
        name,
        log(max(0.0, value)),
        "lower",
        "on B_R^n",
        met,
        f"{KEY}, dot-product attention is not Lipschitz; docs/bounds.md, proof 4",
    )


def _largest_gain_product(form: LayerForm, steps: int = 30) -> float:
    """Return a lower bound on max_u ‖Vu‖‖Aᵀu‖ over unit vectors u, by ascent."""
    wk, wv = form.wk[0], form.wv[0]
    out = form.out_factor[0] if form.wo is not None else torch.eye(len(wv), dtype=torch.float64)
    query_factor = form.query_factor[0]

    # The maximisers of each factor alone and their sum are the starts; the ascent is on the logarithm of the product.
    u = torch.cat(
        [
            torch.linalg.svd(out @ wv, full_matrices=False).Vh[:2],
            torch.linalg.svd(query_factor @ wk, full_matrices=False).Vh[:2],
        ]
    ).mT
    u = torch.cat([u, u @ torch.ones(u.shape[1], 1, dtype=torch.float64)], 1)
    best = 0.0
    for _ in range(steps):
        u = u / u.norm(dim=0).clamp(min=1e-300)
        vu, au = out @ (wv @ u), form.scale * (query_factor @ (wk @ u))  # ‖Aᵀu‖ = scale ‖Qᵀ K u‖
        best = max(best, float((vu.norm(dim=0) * au.norm(dim=0)).max()))
        v_gradient = wv.mT @ (out.mT @ vu) / vu.norm(dim=0).square().clamp(min=1e-300)
        a_gradient = form.scale * wk.mT @ (query_factor.mT @ au) / au.norm(dim=0).square().clamp(min=1e-300)
        u = v_gradient + a_gradient
    return best


def l2_infinity(f: L2Attention, n: int) -> Bound:
    """Return an upper bound for L2 attention on all of space, in the ∞-norm.

        (4 φ⁻¹(n−1) + 1/√(d/h)) ‖W^{Oᵀ}‖_∞ max_h ‖W^Q‖_∞ ‖W^{Qᵀ}‖_∞ max_h ‖W^{Vᵀ}‖_∞,    φ(x) = x e^{x+1}

    Args:
        f: L2 attention with tied W^K = W^Q.
        n: number of tokens.

    Returns:
        The bound, valid for n tokens anywhere.

    Raises:
        InputError: if f is not an `L2Attention`.

    Reference:
        kim2021lipschitz, L2 attention, ∞-norm.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> round(l2_infinity(L2Attention(eye, eye, eye), 1).value, 4)  # 1/√2
        0.7071
    """
    _check(f, n)
    wq, wv, wo = _float64_weights(f)
    keys = (infinity_norm(wq.mT) * infinity_norm(wq)).max()
    weights = float(infinity_norm(wo) * keys * infinity_norm(wv).max())
    value = (4 * inverse_phi(n) + 1 / math.sqrt(f.k)) * weights
    return Bound(
        "kim2021.l2_infinity",
        log(value),
        "upper",
        "on all of space, n tokens",
        ("W^K = W^Q",),
        f"{KEY}, L2 attention, ∞-norm",
        norm="∞",
    )


def l2_two(f: L2Attention, n: int) -> Bound:
    """Return an upper bound for L2 attention on all of space, in the 2-norm.

        (√n/√(d/h)) (4 φ⁻¹(n−1) + 1) (Σ_h ‖W^Q‖⁴ ‖W^V‖²)^½ ‖W^O‖,    φ(x) = x e^{x+1}

    The exponent of ‖W^Q‖ is 4, as the proof gives. With 2, which we recall from print (Theorem 3.2; the page was not at
    hand), the statement is false.

    Args:
        f: L2 attention with tied W^K = W^Q.
        n: number of tokens.

    Returns:
        The bound, valid for n tokens anywhere.

    Raises:
        InputError: if f is not an `L2Attention`.

    Reference:
        kim2021lipschitz, L2 attention, 2-norm, with the exponent corrected; docs/bounds.md, proof 6.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> round(l2_two(L2Attention(2 * eye, eye, eye), 1).value, 4)  # 4/√2
        2.8284
    """
    _check(f, n)
    wq, wv, wo = _float64_weights(f)
    weights = (spectral_norm(wq) ** 2 * spectral_norm(wv)).norm() * spectral_norm(wo)
    value = math.sqrt(n / f.k) * (4 * inverse_phi(n) + 1) * float(weights)
    return Bound(
        "kim2021.l2_two",
        log(value),
        "upper",
        "on all of space, n tokens",
        ("W^K = W^Q",),
        f"{KEY}, L2 attention, 2-norm, exponent corrected; docs/bounds.md, proof 6",
    )


def inverse_phi(n: int) -> float:
    """Return φ⁻¹(n − 1), the x ≥ 0 with x e^{x+1} = n − 1."""
    return float(lambertw((n - 1) / math.e).real)


def infinity_norm(m: Tensor) -> Tensor:
    """Return ‖m‖_∞, the largest sum of |entries| of a row, of each matrix (…, rows, cols)."""
    return m.abs().sum(-1).amax(-1)


def _check(f: L2Attention, n: int) -> None:
    conditions.check_n(n)
    if not isinstance(f, L2Attention):
        raise InputError(
            f"expected an L2Attention (tied W^K = W^Q), got {type(f).__name__}; dot-product attention has no such bound"
        )


def _float64_weights(f: L2Attention) -> tuple[Tensor, Tensor, Tensor]:
    """Return wq and wv per head and wo, in float64 on the CPU."""
    wq, wv, wo = (t.detach().double().cpu() for t in (f.wq, f.wv, f.wo))
    return torch.unflatten(wq, 0, (f.heads, -1)), torch.unflatten(wv, 0, (f.heads, -1)), wo
