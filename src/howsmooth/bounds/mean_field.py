"""Bounds for attention on measures in the ball: W_p without a mask, the conditional distance d_p with one, any length.

With a, b, s the numbers of `LayerForm.slopes` (a = ‖A‖R², b = s = R(‖A‖R + |c|) for plain scores). Along the straight
path of an optimal plan between two measures (slice by slice for d_p), the derivative is V(P + M + T) as in
docs/bounds.md, now between L^p(μ). M is at most a. The other two are in docs/mean_field.md:

    no mask    ‖P‖_p ≤ e^{2s/p}                ‖T‖_p ≤ b c_q e^{2s/p}                             1 ≤ p ≤ ∞, q' ≤ p
    masked     ‖P‖_p ≤ p/(p−1) e^{2s/p}        ‖T‖_p ≤ b c_q (p/(p−q'))^{1/q'} e^{2s/p}           1 < p ≤ ∞, q' < p

for any q with 1/q + 1/q' = 1, c_q being the largest (E|y − ȳ|^q)^{1/q} of a variable on [−1, 1]: c_2 = 1,
c_4 = (4/3)^{1/4}, c_∞ = 2. The smallest of these three that apply is taken.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.bounds import conditions as asks
from howsmooth.bounds.bound import Bound, Refused, log
from howsmooth.bounds.conditions import is_number
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.errors import InputError

HOLDS = "on measures in B_R"
PROOF = "docs/mean_field.md, {}"
# q' and c_q of the Hölder inequalities that are tried.
HOELDER = ((2.0, 1.0), (4 / 3, (4 / 3) ** 0.25), (1.0, 2.0))


def unmasked(f: SelfAttention | LayerForm, p: float, radius: float) -> Bound:
    """‖V‖ (a + (1 + b c) e^{2s/p}) in W_p, 1 ≤ p ≤ ∞, per head: c = 1 for p ≥ 2, (4/3)^¼ for p ≥ 4/3, else 2.

    W_2: ‖V‖(a + (1 + a)eᵃ) without a bias. W_∞: ‖V‖(1 + 2a), no exponential.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> f = SelfAttention(-one, one, one)
    >>> [round(unmasked(f, p, 1.0).value, 3) for p in (1, 2, math.inf)]
    [23.167, 6.437, 3.0]
    """
    name, form = "mean_field.unmasked", form_of(f)
    _check_p(p, name)
    found = (asks.unmasked(form, name, "take mean_field.masked"), asks.no_window(form, name))
    form.one_form(name)
    turning = min(c for dual, c in HOELDER if dual <= p)
    return _bound(name, form, p, radius, 1.0, turning, f"W_{_index(p)}", found, "without a mask")


def masked(f: SelfAttention | LayerForm, p: float, radius: float) -> Bound:
    """‖V‖ (a + (p/(p−1) + κ b) e^{2s/p}) in d_p, 1 < p ≤ ∞, per head: an atom sees times up to its own, ties together.

    κ is the least of √(p/(p−2)), (4/3)^¼ (p/(p−4/3))^¾ and 2p/(p−1), as far as they are defined: √6 at p = 2, 1 at
    p = ∞. At p = 1 there is no constant at all.

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
    found = (asks.no_window(form, name), "masked by time")
    form.one_form(name)
    return _bound(name, form, p, radius, hardy(p), masked_turning(p), f"d_{_index(p)}", found, "masked")


def stated_masked(f: SelfAttention | LayerForm, p: float, radius: float) -> Bound:
    """ "The same upper bound as unmasked", ‖V‖ (1 + 3a) e^{2a}, for d_p: where it is true; elsewhere refused.

    Equal tokens are mapped by the running mean whatever A is, and its norm in L^p tends to p/(p−1) as tokens are added:
    the statement is false where it says less than ‖V‖ p/(p−1). It is true where it says at least what `masked` proves.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> stated_masked(SelfAttention(0 * one, one, one), 2, 1.0)
    Traceback (most recent call last):
    howsmooth.bounds.bound.Refused: mean_field.stated_masked: expected a statement that is true, got 1 ‖V‖ in d_2, ...
    """
    name, form = "mean_field.stated_masked", form_of(f)
    _check_p(p, name)
    found = (asks.one_head(form, name), asks.no_bias(form, name), asks.no_window(form, name))
    form.one_form(name)
    a, size = float(form.slopes(radius).query[0]), log(float(form.value_norm[0]))
    stated = math.log1p(3 * a) + 2 * a
    if p == 1 or stated < math.log(hardy(p)):
        truth = "has no bound at all" if p == 1 else f"tends to {hardy(p):.4g} ‖V‖"
        raise Refused(
            name,
            "a statement that is true",
            f"{math.exp(stated):.4g} ‖V‖ in d_{_index(p)}, where the running mean of equal tokens {truth}",
            "take mean_field.masked",
        )
    repaired = masked(form, p, radius)
    if repaired.log_value > size + stated + 1e-12:
        raise Refused(
            name,
            "a statement that is proved",
            f"one between what equal tokens reach, {hardy(p):.4g} ‖V‖, and what is proved",
            "take mean_field.masked",
        )
    return Bound(
        name,
        size + stated,
        "upper",
        HOLDS,
        (*found, "masked by time", "a so large that it is true"),
        repaired.reference,
        f"d_{_index(p)}",
    )


