"""Bounds for attention on measures in the ball: in W_p without a mask, in the conditional distance d_p with one.

a, b and s are the numbers of `LayerForm.slopes` (a = ‖A‖R², b = s = R(‖A‖R + |c|) for plain scores). Along the straight
path of an optimal plan between two measures (slice by slice for d_p), the derivative is V(P + M + T) as in
docs/bounds.md, now between L^p(μ). M is at most a. The other two are bounded in docs/mean_field.md:

    no mask    ‖P‖_p ≤ e^{2s/p}                ‖T‖_p ≤ b c_q e^{2s/p}                             1 ≤ p ≤ ∞, q' ≤ p
    masked     ‖P‖_p ≤ p/(p−1) e^{2s/p}        ‖T‖_p ≤ b c_q (p/(p−q'))^{1/q'} e^{2s/p}           1 < p ≤ ∞, q' < p

for any q with 1/q + 1/q' = 1. c_q is the largest (E|y − ȳ|^q)^{1/q} of a variable on [−1, 1]: c_2 = 1,
c_4 = (4/3)^{1/4}, c_∞ = 2. The smallest of these three that apply is used.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.bounds import conditions
from howsmooth.bounds.alternating import alternating_norm
from howsmooth.bounds.bound import Bound, Refused, log
from howsmooth.bounds.conditions import is_number
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.errors import InputError

MEASURES = "on measures in B_R"
REFERENCE = "docs/mean_field.md, {}"
MAX_ALTERNATING = 50.0  # largest |g| for which the weights of the alternating pattern are formed
# The conjugate exponent q' and c_q of the Hölder inequalities that are tried.
HOELDER_CONSTANTS = ((2.0, 1.0), (4 / 3, (4 / 3) ** 0.25), (1.0, 2.0))


def unmasked(f: SelfAttention | LayerForm, p: float, radius: float) -> Bound:
    """Return an upper bound on the Lipschitz constant in W_p, without a mask.

        ‖V‖ (a + (1 + c b) e^{2s/p}),    c = 1 for p ≥ 2, (4/3)^¼ for p ≥ 4/3, else 2

    In W_2 it is ‖V‖(a + (1 + a)eᵃ) without a bias, in W_∞ ‖V‖(1 + 2a). Several heads are combined. For layers with
    bilinear scores, without mask and window.

    Args:
        f: the layer, or its `LayerForm`.
        p: exponent, 1 ≤ p ≤ ∞.
        radius: R, the radius of the ball that contains the measures.

    Returns:
        The bound, valid on measures in B_R.

    Raises:
        InputError: if p is below 1.
        Refused: if a condition on the layer fails.

    Reference:
        docs/mean_field.md, without a mask.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> f = SelfAttention(-one, one, one)
        >>> [round(unmasked(f, p, 1.0).value, 3) for p in (1, 2, math.inf)]
        [23.167, 6.437, 3.0]
    """
    name, form = "mean_field.unmasked", form_of(f)
    _check_p(p, name)
    met = (conditions.require_unmasked(form, name, "take mean_field.masked"), conditions.require_no_window(form, name))
    form.require_bilinear_scores(name)
    key_constant = min(c for conjugate, c in HOELDER_CONSTANTS if conjugate <= p)
    logs = _head_logs(form, p, radius, 1.0, key_constant)
    return _combined(name, form, logs, p, f"W_{_index(p)}", met, "without a mask", MEASURES)


def masked(f: SelfAttention | LayerForm, p: float, radius: float) -> Bound:
    """Return an upper bound on the Lipschitz constant of masked attention in the conditional distance d_p.

        ‖V‖ (a + (p/(p−1) + κ b) e^{2s/p})

    κ is the least of √(p/(p−2)), (4/3)^¼ (p/(p−4/3))^¾ and 2p/(p−1), as far as they are defined: √6 at p = 2, 1 at
    p = ∞. An atom attends to atoms at times up to its own; atoms at the same time attend to each other. Several heads
    are combined. For layers with bilinear scores, without window. At p = 1 no constant exists.

    Args:
        f: the layer, or its `LayerForm`; its own mask is ignored.
        p: exponent, 1 < p ≤ ∞.
        radius: R, the radius of the ball that contains the measures.

    Returns:
        The bound, valid on timed measures in B_R.

    Raises:
        InputError: if p is below 1.
        Refused: if p = 1, or a condition on the layer fails.

    Reference:
        docs/mean_field.md, masked.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> f = SelfAttention(-one, one, one, causal=True)
        >>> [round(masked(f, p, 1.0).value, 3) for p in (1.5, 2, 3, math.inf)]
        [33.563, 13.095, 7.174, 3.0]
        >>> masked(f, 1, 1.0)
        Traceback (most recent call last):
        howsmooth.bounds.bound.Refused: mean_field.masked: expected p > 1, got p = 1; there is no constant: at A = 0 ...
    """
    name, form = "mean_field.masked", form_of(f)
    _check_p(p, name)
    if p == 1:
        raise Refused(
            name,
            "p > 1",
            "p = 1",
            "there is no constant: at A = 0 masked attention is the running mean, and moving the first of n "
            "tokens moves all outputs by 1 + 1/2 + … + 1/n together; take p = 2",
        )
    met = (conditions.require_no_window(form, name), "masked by time")
    form.require_bilinear_scores(name)
    logs = _head_logs(form, p, radius, hardy_constant(p), masked_key_constant(p))
    return _combined(name, form, logs, p, f"d_{_index(p)}", met, "masked", MEASURES)


def stated_masked(f: SelfAttention | LayerForm, p: float, radius: float) -> Bound:
    """Return the published statement for d_p, "the same upper bound as unmasked", where it is true.

        ‖V‖ (1 + 3a) e^{2a}

    It is false where `masked_lower` is above it, and true where `masked` is not; between the two the question is open.
    For one head with bilinear scores, without query bias and window.

    Args:
        f: the layer, or its `LayerForm`; its own mask is ignored.
        p: exponent, 1 ≤ p ≤ ∞.
        radius: R, the radius of the ball that contains the measures.

    Returns:
        The bound, valid on timed measures in B_R.

    Raises:
        InputError: if p is below 1.
        Refused: if the statement is false or open for this layer and p, or a condition on the layer fails.

    Reference:
        docs/mean_field.md, masked.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> stated_masked(SelfAttention(-0.17 * one, one, one), 2, 1.0)
        Traceback (most recent call last):
        howsmooth.bounds.bound.Refused: mean_field.stated_masked: expected a statement that is true, got 2.121, but ...
    """
    name, form = "mean_field.stated_masked", form_of(f)
    _check_p(p, name)
    met = (*_single_head(form, name), "masked by time", "a so large that it is true")
    a = float(form.slopes(radius).query[0])
    stated = math.log1p(3 * a) + 2 * a + log(float(form.value_norm[0]))
    if p > 1:
        proved = masked(form, p, radius)
        if proved.log_value <= stated + 1e-12:
            return Bound(name, stated, "upper", MEASURES, met, proved.reference, f"d_{_index(p)}")
        lower = masked_lower(form, p, radius).log_value
        if lower <= stated:
            raise Refused(
                name,
                "a statement that is proved",
                f"{_shown(stated)}, between {_shown(lower)}, which measures approach, and {_shown(proved.log_value)}, "
                "which is proved",
                "take mean_field.masked",
            )
    truth = "there is no constant in d_1" if p == 1 else f"measures approach {_shown(lower)} in d_{_index(p)}"
    raise Refused(name, "a statement that is true", f"{_shown(stated)}, but {truth}", "take mean_field.masked")


def masked_lower(f: SelfAttention | LayerForm, p: float, radius: float) -> Bound:
    """Return a lower bound on the best constant of masked attention in d_p.

        the larger of ‖V‖ p/(p−1) and ‖Vu‖ · alternating_norm(−⟨u, Au⟩R², p)

    Equal tokens are mapped by the running mean, for every A; its norm is Hardy's p/(p−1) in the limit. The other number
    is that of tokens ±Ru that alternate in log-time (`bounds.alternating`), for the two extreme eigenvectors u of
    (A + Aᵀ)/2. Both are limits of measures with more and more atoms. For one head with bilinear scores, without query
    bias and window.

    Args:
        f: the layer, or its `LayerForm`; its own mask is ignored.
        p: exponent, 1 < p ≤ ∞.
        radius: R, the radius of the ball that contains the measures.

    Returns:
        The bound on the supremum over timed measures in B_R.

    Raises:
        InputError: if p is below 1.
        Refused: if p = 1, where there is no constant, or a condition on the layer fails.

    Reference:
        docs/mean_field.md, masked.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> [round(masked_lower(SelfAttention(-a * one, one, one), 2, 1.0).value, 2) for a in (0.0, 0.17, 1.0)]
        [2.0, 2.18, 5.84]
    """
    name, form = "mean_field.masked_lower", form_of(f)
    _check_p(p, name)
    if p == 1:
        raise Refused(name, "p > 1", "p = 1", "there is no constant; take p = 2")
    conditions.check_radius(radius)
    met = (*_single_head(form, name), "masked by time", "the supremum over measures")
    best = log(float(form.value_norm[0])) + math.log(hardy_constant(p))
    values, vectors = form.extreme_pairs
    for u, slope in zip(vectors[0], values[0].tolist(), strict=True):
        g = -slope * radius**2
        if abs(g) <= MAX_ALTERNATING:
            best = max(best, log(form.value_gain(0, u)) + math.log(alternating_norm(g, p)))
    return Bound(name, best, "lower", "sup over n", met, REFERENCE.format("masked"), f"d_{_index(p)}")


def _single_head(form: LayerForm, name: str) -> tuple[str, ...]:
    """Return the conditions of the published statement, or refuse: one head, bilinear scores, no bias, no window."""
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
    )
    form.require_bilinear_scores(name)
    return met


def upper_at_log_n(f: SelfAttention | LayerForm, log_n: float, radius: float) -> Bound:
    """Return `this_project.upper_in_n_and_a` for a length given by its logarithm, such as 10⁴⁰ or e^1000 tokens.

        ‖V‖ (√κ + a + min(√κ, √(n/2)) b),    κ = n / (1 + (n−1) e^{−2s})

    For layers with bilinear scores, without mask and window.

    Args:
        f: the layer, or its `LayerForm`.
        log_n: natural logarithm of the number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        InputError: if log_n is negative or not finite.
        Refused: if a condition on the layer fails.

    Reference:
        docs/bounds.md, proof 2; docs/mean_field.md, without a mask.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(upper_at_log_n(SelfAttention(-one, one, one), 1000.0, 2.0).value, 3)  # a + (1 + a)eᵃ, a = 4
        276.991
    """
    name, form = "mean_field.upper_at_log_n", form_of(f)
    log_n = _check_log_n(log_n)
    met = (conditions.require_unmasked(form, name), conditions.require_no_window(form, name))
    form.require_bilinear_scores(name)
    slopes = form.slopes(radius)
    # log of the least total weight of the n − 1 other keys, relative to the key itself
    log_others = log_n + log(-math.expm1(-log_n)) - 2 * slopes.spread
    root = 0.5 * (log_n - torch.nn.functional.softplus(log_others, threshold=40.0))  # log √κ
    key_term = root.clamp(max=0.5 * (log_n - math.log(2))) + slopes.key.log()
    logs = torch.logsumexp(torch.stack([root, slopes.query.log(), key_term]), 0)
    return _combined(name, form, logs, 2.0, "2", met, "without a mask", "on B_R^n")


def theorem1_at_log_n(f: SelfAttention | LayerForm, log_n: float, radius: float) -> Bound:
    """Return `castin2024.theorem1_upper` for a length given by its logarithm.

        √3 ‖V‖ (‖A‖² R⁴ (4n + 1) + n)^½

    For one head, masked or not, without query bias, window and score offsets.

    Args:
        f: the layer, or its `LayerForm`.
        log_n: natural logarithm of the number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        InputError: if log_n is negative or not finite.
        Refused: if a condition on the layer fails.

    Reference:
        castin2024smooth, Theorem 1.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> f, radius = SelfAttention(-one, one, one), (math.log(399) / 2) ** 0.5
        >>> round(theorem1_at_log_n(f, math.log(400), radius).value, 1)
        210.4
    """
    name, form = "mean_field.theorem1_at_log_n", form_of(f)
    log_n = _check_log_n(log_n)
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
        conditions.require_no_score_bias(form, name),
    )
    a = form.slopes(radius).query[0]
    log_4n_plus_1 = log_n + math.log(4) + math.log1p(math.exp(-log_n) / 4)
    squares = torch.logaddexp(2 * a.log() + log_4n_plus_1, torch.tensor(log_n, dtype=torch.float64))
    value = 0.5 * (math.log(3) + float(squares)) + log(float(form.value_norm[0]))
    return Bound(name, value, "upper", "on B_R^n", met, "castin2024smooth, Theorem 1")


def hardy_constant(p: float) -> float:
    """Return p/(p−1), the norm of the running mean in L^p, p > 1.

    Example:
        >>> hardy_constant(2), hardy_constant(math.inf)
        (2.0, 1.0)
    """
    return 1.0 if p == math.inf else p / (p - 1)


def masked_key_constant(p: float) -> float:
    """Return κ of `masked`.

    Example:
        >>> round(masked_key_constant(2) ** 2, 9), masked_key_constant(math.inf)
        (6.0, 1.0)
    """
    if p == math.inf:
        return 1.0
    return min(c * math.pow(p / (p - conjugate), 1 / conjugate) for conjugate, c in HOELDER_CONSTANTS if conjugate < p)


def _head_logs(form: LayerForm, p: float, radius: float, value_constant: float, key_constant: float) -> Tensor:
    """Return log(a + (value_constant + key_constant·b) e^{2s/p}), (h,)."""
    slopes = form.slopes(radius)
    factor: Tensor = value_constant + key_constant * slopes.key
    return torch.logaddexp(slopes.query.log(), factor.log() + 2 * slopes.spread / p)


def _combined(
    name: str, form: LayerForm, logs: Tensor, p: float, norm: str, met: tuple[str, ...], proof: str, holds: str
) -> Bound:
    """Return the upper bound of a layer from log(bound_h/‖V_h‖), (h,)."""
    # Stacking heads uses Minkowski's inequality in L^{p/2}, which needs p ≥ 2.
    total = form.combine_heads(logs) if p >= 2 else float(torch.logsumexp(logs + form.value_norm.log(), 0))
    return Bound(name, total, "upper", holds, met, REFERENCE.format(proof), norm)


def _check_p(p: float, name: str) -> None:
    if not is_number(p) or not p >= 1:
        raise InputError(f"{name}: expected an exponent 1 ≤ p ≤ ∞, got {p!r}; below 1 there is no distance W_p")


def _check_log_n(log_n: float) -> float:
    if not is_number(log_n) or not 0 <= log_n < math.inf:
        raise InputError(f"expected a finite log n ≥ 0, got {log_n!r}; give math.log(n)")
    return float(log_n)


def _shown(log_value: float) -> str:
    return f"{math.exp(log_value):.4g}" if log_value < 700 else f"e^{log_value:.4g}"


def _index(p: float) -> str:
    return "∞" if p == math.inf else f"{p:g}"
