"""Checks of the arguments of bounds (numbers, tokens, padding), and of the conditions on a layer.

`check_…` raises an InputError for an invalid argument. `require_…` raises `Refused` in the name of the bound where a
layer does not meet a condition, and otherwise returns the wording of the condition for `Bound.conditions`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor

from howsmooth.attention.heads import WEIGHTS, SelfAttention
from howsmooth.bounds.bound import Refused
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.bounds.form import LayerForm

LARGEST_N = 2**53  # beyond, n − 1 and n are the same float64
LARGEST_RADIUS = LARGEST_EPS = 1e100  # scores grow like the square, which must not overflow
LARGEST_WEIGHT = 1e100  # likewise


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a real number and not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_n(n: int) -> None:
    """Raise an InputError unless n is an integer from 1 to 2⁵³."""
    if isinstance(n, bool) or not isinstance(n, Integral) or not 1 <= n <= LARGEST_N:
        raise InputError(f"expected a number of tokens as a whole n ≥ 1 up to 2⁵³, got {n!r}; give len(x)")


def check_radius(radius: float) -> None:
    """Raise an InputError unless the radius is a number from 0 to 10¹⁰⁰."""
    if not is_number(radius) or not 0 <= radius < math.inf:
        raise InputError(
            f"expected a finite radius R ≥ 0, got {radius!r}; give float(x.norm(dim=-1).max()) or the "
            "radius of a normalisation"
        )
    if radius > LARGEST_RADIUS:
        raise InputError(
            f"expected a radius R up to {LARGEST_RADIUS:g}, got {radius:.4g}; beyond, scores leave "
            "float64: put the scale into the weights"
        )


def check_eps(eps: float) -> None:
    """Raise an InputError unless ε is a number from 0 to 10¹⁰⁰."""
    if not is_number(eps) or not 0 <= eps <= LARGEST_EPS:
        raise InputError(f"expected 0 ≤ ε ≤ {LARGEST_EPS:g}, got {eps!r}; give how far each token may move")


def check_tokens(x: Tensor, d: int) -> None:
    """Raise an InputError unless x is a tensor of shape (n, d) with n ≥ 1."""
    if not isinstance(x, Tensor) or x.dim() != 2 or x.shape[1] != d or not len(x):
        raise InputError(
            f"expected tokens of shape (n, d) with n ≥ 1 and d = {d}, one sequence at a time, got "
            + (f"shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__)
            + "; give a tensor of that shape"
        )


def check_weights(f: SelfAttention) -> None:
    """Raise an InputError if a weight or bias of the layer has an entry above 10¹⁰⁰."""
    for name in WEIGHTS:
        weight = getattr(f, name)
        if weight is not None and (most := float(weight.detach().abs().max())) > LARGEST_WEIGHT:
            raise InputError(
                f"expected weights of up to {LARGEST_WEIGHT:g}, got {most:.4g} in {name}; beyond, their "
                "products leave float64: divide them by a number"
            )


def check_padding(padding: Tensor | None, n: int) -> None:
    """Raise an InputError unless padding is None, or a bool tensor (n,) with at least one True."""
    if padding is None:
        return
    if not isinstance(padding, Tensor) or padding.dtype != torch.bool or tuple(padding.shape) != (n,):
        got = f"{padding.dtype} of shape {tuple(padding.shape)}" if isinstance(padding, Tensor) else repr(padding)
        raise InputError(
            f"expected padding as a tensor of dtype bool and shape ({n},), got {got}; give True where a "
            "token is real, or leave it out"
        )
    if not bool(padding.any()):
        raise InputError(
            "expected at least one real token, got padding that is False everywhere; it is True where a token is real"
        )


def mask_of_tokens(tokens: Sequence[int] | Tensor | None, real: Tensor) -> Tensor:
    """Return the real tokens among those given as indices or as a mask, (n,), or all real ones; InputError if none."""
    if tokens is None:
        return real
    n, given = len(real), torch.as_tensor(tokens)
    if given.dtype != torch.bool and not given.is_floating_point() and given.dim() == 1:
        if not len(given) or not bool(((given >= 0) & (given < n)).all()):
            raise InputError(f"expected tokens as indices from 0 to {n - 1}, got {tokens!r}; leave it out for all")
        given = torch.zeros(n, dtype=torch.bool).index_fill(0, given.long().cpu(), True)
    if given.dtype != torch.bool or tuple(given.shape) != (n,):
        raise InputError(
            f"expected tokens as indices or as a mask of shape ({n},), got {given.dtype} of shape "
            f"{tuple(given.shape)}; leave it out for all"
        )
    if not bool((given.cpu() & real).any()):
        raise InputError("expected at least one real token in tokens, got none; check tokens and padding together")
    return given.cpu() & real


def require_one_head(form: LayerForm, bound: str) -> str:
    """Refuse layers with several heads."""
    if form.heads > 1:
        raise Refused(
            bound,
            "one head",
            f"{form.heads} heads",
            "take f.head(i), castin2024.multi_head_upper, or a bound of this_project",
        )
    return "one head"


def require_no_bias(form: LayerForm, bound: str) -> str:
    """Refuse query biases, and key biases where softmax does not cancel them."""
    if form.has_bias_in_scores:
        which = "query" if bool((form.query_offset > 0).any()) else "key"
        raise Refused(
            bound,
            "no query bias" if which == "query" else f"no {which} bias with rotary or capped scores",
            f"a {which} bias, which enters the scores",
            "take a bound of this_project, which counts it",
        )
    return "no query bias"


def require_unmasked(
    form: LayerForm, bound: str, remedy: str = "take this_project.n_free_upper or this_project.upper"
) -> str:
    """Refuse causal layers."""
    if form.causal:
        raise Refused(bound, "attention without a mask", "causal attention", remedy)
    return "no mask"


def require_no_window(form: LayerForm, bound: str) -> str:
    """Refuse sliding-window attention."""
    if form.f.window is not None:
        raise Refused(bound, "attention without a window", f"a window of {form.f.window}", "take this_project.upper")
    return "no window"


def require_no_score_bias(form: LayerForm, bound: str) -> str:
    """Refuse layers that add offsets to their scores."""
    if form.f.score_bias is not None:
        raise Refused(bound, "scores without offsets", "a score_bias", "take a bound of this_project")
    return "no score offsets"


def require_finite_score_bias(form: LayerForm, bound: str, n: int) -> str:
    """Refuse offsets of −∞ among n tokens: they act as a further mask, which bounds free of n do not account for."""
    if form.has_infinite_score_bias(n):
        raise Refused(bound, "finite score offsets", "a score_bias of −∞ somewhere", "take this_project.upper")
    return "finite score offsets" if form.f.score_bias is not None else "no score offsets"


def require_scaled_identity(form: LayerForm, bound: str) -> float:
    """Return |s| where W V = s·I for the only head; refuse any other V."""
    product = form.wv[0] if form.wo is None else form.wo[0] @ form.wv[0]
    if product.shape[0] == product.shape[1]:
        s = float(product.diagonal().mean())
        rest = product.clone()
        rest.diagonal().sub_(s)
        if float(rest.abs().max()) <= 1e-12 * abs(s):
            return abs(s)
    raise Refused(
        bound,
        "V = I (or a multiple of it), the output projection included",
        "another V",
        "take this_project.lower or this_project.two_point_lower",
    )
