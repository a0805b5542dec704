"""Bounds of this project: whole layers, with heads, biases, masks, windows, soft caps, offsets and rotary positions.

a, b, s and osc are the numbers of `LayerForm.slopes` and `LayerForm.oscillation`, and `m = max_queries_per_key(n)`
replaces n. For several heads, the formulas are combined by `LayerForm.combine_heads`. The proofs are in docs/bounds.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.bounds import conditions
from howsmooth.bounds.bound import Bound, log, log_sum
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.head_on_ball import Head, LayerAtTokens
from howsmooth.bounds.overlap import CombinedHeads
from howsmooth.bounds.two_points import best_two_points

REFERENCE = "docs/bounds.md, proof {}"
SUMMED_ROWS = 4096  # of the masked lower bound that are summed one by one; the rest is bounded by an integral


def theorem1_with_bias(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return Theorem 1 of Castin et al., extended to layers with a query bias: an upper bound on B_R^n.

        √3 ‖V‖ (m + a² + 4 m b²)^½

    For every layer. Without a query bias b = a, and the bound is that of the paper.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Reference:
        docs/bounds.md, proof 1; castin2024smooth, Theorem 1.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> f = SelfAttention(0 * eye, eye, eye, scale=1.0, bq=torch.tensor([10.0, 0.0]).double())
        >>> round(theorem1_with_bias(f, 2, 1.0).value, 1)  # without the bias 2.4; at (0, ±1) the norm is 10.05
        49.1
    """
    form = form_of(f)
    conditions.check_n(n)
    m, slopes = form.max_queries_per_key(n), form.slopes(radius)
    root = torch.hypot(torch.hypot(slopes.query, 2 * math.sqrt(m) * slopes.key), slopes.query.new_tensor(m).sqrt())
    return _combined("this_project.theorem1_with_bias", form, root.log() + math.log(3) / 2, "on B_R^n", (), 1)


def upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return an upper bound on B_R^n that is never above Theorem 1 of Castin et al.

        Lip(f on B_R^n) ≤ ‖V‖ (√m + a + √(m/2) b)

    For every layer.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Reference:
        docs/bounds.md, proof 1.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(upper(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 1)
        65.3
    """
    form = form_of(f)
    conditions.check_n(n)
    m, slopes = form.max_queries_per_key(n), form.slopes(radius)
    logs = (math.sqrt(m) + slopes.query + math.sqrt(m / 2) * slopes.key).log()
    return _combined("this_project.upper", form, logs, "on B_R^n", (), 1)


def upper_in_n_and_a(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return an upper bound on B_R^n that stays finite as n → ∞.

        ‖V‖ (√κ + a + min(√κ, √(n/2)) b),    κ = n / (1 + (n−1) e^{−2s−osc}) ≤ min(n, e^{2s+osc})

    For layers without mask, window and infinite score offsets.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        docs/bounds.md, proof 2.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(upper_in_n_and_a(SelfAttention(one, one, one), 400, 0.0).value, 6)  # equal scores: the mean
        1.0
    """
    name, form = "this_project.upper_in_n_and_a", form_of(f)
    conditions.check_n(n)
    met = (
        conditions.require_unmasked(form, name),
        conditions.require_no_window(form, name),
        conditions.require_finite_score_bias(form, name, n),
    )
    slopes = form.slopes(radius)
    # log of the least total weight of the n − 1 other keys, relative to the key itself
    log_others = torch.full_like(slopes.query, log(n - 1)) - 2 * slopes.spread - form.oscillation(n)
    root = (0.5 * (math.log(n) - torch.nn.functional.softplus(log_others, threshold=40.0))).exp()  # √κ
    logs = (root + slopes.query + root.clamp(max=math.sqrt(n / 2)) * slopes.key).log()
    return _combined(name, form, logs, "on B_R^n", met, 2)


def lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return a lower bound on B_R^n for one head, from one isolated token and n − 1 equal tokens.

        ‖Vu‖ √(n−1) p (1 + g(1−p)),    p = 1/(1 + (n−1) e^{−g}),    at the best g ≤ 2γR²

    γ = −uᵀAu or uᵀAu/8 for the extreme eigenvectors u of (A + Aᵀ)/2; A needs no real eigenvalue. With a mask it is

        ‖Vu‖ (1 + Σ_{i≥2} p_i² (1 + g(1−p_i))²)^½,    p_i = 1/(1 + (i−1) e^{−g})

    For one head with bilinear scores, without biases and window.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        docs/bounds.md, proof 4.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(lower(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 1)
        39.9
    """
    name, form = "this_project.lower", form_of(f)
    conditions.check_n(n)
    conditions.check_radius(radius)
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
    )
    form.require_bilinear_scores(name)
    best = 0.0
    for u, gamma in _two_point_directions(form):
        largest = max(0.0, 2 * gamma * radius**2)
        # Smaller radii are in the ball as well. For g well above log n the bound only tends to √(n−1).
        g = torch.cat(
            [
                torch.linspace(0, min(largest, math.log(n) + 10), 400, dtype=torch.float64),
                torch.tensor([largest, min(largest, log(max(n - 1, 1)))], dtype=torch.float64),
            ]
        )
        best = max(best, float(_two_point_gain(g, n, form.causal).max()) * form.value_gain(0, u))
    return Bound(name, log(best), "lower", "on B_R^n", met, REFERENCE.format(4))


def two_point_lower(f: SelfAttention | LayerForm, n: int, radius: float, refine: bool = False) -> Bound:
    """Return a lower bound on B_R^n for whole layers, from one isolated token and n − 1 equal tokens.

    For one head without a mask it is, with the isolated token y and the repeated token z,

        √(n−1) p ‖V (I + (1−p)(y−z)(Az + c)ᵀ)‖,    p = 1/(1 + (n−1) e^{−Δ}),    Δ = ⟨Az + c, y−z⟩

    `bounds.two_points` finds y and z. For layers with bilinear scores, masked or not, with biases, without window.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.
        refine: whether to improve y and z by gradient ascent.

    Returns:
        The bound, valid on B_R^n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        docs/bounds.md, proof 4.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> f = SelfAttention(-one, one, one)
        >>> round(two_point_lower(f, 400, (math.log(399) / 2) ** 0.5, refine=True).value, 1)
        39.9
    """
    name, form = "this_project.two_point_lower", form_of(f)
    _, _, value = best_two_points(form, n, radius, refine, name)
    return Bound(
        name,
        log(value),
        "lower",
        "on B_R^n",
        ("no window", "no rotary positions, soft cap or score offsets"),
        REFERENCE.format(4),
    )


def n_free_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return an upper bound that does not depend on n.

        ‖V‖ (a + (1 + b) e^{s + osc/2})         without a mask
        ‖V‖ (a + (2 + √6 b) e^{s + osc/2})      with a causal mask

    For layers without window and infinite score offsets. If there are offsets, osc is that of n tokens.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid for all n, or on B_R^n if there are offsets.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        docs/bounds.md, proofs 2 and 3.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> bound = n_free_upper(SelfAttention(one, one, one), 10, 1000.0)
        >>> bound.value, round(bound.log_value - 1e6, 2)
        (None, 13.82)
    """
    name, form = "this_project.n_free_upper", form_of(f)
    conditions.check_n(n)
    met = (conditions.require_no_window(form, name), conditions.require_finite_score_bias(form, name, n))
    slopes = form.slopes(radius)
    factor = 2 + math.sqrt(6) * slopes.key if form.causal else 1 + slopes.key
    logs = torch.logaddexp(slopes.query.log(), factor.log() + slopes.spread + form.oscillation(n) / 2)
    holds = "for all n" if form.f.score_bias is None else "on B_R^n"
    return _combined(name, form, logs, holds, met, 3 if form.causal else 2)


def n_free_right_exponent(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return an upper bound that does not depend on n, with the right exponential rate in R.

        ‖V‖ (a + (1 + b) (e (1 + 4b)^r)^½ e^{D/2}),    r = min(k, d)

    D bounds the largest difference ⟨Az + c, y − z⟩ in the ball. If D is that difference, e^{D/2} is the true rate as
    R → ∞. The factor (1 + 4b)^{r/2} makes the bound worse than `n_free_upper` unless a is far above r. For layers with
    bilinear scores, without mask and window.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound, valid for all n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        docs/bounds.md, proof 2.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> f = SelfAttention(one, one, one)  # A = 1: D = R²/4
        >>> round(n_free_right_exponent(f, 10, 1000.0).log_value / 1e6, 3)
        0.125
    """
    name, form = "this_project.n_free_right_exponent", form_of(f)
    conditions.check_n(n)
    form.require_bilinear_scores(name)
    met = (conditions.require_unmasked(form, name), conditions.require_no_window(form, name))
    slopes, rank = form.slopes(radius), min(form.wq.shape[1], form.d)
    difference = torch.tensor(
        [_largest_score_difference(form, head, radius) for head in range(form.heads)], dtype=torch.float64
    )
    rate = 0.5 * (1 + rank * (4 * slopes.key).log1p() + difference)
    logs = torch.logaddexp(slopes.query.log(), slopes.key.log1p() + rate)
    return _combined(name, form, logs, "for all n", met, 2)


def two_dirac_lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Return a lower bound on the supremum over n of the constants on B_R^n.

        ‖Vu‖ max(½ e^g (1 + g), (√3/4) e^g (1 + 3g/2))      without a mask,  g = γR²
        ‖Vu‖ (1 + e^{2g} (1 + 2g + 4g²/3))^½                with a causal mask

    The first two are the values of two Dirac measures with masses 1 : e^{2g} and 1 : 3e^{2g}. Sequences approach them
    with about that many equal tokens per isolated token. u and γ are as in `lower`. For one head with bilinear scores,
    without biases and window.

    Args:
        f: the layer, or its `LayerForm`.
        n: number of tokens; it is only checked.
        radius: R, the largest Euclidean norm of a token.

    Returns:
        The bound on the supremum over n.

    Raises:
        Refused: if a condition on the layer fails.

    Reference:
        docs/bounds.md, proof 4.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(two_dirac_lower(SelfAttention(-one, one, one), 400, 2.0).value / math.exp(4), 3)  # (√3/4)·7
        3.031
    """
    name, form = "this_project.two_dirac_lower", form_of(f)
    conditions.check_n(n)
    conditions.check_radius(radius)
    multiplicity = "far more than e^{2γR²}" if form.causal else "e^{2γR²} or 3e^{2γR²}"
    met = (
        conditions.require_one_head(form, name),
        conditions.require_no_bias(form, name),
        conditions.require_no_window(form, name),
        f"the supremum over n, neared with {multiplicity} others per isolated token",
    )
    form.require_bilinear_scores(name)
    best = -math.inf
    for u, gamma in _two_point_directions(form):
        g = max(0.0, gamma) * radius**2
        if form.causal:
            value = 0.5 * log_sum(0.0, 2 * g + log_sum(0.0, log(2 * g) + math.log1p(2 * g / 3)))
        else:
            value = g + max(math.log((1 + g) / 2), math.log(math.sqrt(3) / 4 * (1 + 1.5 * g)))
        best = max(best, log(form.value_gain(0, u)) + value)
    return Bound(name, best, "lower", "sup over n", met, REFERENCE.format(4))


def local(f: SelfAttention | LayerForm, x: Tensor, padding: Tensor | None = None) -> Bound:
    """Return an upper bound on the norm of the derivative at the tokens x.

        ‖V‖‖P‖ + max_i ‖V C_i A‖ + ‖Σ_i τ_i a_i a_iᵀ‖^½

    with a_i = A x_i + c and τ_i = ‖Σ_j P_ij² V(x_j − m_i)(x_j − m_i)ᵀVᵀ‖, for one head. It is never above
    `yudin2025.local`. Several heads are combined by the overlap of their subspaces, as in the interval bound of
    `certify_ball`, which equals this one at ε = 0. For every layer.

    Args:
        f: the layer, or its `LayerForm`.
        x: tokens, (n, d).
        padding: (n,), True where a token is real; padded tokens do not move and are not attended to.

    Returns:
        The bound, valid at X.

    Reference:
        docs/bounds.md, proof 1.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> round(local(SelfAttention(one, one, one), torch.tensor([[0.0], [1.0]], dtype=torch.float64)).value, 3)
        1.556
    """
    at = LayerAtTokens(form_of(f), x, padding)
    combined = CombinedHeads(at)
    heads = combined.map_heads(Head.at_centre, at.probability_norm().tolist())
    total = combined.total(heads, combined.terms(heads))
    return Bound("this_project.local", log(total), "upper", "at X", (), REFERENCE.format(1))


def _combined(name: str, form: LayerForm, logs: Tensor, holds: str, met: tuple[str, ...], proof: int) -> Bound:
    """Return the upper bound of a layer from log(bound_h/‖V_h‖), (h,)."""
    return Bound(name, form.combine_heads(logs), "upper", holds, met, REFERENCE.format(proof))


def _two_point_directions(form: LayerForm) -> list[tuple[Tensor, float]]:
    """Return unit vectors u (d,) of the only head with γ = −uᵀAu (tokens ±Ru) or uᵀAu/8 (tokens Ru and Ru/2)."""
    values, vectors = form.extreme_pairs
    return [(vectors[0, 0], -float(values[0, 0])), (vectors[0, 1], float(values[0, 1]) / 8)]


def _two_point_gain(g: Tensor, n: int, causal: bool) -> Tensor:
    """Return the lower bound divided by ‖Vu‖, for score differences g (·,)."""
    if n == 1:
        return torch.ones_like(g)
    if not causal:
        p = torch.sigmoid(g - math.log(n - 1))
        return math.sqrt(n - 1) * p * (1 + g * (1 - p))
    summed = min(n, SUMMED_ROWS)
    t = torch.arange(1, summed, dtype=torch.float64)
    squares: Tensor = 1 + _row_square(g.unsqueeze(-1), t.log()).sum(-1)
    return (squares if n == summed else squares + _remaining_rows(g, summed, n)).sqrt()


def _row_square(g: Tensor, log_t: Tensor) -> Tensor:
    """Return h(t) = p²(1 + g(1−p))², p = 1/(1 + t e^{−g}): the squared change of the output of token t + 1."""
    p, rest = torch.sigmoid(g - log_t), torch.sigmoid(log_t - g)
    return (p * (1 + g * rest)).square()


def _remaining_rows(g: Tensor, first: int, n: int) -> Tensor:
    """Bound Σ h(t) over first ≤ t < n from below by an integral.

        ∫ h dt = (n − first) p_first p_n (l² + lr + r²)/3,    l, r = 1 + g(1−p) at the two ends

    h increases up to t = e^g (g−1)/(g+1) and decreases after it. If it increases at `first`, the sum is no less than
    the integral, less the maximum of h plus its first value.
    """
    ends = torch.tensor([first, n], dtype=torch.float64).log().unsqueeze(-1)
    p: Tensor = torch.sigmoid(g - ends).prod(0)
    left, right = (1 + g * torch.sigmoid(ends - g)).unbind()
    integral = (n - first) * p * (left * left + left * right + right * right) / 3
    maximiser = torch.minimum(torch.maximum(g + ((g - 1).clamp(min=0) / (g + 1)).log(), ends[0]), ends[1])
    return (integral - _row_square(g, maximiser) + _row_square(g, ends[0])).clamp(min=0)


def _largest_score_difference(form: LayerForm, head: int, radius: float) -> float:
    """Return an upper bound D on ⟨Az + c, y − z⟩ for y and z in the ball.

    R|Az| − zᵀAz ≤ R L |z| − λ|z|²  and  ⟨c, y − z⟩ ≤ 2R|c|,    L = ‖A‖, λ the least eigenvalue of (A + Aᵀ)/2
    """
    length, least = float(form.score_norm[head]), form.symmetric_extremes(head)[0]
    plain = length - least if least <= 0 or length > 2 * least else length**2 / (4 * least)
    return radius**2 * plain + 2 * radius * float(form.query_offset[head])
