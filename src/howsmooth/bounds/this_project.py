"""Bounds of this project: whole layers, with heads, biases, masks, windows, soft caps, offsets and rotary positions.

With a, b, s and osc the numbers of `LayerForm.slopes` and `.oscillation`, and m = `reach(n)` in place of n. Proofs are
in docs/bounds.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.bounds import conditions as asks
from howsmooth.bounds.bound import Bound, log, log_sum
from howsmooth.bounds.conditions import check_n, check_radius
from howsmooth.bounds.form import LayerForm, form_of
from howsmooth.bounds.head_on_ball import AtTokens, Head
from howsmooth.bounds.overlap import Joined
from howsmooth.bounds.two_points import best_two_points

PROOFS = "docs/bounds.md, proof {}"
ROWS = 4096  # of the masked lower bound that are added up one by one; the others by an integral


def theorem1_with_bias(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """√3 ‖V‖ (m + a² + 4 m b²)^½ per head: Theorem 1 as it has to read for layers with a query bias.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> f = SelfAttention(0 * eye, eye, eye, scale=1.0, bq=torch.tensor([10.0, 0.0]).double())
    >>> round(theorem1_with_bias(f, 2, 1.0).value, 1)  # without the bias 2.4, and at (0, ±1) the norm is 10.05
    49.1
    """
    form = form_of(f)
    check_n(n)
    m, slopes = form.reach(n), form.slopes(radius)
    squares = torch.hypot(torch.hypot(slopes.query, 2 * math.sqrt(m) * slopes.key), slopes.query.new_tensor(m).sqrt())
    return _over_heads("this_project.theorem1_with_bias", form, squares.log() + math.log(3) / 2, "on B_R^n", (), 1)


def upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Lip(f on B_R^n) ≤ ‖V‖ (√m + a + √(m/2) b) per head: at most Theorem 1, and for every kind of layer.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(upper(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 1)
    65.3
    """
    form = form_of(f)
    check_n(n)
    m, slopes = form.reach(n), form.slopes(radius)
    logs = (math.sqrt(m) + slopes.query + math.sqrt(m / 2) * slopes.key).log()
    return _over_heads("this_project.upper", form, logs, "on B_R^n", (), 1)


