"""Bounds of Castin, Ablin and Peyré, "How Smooth Is Attention?" (ICML 2024), as in print."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention.argmax import argmax_keys
from howsmooth.attention.heads import SelfAttention
from howsmooth.bounds import conditions
from howsmooth.bounds.bound import Bound, Refused, log
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.norms import spectral_norm

KEY = "castin2024smooth"


def theorem1_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return the upper bound of Theorem 1 on the constant on B_R^n.

        Lip(f on B_R^n) ≤ √3 ‖V‖ (‖A‖² R⁴ (4n + 1) + n)^½

    For one head, masked or not, without query bias, window and score offsets.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        castin2024smooth, Theorem 1.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(theorem1_upper(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 1)
        210.4
    """
    name, form = "castin2024.theorem1_upper", form_of(f)
    conditions.check_n(n)
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
        conditions.require_no_score_bias(form, name),
    )
    per_head = _theorem1_log(form, n, radius) + form.value_norm.log()
    return Bound(name, float(per_head[0]), "upper", "on B_R^n", met, f"{KEY}, Theorem 1")


def _theorem1_log(form: LayerForm, n: int, radius: float) -> Tensor:
    """Return log of √3 (a² (4n+1) + n)^½, (h,)."""
    a = form.slopes(radius).query
    return 0.5 * math.log(3) + torch.hypot(a * math.sqrt(4 * n + 1), torch.full_like(a, math.sqrt(n))).log()


def theorem1_lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return the lower bound of Theorem 1 on the constant on B_R^n.

        Lip(f on B_R^n) ≥ √(n−1) / (1 + (n−1) e^{−2R²γ}),    γ = max(−γ_min, γ_max/8)

    γ_min and γ_max are the extreme real eigenvalues of A. For one head, masked or not, with V = I, bilinear scores and
    a real eigenvalue of A, without query bias and window. For V = s·I, which the paper does not treat, the bound is |s|
    times that, as is the map.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        castin2024smooth, Theorem 1.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(theorem1_lower(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 2)
        9.99
    """
    name, form = "castin2024.theorem1_lower", form_of(f)
    conditions.check_n(n)
    conditions.check_radius(radius)
    size, met = _gamma_conditions(form, name)
    exponent = 2 * radius**2 * form.gamma(0, bound=name)
    log_others = log(n - 1)
    value = log(size) + log_others / 2 - _softplus(log_others - exponent)
    return Bound(name, value, "lower", "on B_R^n", met, f"{KEY}, Theorem 1")


def multi_head_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return the sum over heads of Theorem 1, an upper bound on the constant on B_R^n.

        Σ_h ‖W_h‖ · √3 ‖V_h‖ (‖A_h‖² R⁴ (4n + 1) + n)^½

    V_h is taken before the output projection W_h. For any number of heads, masked or not, without query bias, window
    and score offsets.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        castin2024smooth, multi-head attention.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> round(multi_head_upper(SelfAttention(0 * eye, eye, eye, eye, heads=2), 3, 1.0).value, 3)  # 2 · 1 · √3√3
        6.0
    """
    name, form = "castin2024.multi_head_upper", form_of(f)
    conditions.check_n(n)
    met = (
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
        conditions.require_no_score_bias(form, name),
    )
    out = torch.ones(form.heads, dtype=torch.float64) if form.wo is None else spectral_norm(form.out_factor)
    logs = _theorem1_log(form, n, radius) + form.raw_value_norm.log() + out.log()
    return Bound(name, float(torch.logsumexp(logs, 0)), "upper", "on B_R^n", met, f"{KEY}, multi-head attention")


def mean_field_lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return the asymptotic lower bound on the supremum over n of the constants on B_R^n.

        (γ/2) R² e^{γR²},    γ as in `theorem1_lower`

    It is valid up to factors that tend to 1 as γR² → ∞, with n of the order of e^{2γR²}; `this_project.two_dirac_lower`
    is valid for every γR². For one unmasked head with V = s·I (times |s|), bilinear scores and a real eigenvalue of A,
    without query bias and window.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens; it is only checked.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound on the supremum over n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        castin2024smooth, mean-field lower bound.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(mean_field_lower(SelfAttention(-one, one, one), 400, 2.0).value, 1)  # 2 e⁴
        109.2
    """
    name, form = "castin2024.mean_field_lower", form_of(f)
    conditions.check_n(n)
    conditions.check_radius(radius)
    size, met = _gamma_conditions(form, name)
    remedy = "take this_project.two_dirac_lower or this_project.two_point_lower"
    g = radius**2 * form.gamma(0, bound=name)
    met += (conditions.require_unmasked(form, name, remedy), "asymptotic: γR² → ∞, and n of the order of e^{2γR²}")
    return Bound(name, log(size) + log(g / 2) + g, "lower", "sup over n", met, f"{KEY}, mean-field lower bound")


def large_radius(f: SelfAttention | LayerForm, x: Tensor) -> Bound:
    """Return the limit of the norm of the derivative at tX as t → ∞.

        ‖V‖ (max_j #{i : m_i = j})^½,    m_i = argmax_j ⟨A x_i, x_j⟩   (over j ≤ i if masked)

    For one head, masked or not, with bilinear scores, without query bias and window. Each argmax must be unique: at a
    tie the norm grows like t².

    Args:
        f: the layer, or its `LayerForm`.
        x: tokens, (n, d).

    Returns:
        The limit along the ray tX.

    Raises:
        Refused: if a condition on the layer fails, or two keys of a row tie.

    Reference:
        castin2024smooth, large radius; the multiplicity is added by this project.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> tokens = torch.tensor([[1.0, 0], [0.1, 0], [0, 1]]).double()
        >>> round(large_radius(SelfAttention(eye, eye, eye), tokens).value, 3)
        1.414
    """
    name, form = "castin2024.large_radius", form_of(f)
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
        "unique argmaxes",
        "the limit along the ray tX, t → ∞",
    )
    form.require_bilinear_scores(name)
    conditions.check_tokens(x, form.d)
    chosen = argmax_keys(form.f, x)
    if (tie := chosen.first_tie) is not None:
        raise Refused(
            name,
            "a unique argmax in each row",
            f"a tie in row {tie[1]}",
            "move the tokens; at a tie the norm grows like R²",
        )
    most = int(chosen.key[0].bincount().max())  # each row attends at least to itself
    value = log(float(form.value_norm[0])) + log(most) / 2
    return Bound(name, value, "upper", "at tX, t → ∞", met, f"{KEY}, large radius")


def _gamma_conditions(form: LayerForm, name: str) -> tuple[float, tuple[str, ...]]:
    """Return |s| of V = s·I, and the conditions of the lower bounds in γ."""
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
    )
    form.require_bilinear_scores(name)
    return conditions.require_scaled_identity(form, name), (*met, "V = I or a multiple", "a real eigenvalue of A")


def _softplus(x: float) -> float:
    """Return log(1 + eˣ)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
