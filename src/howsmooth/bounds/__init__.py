"""Bounds on the Lipschitz constants of attention, one file per source, one function per statement."""

from __future__ import annotations

from torch import Tensor

from howsmooth.attention import L2Attention, SelfAttention
from howsmooth.bounds import castin2024, geshkovski2023, kim2021, mean_field, this_project, yudin2025
from howsmooth.bounds.ball import BallCertificate, certify_ball, vacuous_eps
from howsmooth.bounds.bound import Bound, Refused
from howsmooth.bounds.conditions import check_tokens
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.two_points import two_points
from howsmooth.errors import InputError

__all__ = [
    "BallCertificate",
    "Bound",
    "LayerForm",
    "Refused",
    "castin2024",
    "certify_ball",
    "every",
    "geshkovski2023",
    "kim2021",
    "mean_field",
    "this_project",
    "two_points",
    "vacuous_eps",
    "yudin2025",
]

# In the order of the table in docs/bounds.md.
ON_A_BALL = (
    castin2024.theorem1_upper,
    castin2024.theorem1_lower,
    castin2024.multi_head_upper,
    this_project.theorem1_with_bias,
    this_project.upper,
    this_project.upper_in_n_and_a,
    this_project.lower,
    this_project.two_point_lower,
    geshkovski2023.n_free_upper,
    this_project.n_free_upper,
    this_project.n_free_right_exponent,
    castin2024.mean_field_lower,
    this_project.two_dirac_lower,
    kim2021.r_squared_lower,
)
AT_TOKENS = (yudin2025.local, this_project.local)
FAR_OUT = (castin2024.large_radius,)
EVERY = (*ON_A_BALL, *AT_TOKENS, *FAR_OUT)


def every(
    f: SelfAttention | LayerForm | L2Attention,
    n: int,
    radius: float,
    x: Tensor | None = None,
    padding: Tensor | None = None,
) -> list[Bound | Refused]:
    """All bounds that there are for this layer, on the ball of this radius and at x, if given: each, or its refusal.

    >>> import torch
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> found = every(SelfAttention(-one, one, one, causal=True), 400, 1.5)
    >>> [str(bound).split(";")[0] for bound in found if isinstance(bound, Refused)][0]
    'this_project.upper_in_n_and_a: expected attention without a mask, got causal attention'
    """
    if isinstance(f, L2Attention):
        return [kim2021.l2_infinity(f, n), kim2021.l2_two(f, n)]
    form = form_of(f)
    if x is not None:
        check_tokens(x, form.d)
        if len(x) != n:
            raise InputError(
                f"expected x with n = {n!r} tokens, got {len(x)}; bounds on the ball and at x are for "
                "one length: give n=len(x)"
            )
    found = [_bound_or_refusal(bound, form, n, radius) for bound in ON_A_BALL]
    if x is not None:
        found += [_bound_or_refusal(bound, form, x, padding) for bound in AT_TOKENS]
        if padding is None:
            found += [_bound_or_refusal(bound, form, x) for bound in FAR_OUT]
    return found


def _bound_or_refusal(bound, *args) -> Bound | Refused:
    try:
        return bound(*args)
    except Refused as refusal:
        return refusal
