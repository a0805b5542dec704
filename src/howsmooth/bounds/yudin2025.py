"""The bound of Yudin and others (arXiv 2507.07814, 2025) at one input."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.bounds import conditions as asks
from howsmooth.bounds.bound import Bound, log
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.head_on_ball import AtTokens
from howsmooth.bounds.norms import top_value


def local(f: SelfAttention | LayerForm, x: Tensor, padding: Tensor | None = None) -> Bound:
    """‖D_X f‖ ≤ ‖V‖ ( ‖P‖ + 2 ‖X‖₂² ‖A‖ max_i g₁(P_i) ), g₁(p) = p₍₁₎(1 − p₍₁₎ + p₍₂₎), masked or not.

    ‖X‖₂ is the largest singular value of the tokens. g₁(p) bounds ‖diag p − ppᵀ‖.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(local(SelfAttention(one, one, one), torch.tensor([[0.0], [1.0]], dtype=torch.float64)).value, 3)
    2.028
    """
    name, form = "yudin2025.local", form_of(f)
    found = (asks.one_head(form, name), asks.no_bias(form, name), asks.no_window(form, name))
    form.one_form(name)
    at = AtTokens(form, x, padding)
    p = at.probabilities()[0]
    first, second = torch.nn.functional.pad(p, (0, 1)).topk(2, dim=-1).values.unbind(-1)
    g1 = float((first * (1 - first + second)).max())
    tokens = float(top_value(at.x[at.real]))
    value = float(form.value_norm[0]) * (float(top_value(p)) + 2 * tokens**2 * float(form.score_norm[0]) * g1)
    return Bound(name, log(value), "upper", "at X", found, "yudin2025pay, local bound at X")
