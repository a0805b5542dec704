"""A certificate on a ball: one Lipschitz constant for all inputs near X, whatever direction they lie in.

The ball is {X' : |x'_i − x_i| ≤ ε for every token i}, padded tokens aside. It is convex, so a bound L on ‖D_X' f‖₂ for
all of it is a Lipschitz constant there: ‖f(X') − f(X″)‖ ≤ L ‖X' − X″‖. Proofs are in docs/ball.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.bounds import conditions as asks
from howsmooth.bounds import this_project
from howsmooth.bounds.bound import Bound, Refused, exp, log
from howsmooth.bounds.conditions import LARGEST_RADIUS, check_eps, is_number
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.head_on_ball import AtTokens, HeadOnBall
from howsmooth.bounds.norms import UNIT, top_value
from howsmooth.bounds.overlap import Joined
from howsmooth.errors import InputError

HOLDS = "for |x'_i − x_i| ≤ ε"
PROOF = "docs/ball.md"
FARTHEST = 1e6  # radii beyond which nobody looks for the end of the interval bound


@dataclass(frozen=True)
class BallCertificate:
    """The smallest of several bounds over the ball, and all of them.

    `parts` has the value of every bound by name, None where it does not apply; `reasons` says why not. `terms` are
    those of the interval bound: value, query and key, and by how much each can leave its value at X (`… change`).
    """

    bound: Bound
    eps: float
    method: str
    parts: dict[str, float | None]
    reasons: dict[str, str] = field(repr=False)
    terms: dict[str, float]

    @property
    def value(self) -> float | None:
        return self.bound.value


def certify_ball(
    f: SelfAttention | LayerForm,
    x: Tensor,
    eps: float,
    padding: Tensor | None = None,
    *,
    at_center: float | None = None,
) -> BallCertificate:
    """A Lipschitz constant of f for all X' with |x'_i − x_i| ≤ eps for every real token i, x being (n, d).

    Whole layers of every kind. The bounds it chooses from:

        interval      score intervals → intervals of probabilities → the three terms of the derivative
        centre        `at_center` plus how far the derivative can be from its value at X: exact as ε → 0. `at_center` is
                      an upper bound on ‖D_X f‖₂, such as `local_lipschitz(f, x).upper` (then it has that confidence)
        yudin         Yudin's local bound, taken over the intervals of probabilities
        this_project  .theorem1_with_bias, .upper, .upper_in_n_and_a and .n_free_upper, on the ball of radius
                      max |x_i| + ε around zero; .local at ε = 0

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    >>> near, far = (certify_ball(SelfAttention(one, one, one), x, eps) for eps in (0.01, 10.0))
    >>> round(near.value, 2), near.method, far.method
    (1.6, 'interval', 'yudin')
    """
    check_eps(eps)
    if at_center is not None and not (is_number(at_center) and 0 <= at_center < math.inf):
        raise InputError(f"expected at_center as a finite upper bound on ‖D_X f‖₂, got {at_center!r}; leave it out")
    ball = _Ball(form_of(f), x, padding)
    heads = ball.heads_within(eps)
    terms, changes = (ball.joined.terms(heads, change) for change in ("", "_change"))
    found: dict[str, float | Refused] = {"interval": ball.joined.total(heads, terms)}
    if at_center is not None:
        found["centre"] = at_center + ball.joined.total(heads, changes, "_change")
    found["yudin"] = ball.yudin(heads, eps)
    found |= ball.around_zero(eps)
    if eps == 0:
        found["this_project.local"] = this_project.local(ball.form, x, padding).value
    reasons = {name: str(value) for name, value in found.items() if isinstance(value, Refused)}
    parts = {name: None if name in reasons else ball.rounded_up(value) for name, value in found.items()}
    if at_center is None:
        parts["centre"], reasons["centre"] = None, "needs at_center, an upper bound on ‖D_X f‖₂"
    method = min((name for name in parts if parts[name] is not None), key=lambda name: parts[name])
    bound = Bound("ball", log(parts[method]), "upper", HOLDS, (f"ε = {eps:g}", f"by {method}"), PROOF)
    terms |= {f"{term} change": value for term, value in changes.items()}
    return BallCertificate(bound, float(eps), method, parts, reasons, terms)


def vacuous_eps(f: SelfAttention | LayerForm, x: Tensor, padding: Tensor | None = None, rtol: float = 1e-2) -> float:
    """The ε from which on the interval bound is no smaller than the bounds that only know the radius max |x_i| + ε.

    Found by bisection of log ε to relative width `rtol`. 0.0 where it is no smaller even at ε = 0; ∞ where it stays
    smaller as far as ε = 10⁶ radii. Scores that do not depend on the tokens give either: under a mask the norm of the
    running mean is known, ∞; without one `upper_in_n_and_a` says the same as the interval bound, 0.0.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    >>> 0.1 < vacuous_eps(SelfAttention(one, one, one), x) < 1
    True
    """
    if not is_number(rtol) or not 0 < rtol < 1:
        raise InputError(f"expected rtol between 0 and 1, got {rtol!r}; 0.01 is a percent of ε")
    ball = _Ball(form_of(f), x, padding)

    def useful(eps: float) -> bool:
        others = [value for value in ball.around_zero(eps).values() if not isinstance(value, Refused)]
        return ball.interval(eps) < min(others)

    if not useful(0.0):
        return 0.0
    unit = ball.radius if ball.radius > 0 else 1.0
    low, high = 0.0, 1e-3 * unit
    while useful(high):
        if high > FARTHEST * unit:
            return math.inf
        low, high = high, 8 * high
    while low == 0.0:  # useful at 0, and, the bound being continuous in ε, a little beyond
        if useful(high / 8):
            low = high / 8
        elif high < 1e-12 * unit:
            return 0.0
        else:
            high /= 8
    while high > (1 + rtol) * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if useful(middle) else (low, middle)
    return low


class _Ball:
    """A layer around the real tokens of x, for any ε."""

    def __init__(self, form: LayerForm, x: Tensor, padding: Tensor | None):
        self.form, self.at = form, AtTokens(form, x, padding)
        self.joined, self.x = Joined(self.at), self.at.x[self.at.real]
        self.n, self.radius = len(self.x), float(self.x.norm(dim=-1).max())

    def heads_within(self, eps: float) -> list[HeadOnBall]:
        return self.joined.of_heads(lambda head: head.on_ball(eps))

    def interval(self, eps: float) -> float:
        heads = self.heads_within(eps)
        return self.joined.total(heads, self.joined.terms(heads))

    def around_zero(self, eps: float) -> dict[str, float | Refused]:
        """Bounds that know nothing but the radius."""
        # Offsets are looked up by place, so that padded places count there.
        places = int(self.at.real.nonzero().max()) + 1
        radius, found = self.radius + eps, {}
        if radius > LARGEST_RADIUS:
            raise InputError(
                f"expected tokens with max |x_i| + ε up to {LARGEST_RADIUS:g}, got {self.radius:.4g} + "
                f"{eps:.4g}; beyond, scores leave float64: put the scale into the weights"
            )
        for bound, n in (
            (this_project.theorem1_with_bias, self.n),
            (this_project.upper, self.n),
            (this_project.upper_in_n_and_a, places),
            (this_project.n_free_upper, places),
        ):
            name = f"this_project.{bound.__name__}"
            try:
                found[name] = exp(bound(self.form, n, radius).log_value)
            except Refused as refusal:
                found[name] = refusal
        return found

    def yudin(self, heads: list[HeadOnBall], eps: float) -> float | Refused:
        """‖V‖ (‖P'‖ + 2 ‖X'‖₂² ‖A‖ max_i g₁(P'_i)) with each factor at its largest over the ball."""
        name, form = "yudin2025.local over the ball", self.form
        try:
            asks.no_bias(form, name)
            if form.positional or form.f.softcap is not None:
                form.one_form(name)
        except Refused as refusal:
            return refusal
        tokens = float(top_value(self.x)) + math.sqrt(self.n) * eps
        p, g = (
            torch.tensor([getattr(head, of) for head in heads], dtype=torch.float64)
            for of in ("value", "concentration")
        )
        logs = (p + 2 * tokens**2 * form.score_norm * g).log()
        return exp(form.over_heads(logs + form.value_norm.log(), logs + form.raw_value_norm.log()))

    def rounded_up(self, value: float) -> float:
        """Sums, products and norms of what the intervals hand on: each is right to a few (n + d) units of rounding."""
        return math.inf if math.isnan(value) else value * (1 + 64 * (self.n + self.form.d) * UNIT)  # ∞ − ∞ on the way
