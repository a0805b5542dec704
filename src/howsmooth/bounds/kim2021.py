"""Bounds of Kim, Papamakarios and Mnih, "The Lipschitz Constant of Self-Attention" (ICML 2021)."""

from __future__ import annotations

import math

import torch
from scipy.special import lambertw
from torch import Tensor

from howsmooth.attention import L2Attention, SelfAttention
from howsmooth.bounds import conditions as asks
from howsmooth.bounds.bound import Bound, log
from howsmooth.bounds.conditions import check_n, check_radius
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.norms import top_value
from howsmooth.errors import InputError

KEY = "kim2021lipschitz"


def r_squared_lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """v_n R² max_u ‖Vu‖‖Aᵀu‖ − ‖V‖/n: dot-product attention is not Lipschitz on all of space, masked or not.

    One token (the last, under a mask) sits at 0, where all scores are 0, the others at ±Ru in halves. v_n is their
    variance in units of R²: (n−1)/n, less 1/n² for even n. Any u gives a true bound; the best is sought by ascent.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> r_squared_lower(SelfAttention(one, one, one), 3, 2.0).value  # (2/3)·4 − 1/3
    2.333333333333333
    """
    name, form = "kim2021.r_squared_lower", form_of(f)
    check_n(n)
    check_radius(radius)
    found = (asks.one_head(form, name), asks.no_bias(form, name), asks.no_window(form, name))
    form.one_form(name)
    variance = (n - 1) / n - ((1 / n) ** 2 if n % 2 == 0 else 0)
    value = variance * radius**2 * _stretch(form) - float(form.value_norm[0]) / n
    return Bound(
        name,
        log(max(0.0, value)),
        "lower",
        "on B_R^n",
        found,
        f"{KEY}, dot-product attention is not Lipschitz; docs/bounds.md, proof 4",
    )


def _stretch(form: LayerForm, steps: int = 30) -> float:
    """max_u ‖Vu‖‖Aᵀu‖ over unit u, from below."""
    wk, wv = form.wk[0], form.wv[0]
    out = form.out_factor[0] if form.wo is not None else torch.eye(len(wv), dtype=torch.float64)

    def through_v(u: Tensor) -> Tensor:
        return out @ (wv @ u)

    def through_a(u: Tensor) -> Tensor:  # |Aᵀu| = scale |Qᵀ K u|
        return form.scale * (form.query_factor[0] @ (wk @ u))

    # The best for each factor alone, and all in between by ascent of the logarithm of the product.
    u = torch.cat(
        [
            torch.linalg.svd(out @ wv, full_matrices=False).Vh[:2],
            torch.linalg.svd(form.query_factor[0] @ wk, full_matrices=False).Vh[:2],
        ]
    ).mT
    u = torch.cat([u, u @ torch.ones(u.shape[1], 1, dtype=torch.float64)], 1)
    best = 0.0
    for _ in range(steps):
        u = u / u.norm(dim=0).clamp(min=1e-300)
        v, a = through_v(u), through_a(u)
        best = max(best, float((v.norm(dim=0) * a.norm(dim=0)).max()))
        to_v = wv.mT @ (out.mT @ v) / v.norm(dim=0).square().clamp(min=1e-300)
        to_a = form.scale * wk.mT @ (form.query_factor[0].mT @ a) / a.norm(dim=0).square().clamp(min=1e-300)
        u = to_v + to_a
    return best


def l2_infinity(f: L2Attention, n: int) -> Bound:
    """L2 attention on all of space, in the ∞-norm:

        (4 φ⁻¹(n−1) + 1/√(d/h)) ‖W^{Oᵀ}‖_∞ max_h ‖W^Q‖_∞ ‖W^{Qᵀ}‖_∞ max_h ‖W^{Vᵀ}‖_∞,  φ(x) = x e^{x+1}

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(l2_infinity(L2Attention(eye, eye, eye), 1).value, 4)  # 1/√2
    0.7071
    """
    _check(f, n)
    wq, wv, wo = _double(f)
    keys = (rows(wq.mT) * rows(wq)).max()
    value = (4 * inverse_phi(n) + 1 / math.sqrt(f.k)) * float(rows(wo) * keys * rows(wv).max())
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
    """L2 attention on all of space, in the 2-norm, with the exponent 4 that the proof gives and print has as 2:

        (√n/√(d/h)) (4 φ⁻¹(n−1) + 1) (Σ_h ‖W^Q‖⁴ ‖W^V‖²)^½ ‖W^O‖

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(l2_two(L2Attention(2 * eye, eye, eye), 1).value, 4)  # 4/√2
    2.8284
    """
    _check(f, n)
    wq, wv, wo = _double(f)
    weights = (top_value(wq) ** 2 * top_value(wv)).norm() * top_value(wo)
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
    """The x ≥ 0 with x e^{x+1} = n − 1."""
    return float(lambertw((n - 1) / math.e).real)


def rows(m: Tensor) -> Tensor:
    """‖m‖_∞, the largest sum of |entries| of a row, of each matrix."""
    return m.abs().sum(-1).amax(-1)


def _check(f: L2Attention, n: int) -> None:
    check_n(n)
    if not isinstance(f, L2Attention):
        raise InputError(
            f"expected an L2Attention (tied W^K = W^Q), got {type(f).__name__}; dot-product attention has no such bound"
        )


def _double(f: L2Attention) -> tuple[Tensor, Tensor, Tensor]:
    wq, wv, wo = (t.detach().double().cpu() for t in (f.wq, f.wv, f.wo))
    return wq.unflatten(0, (f.heads, -1)), wv.unflatten(0, (f.heads, -1)), wo
