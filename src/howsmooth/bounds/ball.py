"""A certificate on a ball: one Lipschitz constant for all inputs near X.

The ball is {X' : |x'_i − x_i| ≤ ε for every token i that is not padding}, or {X' : ‖X' − X‖ ≤ ε}. It is convex, so a
bound L on ‖D_X' f‖₂ for all X' in it is a Lipschitz constant there: ‖f(X') − f(X″)‖ ≤ L ‖X' − X″‖. The proofs are in
docs/ball.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.bounds import this_project
from howsmooth.bounds.bound import Bound, Refused, exp, log
from howsmooth.bounds.conditions import LARGEST_RADIUS, check_eps, is_number, mask_of_tokens, require_no_bias
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.head_on_ball import HeadOnBall, LayerAtTokens
from howsmooth.bounds.norms import UNIT_ROUNDOFF, spectral_norm
from howsmooth.bounds.overlap import CombinedHeads
from howsmooth.bounds.quadratic_form import NAME, TokenMoves, quadratic_form
from howsmooth.display import Displayed
from howsmooth.errors import InputError
from howsmooth.spectral.solver import Solver

BALLS = {"token": "for |x'_i − x_i| ≤ ε", "text": "for ‖X' − X‖ ≤ ε"}
EFFORT = 16
REFERENCE = "docs/ball.md"
MAX_RELATIVE_EPS = 1e6  # of the radius: where `vacuous_eps` stops its search


@dataclass(frozen=True)
class BallCertificate(Displayed):
    """The smallest of several upper bounds over the ball, and all of them.

    Attributes:
        bound: the smallest bound.
        eps: ε, the radius of the ball.
        method: name of the smallest bound.
        parts: value of every bound by name; None where it does not apply.
        reasons: why a bound does not apply, by name.
        terms: the value, query and key terms of the interval bound, and their largest changes from X (`… change`).
    """

    bound: Bound
    eps: float
    method: str
    parts: dict[str, float | None]
    reasons: dict[str, str] = field(repr=False)
    terms: dict[str, float]

    @property
    def value(self) -> float | None:
        """The smallest bound; None where only its logarithm fits into a float."""
        return self.bound.value


def certify_ball(
    f: SelfAttention | LayerForm,
    x: Tensor,
    eps: float,
    padding: Tensor | None = None,
    *,
    at_center: float | None = None,
    per: Literal["token", "text"] = "token",
    tokens: Sequence[int] | Tensor | None = None,
    effort: int = EFFORT,
    solver: Solver = Solver(),
) -> BallCertificate:
    """Return a Lipschitz constant of f for all X' with |x'_i − x_i| ≤ ε for every real token i.

    It applies to layers of every kind. It is the smallest of these bounds:

        form          the largest eigenvalue of one operator that bounds u·J'z for all u, z and X' at once; for layers
                      without a soft cap
        interval      score intervals → intervals of probabilities → the three terms of the derivative
        centre        `at_center` plus the largest change of the derivative from X: exact as ε → 0
        yudin         `yudin2025.local`, maximised over the intervals of probabilities
        this_project  .theorem1_with_bias, .upper, .upper_in_n_and_a and .n_free_upper, on the ball of radius
                      max |x_i| + ε around zero; .local at ε = 0

    Args:
        f: the layer, or its `LayerForm`.
        x: tokens, (n, d).
        eps: ε, the largest Euclidean distance by which each token may move.
        padding: (n,), True where a token is real; padded tokens do not move and are not attended to.
        at_center: an upper bound on ‖D_X f‖₂, such as `local_lipschitz(f, x).upper`. The bound `centre` has the
            confidence of that estimate.
        per: "token" if every token may move by ε, "text" if ‖X' − X‖ ≤ ε in the Frobenius norm.
        tokens: the tokens that move, as indices or a mask over all n; by default all real ones. The certificate then
            bounds ‖f(X') − f(X″)‖/‖X' − X″‖ for X' and X″ that agree in all others.
        effort: rounds in which the weights of the quadratic form are improved, each about the cost of a solve; it stops
            early where they no longer help. 0 leaves out the quadratic form.
        solver: confidence and accuracy of the quadratic form; all else is deterministic. A certificate that is the
            smaller of two bounds, each with the confidence 1 − δ, has 1 − 2δ at least.

    Returns:
        The certificate, with the value of every bound.

    Raises:
        InputError: if an argument is invalid, or max |x_i| + ε exceeds 10¹⁰⁰.

    Reference:
        docs/ball.md.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> near, far = (certify_ball(SelfAttention(one, one, one), x, eps) for eps in (0.01, 10.0))
        >>> round(near.value, 2), near.method, far.method
        (1.32, 'form', 'yudin')
    """
    check_eps(eps)
    if per not in BALLS:
        raise InputError(f'expected per as "token" or "text", got {per!r}; "text" bounds the Frobenius norm by ε')
    if isinstance(effort, bool) or not isinstance(effort, int) or effort < 0:
        raise InputError(f"expected effort as a whole number of rounds from 0, got {effort!r}; {EFFORT} is the default")
    if at_center is not None and not (is_number(at_center) and 0 <= at_center < math.inf):
        raise InputError(f"expected at_center as a finite upper bound on ‖D_X f‖₂, got {at_center!r}; leave it out")
    ball = _Ball(form_of(f), x, padding)
    by_radius = ball.radius_bounds(eps)
    heads = ball.head_bounds(eps)
    terms, changes = (ball.combined.terms(heads, change) for change in ("", "_change"))
    moving = mask_of_tokens(tokens, ball.at.real)[ball.at.real]
    bounds: dict[str, float | Refused] = {}
    try:
        bounds[NAME] = quadratic_form(ball.combined, TokenMoves(eps, moving, per == "text"), effort, solver)
    except Refused as refusal:
        bounds[NAME] = refusal
    bounds["interval"] = ball.combined.total(heads, terms)
    if at_center is not None:
        bounds["centre"] = at_center + ball.combined.total(heads, changes, "_change")
    bounds["yudin"] = ball.yudin_bound(heads, eps)
    bounds |= by_radius
    if eps == 0:
        bounds["this_project.local"] = exp(this_project.local(ball.form, x, padding).log_value)
    reasons = {name: str(value) for name, value in bounds.items() if isinstance(value, Refused)}
    values = {name: ball.add_rounding_margin(value) for name, value in bounds.items() if not isinstance(value, Refused)}
    parts: dict[str, float | None] = {name: values.get(name) for name in bounds}
    if at_center is None:
        parts["centre"], reasons["centre"] = None, "needs at_center, an upper bound on ‖D_X f‖₂"
    method = min(values, key=lambda name: values[name])
    bound = Bound("ball", log(values[method]), "upper", BALLS[per], (f"ε = {eps:g}", f"by {method}"), REFERENCE)
    terms |= {f"{term} change": value for term, value in changes.items()}
    return BallCertificate(bound, float(eps), method, parts, reasons, terms)


def vacuous_eps(f: SelfAttention | LayerForm, x: Tensor, padding: Tensor | None = None, rtol: float = 1e-2) -> float:
    """Return the ε from which on the interval bound is no smaller than the bounds in max |x_i| + ε alone.

    It is found by bisection of log ε. If scores do not depend on the tokens, the result is ∞ under a mask, where the
    interval bound uses the norm of the running mean, and 0 without one, where `upper_in_n_and_a` equals the interval
    bound.

    Args:
        f: the layer, or its `LayerForm`.
        x: tokens, (n, d).
        padding: (n,), True where a token is real.
        rtol: relative accuracy of ε.

    Returns:
        ε; 0.0 if the interval bound is no smaller even at ε = 0, and ∞ if it is smaller up to 10⁶ max |x_i|.

    Raises:
        InputError: if an argument is invalid.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> 0.1 < vacuous_eps(SelfAttention(one, one, one), x) < 1
        True
    """
    if not is_number(rtol) or not 0 < rtol < 1:
        raise InputError(f"expected rtol between 0 and 1, got {rtol!r}; 0.01 is a percent of ε")
    ball = _Ball(form_of(f), x, padding)

    def is_useful(eps: float) -> bool:
        others = [value for value in ball.radius_bounds(eps).values() if not isinstance(value, Refused)]
        return ball.interval_bound(eps) < min(others)

    if not is_useful(0.0):
        return 0.0
    unit = ball.radius if ball.radius > 0 else 1.0
    low, high = 0.0, 1e-3 * unit
    while is_useful(high):
        if high > MAX_RELATIVE_EPS * unit:
            return math.inf
        low, high = high, 8 * high
    while low == 0.0:  # useful at 0 and, since the bound is continuous in ε, somewhat beyond
        if is_useful(high / 8):
            low = high / 8
        elif high < 1e-12 * unit:
            return 0.0
        else:
            high /= 8
    while high > (1 + rtol) * low:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_useful(middle) else (low, middle)
    return low


class _Ball:
    """A layer around the real tokens of x, for any ε."""

    def __init__(self, form: LayerForm, x: Tensor, padding: Tensor | None):
        self.form, self.at = form, LayerAtTokens(form, x, padding)
        self.combined, self.x = CombinedHeads(self.at), self.at.x[self.at.real]
        self.n, self.radius = len(self.x), float(self.x.norm(dim=-1).max())

    def head_bounds(self, eps: float) -> list[HeadOnBall]:
        return self.combined.map_heads(lambda head: head.on_ball(eps))

    def interval_bound(self, eps: float) -> float:
        heads = self.head_bounds(eps)
        return self.combined.total(heads, self.combined.terms(heads))

    def radius_bounds(self, eps: float) -> dict[str, float | Refused]:
        """Return the bounds that depend on the tokens only through max |x_i| + ε."""
        radius = self.radius + eps
        if radius > LARGEST_RADIUS:
            raise InputError(
                f"expected tokens with max |x_i| + ε up to {LARGEST_RADIUS:g}, got {self.radius:.4g} + "
                f"{eps:.4g}; beyond, scores leave float64: put the scale into the weights"
            )
        # Offsets are looked up by position, so that padded positions count for bounds that depend on offsets.
        positions = int(self.at.real.nonzero().max()) + 1
        bounds: dict[str, float | Refused] = {}
        for bound, n in (
            (this_project.theorem1_with_bias, self.n),
            (this_project.upper, self.n),
            (this_project.upper_in_n_and_a, positions),
            (this_project.n_free_upper, positions),
        ):
            name = f"this_project.{bound.__name__}"
            try:
                bounds[name] = exp(bound(self.form, n, radius).log_value)
            except Refused as refusal:
                bounds[name] = refusal
        return bounds

    def yudin_bound(self, heads: list[HeadOnBall], eps: float) -> float | Refused:
        """Return ‖V‖ (‖P'‖ + 2 ‖X'‖₂² ‖A‖ max_i g₁(P'_i)) with each factor at its maximum over the ball, step (8)."""
        name, form = "yudin2025.local over the ball", self.form
        try:
            require_no_bias(form, name)
            if form.is_rotary or form.f.softcap is not None:
                form.require_bilinear_scores(name)
        except Refused as refusal:
            return refusal
        token_norm = float(spectral_norm(self.x)) + math.sqrt(self.n) * eps
        p, g = (
            torch.tensor([getattr(head, of) for head in heads], dtype=torch.float64)
            for of in ("value", "concentration")
        )
        return exp(form.combine_heads((p + 2 * token_norm**2 * form.score_norm * g).log()))

    def add_rounding_margin(self, value: float) -> float:
        """Enlarge a bound by the rounding errors of its sums, products and norms: a few (n + d) unit roundoffs."""
        if math.isnan(value):  # ∞ − ∞ in an intermediate result
            return math.inf
        return value * (1 + 64 * (self.n + self.form.d) * UNIT_ROUNDOFF)
