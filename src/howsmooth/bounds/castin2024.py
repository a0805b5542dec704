"""Bounds of Castin, Ablin and Peyré, "How Smooth Is Attention?" (ICML 2024), as in print."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.bounds import conditions as asks
from howsmooth.bounds.bound import Bound, Refused, log
from howsmooth.bounds.form import LayerForm, check_radius, form_of
from howsmooth.errors import InputError

KEY = "castin2024smooth"


def theorem1_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Lip(f on B_R^n) ≤ √3 ‖V‖ (‖A‖² R⁴ (4n+1) + n)^½, masked or not.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(theorem1_upper(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 1)
    210.4
    """
    name, form = "castin2024.theorem1_upper", form_of(f)
    asks.check_n(n)
    found = (asks.one_head(form, name), asks.no_bias(form, name), asks.no_window(form, name),
             asks.no_offsets(form, name))
    per_head = _theorem1_log(form, n, radius) + form.value_norm.log()
    return Bound(name, float(per_head[0]), "upper", "on B_R^n", found, f"{KEY}, Theorem 1")


def _theorem1_log(form: LayerForm, n: int, radius: float) -> Tensor:
    """log of √3 (a² (4n+1) + n)^½, (h,)."""
    a = form.slopes(radius).query
    return 0.5 * math.log(3) + torch.hypot(a * math.sqrt(4 * n + 1), torch.full_like(a, math.sqrt(n))).log()
