"""The bound of Geshkovski and others, "The emergence of clusters in self-attention dynamics" (NeurIPS 2023)."""

from __future__ import annotations

import math

from howsmooth.attention.heads import SelfAttention
from howsmooth.bounds import conditions
from howsmooth.bounds.bound import Bound, log
from howsmooth.bounds.form import LayerForm, form_of


def n_free_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return an upper bound on the constant on B_R^n that does not depend on n.

        ‖V‖ (1 + 3a) e^{2a},    a = ‖A‖R²

    For one head without query bias, mask, window and score offsets. Under a mask it is false: at a = 0 it is ‖V‖, while
    causal attention is then the running mean, of norm up to 2‖V‖.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid for all n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        geshkovski2023emergence, Lipschitz bound on B_R.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(n_free_upper(SelfAttention(one, one, one), 10, 1.0).value, 3)
        29.556
    """
    name, form = "geshkovski2023.n_free_upper", form_of(f)
    conditions.check_n(n)
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_unmasked(form, name),
        conditions.require_no_window(form, name),
        conditions.require_no_score_bias(form, name),
    )
    a = float(form.slopes(radius).query[0])
    value = log(float(form.value_norm[0])) + math.log1p(3 * a) + 2 * a
    return Bound(name, value, "upper", "for all n", met, "geshkovski2023emergence, Lipschitz bound on B_R")
