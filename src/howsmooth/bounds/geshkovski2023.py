"""The bound of Geshkovski and others, "The emergence of clusters in self-attention dynamics" (NeurIPS 2023)."""

from __future__ import annotations

import math

from howsmooth.attention import SelfAttention
from howsmooth.bounds import conditions as asks
from howsmooth.bounds.bound import Bound, log
from howsmooth.bounds.conditions import check_n
from howsmooth.bounds.form import LayerForm, form_of


def n_free_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """‖V‖ (1 + 3a) e^{2a}, a = ‖A‖R², whatever n is, without a mask.

    With one it would be false: at a = 0 it says ‖V‖, and causal attention is then the running mean, of norm up to 2‖V‖.

    >>> import torch
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(n_free_upper(SelfAttention(one, one, one), 10, 1.0).value, 3)
    29.556
    """
    name, form = "geshkovski2023.n_free_upper", form_of(f)
    check_n(n)
    found = (
        asks.one_head(form, name),
        asks.no_bias(form, name),
        asks.unmasked(form, name),
        asks.no_window(form, name),
        asks.no_offsets(form, name),
    )
    a = float(form.slopes(radius).query[0])
    value = log(float(form.value_norm[0])) + math.log1p(3 * a) + 2 * a
    return Bound(name, value, "upper", "for all n", found, "geshkovski2023emergence, Lipschitz bound on B_R")
