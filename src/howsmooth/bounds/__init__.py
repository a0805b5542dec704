"""Bounds on the Lipschitz constants of attention, one module per source, one function per statement."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.l2 import L2Attention
from howsmooth.bounds import (
    castin2024,
    geshkovski2023,
    heads_together,
    kim2021,
    mean_field,
    normalisation,
    this_project,
    three_points,
    yudin2025,
)
from howsmooth.bounds.ball import BallCertificate, certify_ball, vacuous_eps
from howsmooth.bounds.bound import Bound, Bounds, Refused
from howsmooth.bounds.conditions import check_tokens
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.two_points import two_points
from howsmooth.errors import InputError

__all__ = [
    "every",
    "certify_ball",
    "vacuous_eps",
    "two_points",
    "Bound",
    "Bounds",
    "Refused",
    "BallCertificate",
    "LayerForm",
    "this_project",
    "heads_together",
    "three_points",
    "castin2024",
    "geshkovski2023",
    "kim2021",
    "yudin2025",
    "mean_field",
    "normalisation",
]

# In the order of the table in docs/bounds.md.
BALL_BOUNDS: tuple[Callable[[SelfAttention | LayerForm, int, float], Bound], ...] = (
    castin2024.theorem1_upper,
    castin2024.theorem1_lower,
    castin2024.multi_head_upper,
    this_project.theorem1_with_bias,
    this_project.upper,
    this_project.upper_in_n_and_a,
    heads_together.upper,
    this_project.lower,
    this_project.two_point_lower,
    three_points.lower,
    geshkovski2023.n_free_upper,
    this_project.n_free_upper,
    this_project.n_free_right_exponent,
    castin2024.mean_field_lower,
    this_project.two_dirac_lower,
    kim2021.r_squared_lower,
)
LOCAL_BOUNDS: tuple[Callable[[SelfAttention | LayerForm, Tensor, Tensor | None], Bound], ...] = (
    yudin2025.local,
    this_project.local,
)
LARGE_RADIUS_BOUNDS: tuple[Callable[[SelfAttention | LayerForm, Tensor], Bound], ...] = (castin2024.large_radius,)
EVERY: tuple[Callable[..., Bound], ...] = (*BALL_BOUNDS, *LOCAL_BOUNDS, *LARGE_RADIUS_BOUNDS)


def every(
    f: SelfAttention | LayerForm | L2Attention,
    n: int,
    radius: float,
    x: Tensor | None = None,
    padding: Tensor | None = None,
) -> Bounds:
    """Return all bounds for a layer, on the ball and at x if given; a bound that does not apply is its refusal.

    Args:
        f: the layer, or its `LayerForm`; for `L2Attention` the two bounds of `kim2021`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.
        x: tokens, (n, d), for the bounds at X. Without padding, also for the limit at tX, t → ∞.
        padding: (n,), True where a token of x is real.

    Returns:
        A `Bound` or a `Refused` for each statement, in the order of docs/bounds.md.

    Raises:
        InputError: if an argument is invalid, or x does not have n tokens.

    Example:
        >>> import torch
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> results = every(SelfAttention(-one, one, one, causal=True), 400, 1.5)
        >>> [str(bound).split(";")[0] for bound in results if isinstance(bound, Refused)][0]
        'this_project.upper_in_n_and_a: expected attention without a mask, got causal attention'
    """
    if isinstance(f, L2Attention):
        return Bounds([kim2021.l2_infinity(f, n), kim2021.l2_two(f, n)])
    form = form_of(f)
    if x is not None:
        check_tokens(x, form.d)
        if len(x) != n:
            raise InputError(
                f"expected x with n = {n!r} tokens, got {len(x)}; bounds on the ball and at x are for "
                "one length: give n=len(x)"
            )
    results = Bounds(_bound_or_refusal(bound, form, n, radius) for bound in BALL_BOUNDS)
    if x is not None:
        results += [_bound_or_refusal(bound, form, x, padding) for bound in LOCAL_BOUNDS]
        if padding is None:
            results += [_bound_or_refusal(bound, form, x) for bound in LARGE_RADIUS_BOUNDS]
    return results


def _bound_or_refusal(bound: Callable[..., Bound], *args: LayerForm | Tensor | float | None) -> Bound | Refused:
    try:
        return bound(*args)
    except Refused as refusal:
        return refusal