def upper_at_log_n(f: SelfAttention | LayerForm, log_n: float, radius: float) -> Bound:
    """`this_project.upper_in_n_and_a` for a length given by its logarithm: 10⁴⁰ tokens, or e^1000.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(upper_at_log_n(SelfAttention(-one, one, one), 1000.0, 2.0).value, 3)  # a + (1 + a)eᵃ, a = 4
    276.991
    """
    name, form = "mean_field.upper_at_log_n", form_of(f)
    log_n = _check_log_n(log_n)
    found = (asks.unmasked(form, name), asks.no_window(form, name))
    form.one_form(name)
    slopes = form.slopes(radius)
    crowd = log_n + log(-math.expm1(-log_n)) - 2 * slopes.spread
    root = 0.5 * (log_n - torch.nn.functional.softplus(crowd, threshold=40.0))
    turning = root.clamp(max=0.5 * (log_n - math.log(2))) + slopes.key.log()
    logs = torch.logsumexp(torch.stack([root, slopes.query.log(), turning]), 0)
    return _over_heads(name, form, logs, 2.0, "2", found, "without a mask", "on B_R^n")


def theorem1_at_log_n(f: SelfAttention | LayerForm, log_n: float, radius: float) -> Bound:
    """`castin2024.theorem1_upper` for a length given by its logarithm.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(theorem1_at_log_n(SelfAttention(-one, one, one), math.log(400), (math.log(399) / 2) ** 0.5).value, 1)
    210.4
    """
    name, form = "mean_field.theorem1_at_log_n", form_of(f)
    log_n = _check_log_n(log_n)
    found = (
        asks.one_head(form, name),
        asks.no_bias(form, name),
        asks.no_window(form, name),
        asks.no_offsets(form, name),
    )
    a = form.slopes(radius).query[0]
    four = log_n + math.log(4) + math.log1p(math.exp(-log_n) / 4)  # log(4n + 1)
    squares = torch.logaddexp(2 * a.log() + four, torch.tensor(log_n, dtype=torch.float64))
    value = 0.5 * (math.log(3) + float(squares)) + log(float(form.value_norm[0]))
    return Bound(name, value, "upper", "on B_R^n", found, "castin2024smooth, Theorem 1")


def hardy(p: float) -> float:
    """p/(p−1), the norm of the running mean in L^p, p > 1.

    >>> hardy(2), hardy(math.inf)
    (2.0, 1.0)
    """
    return 1.0 if p == math.inf else p / (p - 1)


def masked_turning(p: float) -> float:
    """κ of `masked`.

    >>> round(masked_turning(2) ** 2, 9), masked_turning(math.inf)
    (6.0, 1.0)
    """
    if p == math.inf:
        return 1.0
    return min(c * (p / (p - dual)) ** (1 / dual) for dual, c in HOELDER if dual < p)


def _bound(
    name: str,
    form: LayerForm,
    p: float,
    radius: float,
    straight: float,
    turning: float,
    norm: str,
    found: tuple[str, ...],
    proof: str,
) -> Bound:
    """‖V‖ (a + (straight + turning·b) e^{2s/p})."""
    slopes = form.slopes(radius)
    logs = torch.logaddexp(slopes.query.log(), (straight + turning * slopes.key).log() + 2 * slopes.spread / p)
    return _over_heads(name, form, logs, p, norm, found, proof, HOLDS)


def _over_heads(
    name: str, form: LayerForm, logs: Tensor, p: float, norm: str, found: tuple[str, ...], proof: str, holds: str
) -> Bound:
    with_out, raw = logs + form.value_norm.log(), logs + form.raw_value_norm.log()
    # To stack heads is Minkowski's inequality in L^{p/2}, for p ≥ 2.
    total = form.over_heads(with_out, raw) if p >= 2 else float(torch.logsumexp(with_out, 0))
    return Bound(name, total, "upper", holds, found, PROOF.format(proof), norm)


def _check_p(p: float, name: str) -> None:
    if not is_number(p) or not p >= 1:
        raise InputError(f"{name}: expected an exponent 1 ≤ p ≤ ∞, got {p!r}; below 1 there is no distance W_p")


def _check_log_n(log_n: float) -> float:
    if not is_number(log_n) or not 0 <= log_n < math.inf:
        raise InputError(f"expected a finite log n ≥ 0, got {log_n!r}; give math.log(n)")
    return float(log_n)


def _index(p: float) -> str:
    return "∞" if p == math.inf else f"{p:g}"
