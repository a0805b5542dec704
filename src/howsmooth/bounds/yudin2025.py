"""The bound of Yudin and others (arXiv 2507.07814, 2025) at one input."""

from __future__ import annotations

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.bounds import conditions
from howsmooth.bounds.bound import Bound, log
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.head_on_ball import LayerAtTokens
from howsmooth.bounds.norms import spectral_norm


def local(f: SelfAttention | LayerForm, x: Tensor, padding: Tensor | None = None) -> Bound:
    """Return an upper bound on the norm of the derivative at the tokens x.

        ‖D_X f‖ ≤ ‖V‖ ( ‖P‖ + 2 ‖X‖₂² ‖A‖ max_i g₁(P_i) ),    g₁(p) = p₍₁₎ (1 − p₍₁₎ + p₍₂₎)

    ‖X‖₂ is the largest singular value of the matrix of tokens, and p₍₁₎ ≥ p₍₂₎ are the two largest entries of p. g₁(p)
    bounds ‖diag p − ppᵀ‖. For one head, masked or not, with bilinear scores, without query bias and window.

    Args:
        f: the layer, or its `LayerForm`.
        x: tokens, (n, d).
        padding: (n,), True where a token is real; padded tokens do not move and are not attended to.

    Returns:
        The bound, valid at X.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        yudin2025pay, local bound at X; docs/bounds.md, proof 5.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(local(SelfAttention(one, one, one), torch.tensor([[0.0], [1.0]], dtype=torch.float64)).value, 3)
        2.028
    """
    name, form = "yudin2025.local", form_of(f)
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
    )
    form.require_bilinear_scores(name)
    at = LayerAtTokens(form, x, padding)
    p = at.probabilities()[0]
    first, second = torch.nn.functional.pad(p, (0, 1)).topk(2, dim=-1).values.unbind(-1)
    g1 = float((first * (1 - first + second)).max())
    token_norm = float(spectral_norm(at.x[at.real]))
    value = float(form.value_norm[0]) * (float(spectral_norm(p)) + 2 * token_norm**2 * float(form.score_norm[0]) * g1)
    return Bound(name, log(value), "upper", "at X", met, "yudin2025pay, local bound at X")