def upper_in_n_and_a(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """‖V‖ (√κ + a + min(√κ, √(n/2)) b) per head, κ = n / (1 + (n−1) e^{−2s−osc}) ≤ min(n, e^{2s+osc}), without a mask.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(upper_in_n_and_a(SelfAttention(one, one, one), 400, 0.0).value, 6)  # all scores alike: the mean
    1.0
    """
    name, form = "this_project.upper_in_n_and_a", form_of(f)
    check_n(n)
    found = (asks.unmasked(form, name), asks.no_window(form, name), asks.nothing_hidden(form, name, n))
    slopes = form.slopes(radius)
    crowd = torch.full_like(slopes.query, log(n - 1)) - 2 * slopes.spread - form.oscillation(n)
    root = (0.5 * (math.log(n) - torch.nn.functional.softplus(crowd, threshold=40.0))).exp()
    logs = (root + slopes.query + root.clamp(max=math.sqrt(n / 2)) * slopes.key).log()
    return _over_heads(name, form, logs, "on B_R^n", found, 2)


def lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """‖Vu‖ √(n−1) p (1 + g(1−p)), p = 1/(1 + (n−1)e^{−g}), at the best g ≤ 2γR², for one head.

    γ = −uᵀAu or uᵀAu/8 for the extreme eigenvectors u of (A + Aᵀ)/2: no real eigenvalue of A is needed. Masked:
    ‖Vu‖ (1 + Σ_{i≥2} p_i²(1 + g(1−p_i))²)^½, p_i = 1/(1 + (i−1)e^{−g}).

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(lower(SelfAttention(-one, one, one), 400, (math.log(399) / 2) ** 0.5).value, 1)
    39.9
    """
    name, form = "this_project.lower", form_of(f)
    check_n(n)
    check_radius(radius)
    found = (asks.one_head(form, name), asks.no_bias(form, name), asks.no_window(form, name))
    form.one_form(name)
    best = 0.0
    for u, gamma in _steep(form):
        largest = max(0.0, 2 * gamma * radius**2)
        # Smaller radii are in the ball as well. Beyond g = log n nothing is to be had but √(n−1).
        g = torch.cat(
            [
                torch.linspace(0, min(largest, math.log(n) + 10), 400, dtype=torch.float64),
                torch.tensor([largest, min(largest, log(max(n - 1, 1)))], dtype=torch.float64),
            ]
        )
        best = max(best, float(_two_point_gain(g, n, form.causal).max()) * _stretched(form, u))
    return Bound(name, log(best), "lower", "on B_R^n", found, PROOFS.format(4))


def two_point_lower(f: SelfAttention | LayerForm, n: int, radius: float, refine: bool = False) -> Bound:
    """The norm that one isolated token and a crowd at one place reach, for whole layers: see `bounds.two_points`.

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
        PROOFS.format(4),
    )


def n_free_upper(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """‖V‖ (a + (1 + b) e^{s + osc/2}) per head without a mask, ‖V‖ (a + (2 + √6 b) e^{s + osc/2}) with one.

    Free of n, except that offsets count as far as n tokens see them.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> bound = n_free_upper(SelfAttention(one, one, one), 10, 1000.0)
    >>> bound.value, round(bound.log_value - 1e6, 2)
    (None, 13.82)
    """
    name, form = "this_project.n_free_upper", form_of(f)
    check_n(n)
    found = (asks.no_window(form, name), asks.nothing_hidden(form, name, n))
    slopes = form.slopes(radius)
    factor = 2 + math.sqrt(6) * slopes.key if form.causal else 1 + slopes.key
    logs = torch.logaddexp(slopes.query.log(), factor.log() + slopes.spread + form.oscillation(n) / 2)
    holds = "for all n" if form.f.score_bias is None else "on B_R^n"
    return _over_heads(name, form, logs, holds, found, 3 if form.causal else 2)


def n_free_right_exponent(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """‖V‖ (a + (1 + b) (e (1 + 4b)^r)^½ e^{D/2}) per head without a mask, r = min(k, d).

    D bounds the largest difference ⟨Az + c, y − z⟩ in the ball: e^{D/2} is the true rate at large R if D is the largest
    one. The factor (1 + 4b)^{r/2} makes it worse than `n_free_upper` unless a is far above r.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> f = SelfAttention(one, one, one)  # A = 1: D = R²/4, half of what e^{2a} says of it
    >>> round(n_free_right_exponent(f, 10, 1000.0).log_value / 1e6, 3)
    0.125
    """
    name, form = "this_project.n_free_right_exponent", form_of(f)
    check_n(n)
    form.one_form(name)
    found = (asks.unmasked(form, name), asks.no_window(form, name))
    slopes, cells = form.slopes(radius), min(form.wq.shape[1], form.d)
    widest = torch.tensor([_widest(form, head, radius) for head in range(form.heads)], dtype=torch.float64)
    rate = 0.5 * (1 + cells * (4 * slopes.key).log1p() + widest)
    logs = torch.logaddexp(slopes.query.log(), slopes.key.log1p() + rate)
    return _over_heads(name, form, logs, "for all n", found, 2)


def two_dirac_lower(f: SelfAttention | LayerForm, n: int, radius: float) -> Bound:
    """Sup over n: ‖Vu‖ max(½ e^g (1 + g), (√3/4) e^g (1 + 3g/2)), g = γR²; masked ‖Vu‖ (1 + e^{2g}(1 + 2g + 4g²/3))^½.

    The two are the values for masses 1 : e^{2g} and 1 : 3e^{2g}; sequences come as close as one likes when each
    isolated token comes with about that many others. u and γ are as in `lower`.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(two_dirac_lower(SelfAttention(-one, one, one), 400, 2.0).value / math.exp(4), 3)  # (√3/4)·7
    3.031
    """
    name, form = "this_project.two_dirac_lower", form_of(f)
    check_n(n)
    check_radius(radius)
    found = (asks.one_head(form, name), asks.no_bias(form, name), asks.no_window(form, name))
    form.one_form(name)
    crowd = "far more than e^{2γR²}" if form.causal else "e^{2γR²} or 3e^{2γR²}"
    found += (f"the supremum over n, neared with {crowd} others per isolated token",)
    best = -math.inf
    for u, gamma in _steep(form):
        g = max(0.0, gamma) * radius**2
        if form.causal:
            value = 0.5 * log_sum(0.0, 2 * g + log_sum(0.0, log(2 * g) + math.log1p(2 * g / 3)))
        else:
            value = g + max(math.log((1 + g) / 2), math.log(math.sqrt(3) / 4 * (1 + 1.5 * g)))
        best = max(best, log(_stretched(form, u)) + value)
    return Bound(name, best, "lower", "sup over n", found, PROOFS.format(4))


def local(f: SelfAttention | LayerForm, x: Tensor, padding: Tensor | None = None) -> Bound:
    """‖V‖‖P‖ + max_i ‖V C_i A‖ + ‖Σ_i τ_i a_i a_iᵀ‖^½ for a head, at these tokens, with the P of the layer itself.

    a_i = A x_i + c and τ_i = ‖Σ_j P_ij² V(x_j − m_i)(x_j − m_i)ᵀVᵀ‖. Never above `yudin2025.local`. Several heads
    count by how much they overlap, as in `certify_ball`, whose interval bound at ε = 0 this is.

    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> round(local(SelfAttention(one, one, one), torch.tensor([[0.0], [1.0]], dtype=torch.float64)).value, 3)
    1.556
    """
    at = AtTokens(form_of(f), x, padding)
    joined = Joined(at)
    found = joined.of_heads(Head.at_centre, at.probability_norm().tolist())
    total = joined.total(found, joined.terms(found))
    return Bound("this_project.local", log(total), "upper", "at X", (), PROOFS.format(1))


def _over_heads(name: str, form: LayerForm, logs: Tensor, holds: str, conditions: tuple, proof: int) -> Bound:
    """The bound of a layer from log(bound_h/‖V_h‖), (h,)."""
    total = form.over_heads(logs + form.value_norm.log(), logs + form.raw_value_norm.log())
    return Bound(name, total, "upper", holds, conditions, PROOFS.format(proof))


def _steep(form: LayerForm) -> list[tuple[Tensor, float]]:
    """Unit vectors u (d,) of the only head with γ = −uᵀAu, for tokens at ±Ru, or uᵀAu/8, for tokens at Ru and Ru/2."""
    values, vectors = form.extreme_pairs
    return [(vectors[0, 0], -float(values[0, 0])), (vectors[0, 1], float(values[0, 1]) / 8)]


def _stretched(form: LayerForm, u: Tensor) -> float:
    """‖V u‖ of the only head."""
    v = form.wv[0] @ u
    return float((v if form.wo is None else form.wo[0] @ v).norm())


def _two_point_gain(g: Tensor, n: int, causal: bool) -> Tensor:
    """The norm per ‖Vu‖ of two points at difference g (·,)."""
    if n == 1:
        return torch.ones_like(g)
    if not causal:
        p = torch.sigmoid(g - math.log(n - 1))
        return math.sqrt(n - 1) * p * (1 + g * (1 - p))
    written_out = min(n, ROWS)
    places = torch.arange(1, written_out, dtype=torch.float64)
    rows = 1 + _row_square(g.unsqueeze(-1), places.log()).sum(-1)
    return (rows if n == written_out else rows + _later_rows(g, written_out, n)).sqrt()


def _row_square(g: Tensor, log_place: Tensor) -> Tensor:
    """h(t) = p²(1 + g(1−p))², p = 1/(1 + t e^{−g}): the square of what token t + 1 moves by."""
    p, rest = torch.sigmoid(g - log_place), torch.sigmoid(log_place - g)
    return (p * (1 + g * rest)).square()


def _later_rows(g: Tensor, first: int, n: int) -> Tensor:
    """Σ h(t) over first ≤ t < n from below, by ∫ h dt = (n − first) p_first p_n (l² + lr + r²)/3, l, r = 1 + g(1−p).

    h rises up to t = e^g (g−1)/(g+1) and falls after it. Where it rises at first, the sum is no less than the integral
    less the largest h plus the first.
    """
    ends = torch.tensor([first, n], dtype=torch.float64).log().unsqueeze(-1)
    p, (left, right) = torch.sigmoid(g - ends).prod(0), 1 + g * torch.sigmoid(ends - g)
    whole = (n - first) * p * (left * left + left * right + right * right) / 3
    top = torch.minimum(torch.maximum(g + ((g - 1).clamp(min=0) / (g + 1)).log(), ends[0]), ends[1])
    return (whole - _row_square(g, top) + _row_square(g, ends[0])).clamp(min=0)


def _widest(form: LayerForm, head: int, radius: float) -> float:
    """An upper bound on ⟨Az + c, y − z⟩ for y and z in the ball: R|Az| − zᵀAz ≤ RL|z| − λ|z|², and 2R|c|."""
    length, least = float(form.score_norm[head]), form.symmetric_extremes(head)[0]
    plain = length - least if least <= 0 or length > 2 * least else length**2 / (4 * least)
    return radius**2 * plain + 2 * radius * float(form.query_offset[head])
