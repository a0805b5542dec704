"""Bounds of Castin, Ablin and Peyré, "How Smooth Is Attention?" (ICML 2024), as in print."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.attention.argmax import argmax_keys
from howsmooth.bounds import conditions as asks
from howsmooth.bounds.bound import Bound, Refused, log
from howsmooth.bounds.conditions import check_n, check_radius, check_tokens
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.norms import top_value

KEY = "castin2024smooth"


def theorem1_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Lip(f on B_R^n) ≤ √3 ‖V‖ (‖A‖² R⁴ (4n+1) + n)^½, masked or not.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(theorem1_upper(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 1)
    210.4
    """
    name, form = "castin2024.theorem1_upper", form_of(f)
    check_n(n)
    found = (
        asks.one_head(form, name),
        asks.no_bias(form, name),
        asks.no_window(form, name),
        asks.no_offsets(form, name),
    )
    per_head = _theorem1_log(form, n, radius) + form.value_norm.log()
    return Bound(name, float(per_head[0]), "upper", "on B_R^n", found, f"{KEY}, Theorem 1")


def _theorem1_log(form: LayerForm, n: int, radius: float) -> Tensor:
    """Log of √3 (a² (4n+1) + n)^½, (h,)."""
    a = form.slopes(radius).query
    return 0.5 * math.log(3) + torch.hypot(a * math.sqrt(4 * n + 1), torch.full_like(a, math.sqrt(n))).log()


def theorem1_lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """√(n−1) / (1 + (n−1) e^{−2R²γ}) for V = I, γ = max(−γ_min, γ_max/8) over real eigenvalues of A, masked or not.

    For V = s·I, which the paper does not treat, it is |s| times that: the map is.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(theorem1_lower(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 2)
    9.99
    """
    name, form = "castin2024.theorem1_lower", form_of(f)
    check_n(n)
    check_radius(radius)
    size, found = _of_gamma(form, name)
    exponent = 2 * radius**2 * form.gamma(0, bound=name)
    crowd = log(n - 1)
    value = log(size) + crowd / 2 - _softplus(crowd - exponent)
    return Bound(name, value, "lower", "on B_R^n", found, f"{KEY}, Theorem 1")


def multi_head_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Σ_h ‖W_h‖ · (Theorem 1 of head h, with V_h before the output projection), masked or not.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(multi_head_upper(SelfAttention(0 * eye, eye, eye, eye, heads=2), 3, 1.0).value, 3)  # 2 · 1 · √3√3
    6.0
    """
    name, form = "castin2024.multi_head_upper", form_of(f)
    check_n(n)
    found = (asks.no_bias(form, name), asks.no_window(form, name), asks.no_offsets(form, name))
    out = torch.ones(form.heads, dtype=torch.float64) if form.wo is None else top_value(form.out_factor)
    logs = _theorem1_log(form, n, radius) + form.raw_value_norm.log() + out.log()
    return Bound(name, float(torch.logsumexp(logs, 0)), "upper", "on B_R^n", found, f"{KEY}, multi-head attention")


def mean_field_lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """(γ/2) R² e^{γR²} for V = I, up to factors that tend to 1: where n is of the order of e^{2γR²} and γR² is large.

    `this_project.two_dirac_lower` has no such proviso.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(mean_field_lower(SelfAttention(-one, one, one), 400, 2.0).value, 1)  # 2 e⁴
    109.2
    """
    name, form = "castin2024.mean_field_lower", form_of(f)
    check_n(n)
    check_radius(radius)
    size, found = _of_gamma(form, name)
    remedy = "take this_project.two_dirac_lower or this_project.two_point_lower"
    g = radius**2 * form.gamma(0, bound=name)
    found += (asks.unmasked(form, name, remedy), "asymptotic: γR² → ∞, and n of the order of e^{2γR²}")
    return Bound(name, log(size) + log(g / 2) + g, "lower", "sup over n", found, f"{KEY}, mean-field lower bound")


def large_radius(f: SelfAttention | LayerForm, x: Tensor) -> Bound:
    """‖V‖ (max_j #{i : m_i = j})^½ with m_i = argmax_j ⟨A x_i, x_j⟩ (j ≤ i if masked): the limit of ‖D f‖ at tX, t → ∞.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> round(large_radius(SelfAttention(eye, eye, eye), torch.tensor([[1.0, 0], [0.1, 0], [0, 1]]).double()).value, 3)
    1.414
    """
    name, form = "castin2024.large_radius", form_of(f)
    found = (asks.one_head(form, name), asks.no_bias(form, name), asks.no_window(form, name))
    form.one_form(name)
    check_tokens(x, form.d)
    chosen = argmax_keys(form.f, x)
    if (tie := chosen.first_tie) is not None:
        raise Refused(
            name,
            "a unique argmax in each row",
            f"a tie in row {tie[1]}",
            "move the tokens; at a tie the norm grows like R²",
        )
    most = int(chosen.key[0].bincount().max())  # each row sees at least itself
    found += ("unique argmaxes", "the limit along the ray tX, t → ∞")
    return Bound(
        name, log(float(form.value_norm[0])) + log(most) / 2, "upper", "at tX, t → ∞", found, f"{KEY}, large radius"
    )


def _of_gamma(form: LayerForm, name: str) -> tuple[float, tuple[str, ...]]:
    """|s| of V = s·I, and the conditions of lower bounds in γ."""
    found = (asks.one_head(form, name), asks.no_bias(form, name), asks.no_window(form, name))
    form.one_form(name)
    return asks.scaled_identity(form, name), (*found, "V = I or a multiple", "a real eigenvalue of A")


def _softplus(x: float) -> float:
    """log(1 + eˣ)."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))
