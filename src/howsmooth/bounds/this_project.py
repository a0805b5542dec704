"""Bounds of this project: whole layers, with heads, biases, masks, windows, soft caps, offsets and rotary positions.

With a, b, s and osc the numbers of `LayerForm.slopes` and `.oscillation`, and m = `reach(n)` in place of n. Proofs are
in docs/bounds.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.bounds import conditions as asks
from howsmooth.bounds.at_tokens import AtTokens
from howsmooth.bounds.bound import Bound, log
from howsmooth.bounds.form import LayerForm, form_of

PROOFS = "docs/bounds.md, proof {}"


def upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Lip(f on B_R^n) ≤ ‖V‖ (√m + a + √(m/2) b) per head: at most Theorem 1, and for every kind of layer.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(upper(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 1)
    65.3
    """
    form = form_of(f)
    asks.check_n(n)
    m, slopes = form.reach(n), form.slopes(radius)
    logs = (math.sqrt(m) + slopes.query + math.sqrt(m / 2) * slopes.key).log()
    return _over_heads("this_project.upper", form, logs, "on B_R^n", (), 1)


def n_free_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """‖V‖ (a + (1 + b) e^{s + osc/2}) per head without a mask, ‖V‖ (a + (2 + √6 b) e^{s + osc/2}) with one.

    Free of n, except that offsets count as far as n tokens see them.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> bound = n_free_upper(SelfAttention(one, one, one), 10, 1000.0)
    >>> bound.value, round(bound.log_value - 1e6, 2)
    (None, 13.82)
    """
    name, form = "this_project.n_free_upper", form_of(f)
    asks.check_n(n)
    found = (asks.no_window(form, name), asks.nothing_hidden(form, name, n))
    slopes = form.slopes(radius)
    factor = 2 + math.sqrt(6) * slopes.key if form.causal else 1 + slopes.key
    logs = torch.logaddexp(slopes.query.log(), factor.log() + slopes.spread + form.oscillation(n) / 2)
    holds = "for all n" if form.f.score_bias is None else "on B_R^n"
    return _over_heads(name, form, logs, holds, found, 3 if form.causal else 2)


def local(f: SelfAttention | LayerForm, x: Tensor, padding: Tensor | None = None) -> Bound:
    """‖V‖‖P‖ + max_i ‖V C_i A‖ + ‖Σ_i τ_i a_i a_iᵀ‖^½ per head, at these tokens, with the P of the layer itself.

    a_i = A x_i + c and τ_i = ‖Σ_j P_ij² V(x_j − m_i)(x_j − m_i)ᵀVᵀ‖. Never above `yudin2025.local`.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(local(SelfAttention(one, one, one), torch.tensor([[0.0], [1.0]], dtype=torch.float64)).value, 3)
    1.556
    """
    form = form_of(f)
    at = AtTokens(form, x, padding)
    through_queries, through_keys = at.score_terms()
    per_head = form.value_norm * at.probability_norm() + through_queries + through_keys
    # Heads side by side add their squares; heads that are summed into one output add.
    value = float(per_head.norm() if form.wo is None else per_head.sum())
    return Bound("this_project.local", log(value), "upper", "at X", (), PROOFS.format(1))


def _over_heads(name: str, form: LayerForm, logs: Tensor, holds: str, conditions: tuple, proof: int) -> Bound:
    """The bound of a layer from log(bound_h/‖V_h‖), (h,)."""
    total = form.over_heads(logs + form.value_norm.log(), logs + form.raw_value_norm.log())
    return Bound(name, total, "upper", holds, conditions, PROOFS.format(proof))
