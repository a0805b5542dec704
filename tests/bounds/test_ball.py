"""The certificate on a ball against dense Jacobians: at random points, after gradient ascent, term by term."""

import math

import pytest
import torch

from howsmooth import InputError, SelfAttention
from howsmooth.attention import reference
from howsmooth.bounds import castin2024, this_project, yudin2025
from howsmooth.bounds.ball import certify_ball, vacuous_eps
from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.head_on_ball import Head, LayerAtTokens
from howsmooth.bounds.norms import (
    Interval,
    largest_concentration,
    norm_of_nonnegative,
    softcap_interval,
    softmax_interval,
)
from howsmooth.bounds.overlap import Overlap
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import at_most, same_record

N, D = 4, 6
KINDS = [(name, d_out) for name in LAYERS for d_out in (5, None)]


def sigma(f, x, padding=None):
    j = reference.jacobian(f, x, padding)
    if padding is not None:
        rows, cols = (padding.repeat_interleave(size // len(x)) for size in j.shape)
        j = j[rows][:, cols]
    return torch.linalg.matrix_norm(j, 2)


def perturbations(seed, eps, count, n=N, d=D):
    """Perturbations with every token on the sphere of radius ε, and some inside it."""
    e = normal(seed, count, n, d)
    e = e / e.norm(dim=-1, keepdim=True)
    e[::4] *= torch.rand(len(e[::4]), n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return eps * e


def ascended(f, x, eps, padding=None, steps=12):
    """The largest σ₁ in a gradient ascent from X, with every token on the sphere of radius ε."""
    e, best = perturbations(3, eps, 2, *x.shape)[1], 0.0
    for _ in range(steps):
        e = e.detach().requires_grad_()
        value = sigma(f, x + e, padding)
        best = max(best, value.item())
        (g,) = torch.autograd.grad(value, e)
        e = eps * g / g.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    return best


@pytest.mark.parametrize("name, d_out", KINDS)
def test_no_point_of_the_ball_exceeds_the_certificate(name, d_out):
    f, x = layer(name, d_out=d_out), 0.5 * normal(77, N, D)
    for eps in (1e-4, 0.01, 0.1, 1.0):
        at_center = float(sigma(f, x))
        certificate = certify_ball(f, x, eps, at_center=at_center)
        worst = max([ascended(f, x, eps), *(float(sigma(f, x + e)) for e in perturbations(5, eps, 12))])
        for part, value in certificate.parts.items():
            assert value is None or at_most(worst, value), (part, eps)
        least = min(value for value in certificate.parts.values() if value is not None)
        assert certificate.parts[certificate.method] == least  # exact: the least is one of the parts
        assert least == pytest.approx(certificate.value, rel=1e-14)
        if eps == 1e-4:  # for small ε it is sharp
            assert certificate.method in ("centre", "form")
            assert at_most(certificate.value, 1.01 * at_center)


def test_random_points_do_not_exceed_the_certificate():
    f, x = layer("grouped"), normal(8, N, D)
    eps = 0.05
    bound = certify_ball(f, x, eps, at_center=float(sigma(f, x))).value
    moved = x + perturbations(9, eps, 3000)
    j = torch.func.vmap(torch.func.jacrev(lambda t: f(t).flatten()))(moved).flatten(-2)
    assert at_most(float(torch.linalg.matrix_norm(j, 2).max()), bound)


@pytest.mark.parametrize("name", LAYERS)
def test_difference_quotients_in_the_ball_are_below_the_certificate(name):
    f, x = layer(name), 0.3 * normal(6, N, D)
    for eps in (0.01, 0.3):
        bound = certify_ball(f, x, eps).value
        one, two = x + perturbations(1, eps, 200), x + perturbations(2, eps, 200)
        change, move = (torch.linalg.matrix_norm(t) for t in (f(one) - f(two), one - two))
        assert at_most(change, bound * move)


def three_terms(f, x, h, padding=None):
    """P, W M_i and W T of head h alone, dense: n × n, n matrices (d_out, d), and (n·d_out, n·d)."""
    f = f.head(h)
    q, k, v = f.project(x)
    do_dq, do_dk, p = (t[0] for t in reference.partials(q, k, v, padding=padding, **f.pattern()))
    wo = torch.eye(v.shape[-1], dtype=torch.float64) if f.wo is None else f.wo

    def rotated(weight):  # (n, k, d)
        w = weight.T.unsqueeze(1).expand(-1, len(x), -1)
        return (w if f.rotary is None else f.rotary(w)).permute(1, 2, 0)

    query = wo @ do_dq @ rotated(f.wq)
    key = torch.einsum("ow,ijwk,jkd->iojd", wo, do_dk, rotated(f.wk))
    return p, query, key.flatten(2).flatten(0, 1)


def g1(p):
    first, second = torch.nn.functional.pad(p, (0, 1)).topk(2, -1).values.unbind(-1)
    return float((first * (1 - first + second)).max())


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("eps", [0.0, 0.003, 0.1, 2.0])
def test_each_term_of_each_head_is_bounded(name, eps):
    f, x = layer(name), 0.7 * normal(4, N, D)
    at = LayerAtTokens(LayerForm(f), x)
    for h in range(f.heads):
        bound = Head(at, h).on_ball(eps)
        p, query, key = three_terms(f, x, h)
        assert torch.allclose(Head(at, h).query_norms, torch.linalg.matrix_norm(query, 2), rtol=1e-7, atol=1e-9)
        if eps == 0:
            # At ε = 0 only rounding and cancellation in Gram matrices remain.
            assert max(bound.value_change, bound.key_change, float(bound.query_change.max())) <= 1e-6
            assert abs(bound.value - float(torch.linalg.matrix_norm(p, 2))) <= 1e-9
        for e in perturbations(11, eps, 25):
            p2, query2, key2 = three_terms(f, x + e, h)
            for covered, truth in (
                (bound.value, p2),
                (bound.value_change, p2 - p),
                (bound.key, key2),
                (bound.key_change, key2 - key),
            ):
                assert at_most(float(torch.linalg.matrix_norm(truth, 2)), covered + 1e-12)
            assert at_most(torch.linalg.matrix_norm(query2, 2), bound.query + 1e-12)
            assert at_most(torch.linalg.matrix_norm(query2 - query, 2), bound.query_change + 1e-12)
            assert at_most(g1(p2), bound.concentration + 1e-12)


# Query 0 attends to keys 1 and 2, which attend only to themselves. Scores use the first coordinate, values the second.
# Each case has a single cause of change, so that a bound without it is exceeded: (x, gain of scores, offset).
CAUSES = {
    "the query changes the scores": ([[0, 0], [1, 1], [-1, -1]], 10.0, 0.0),
    "a key changes the scores": ([[1, 0], [0, 1], [0, -1]], 10.0, 0.0),
    "a key changes the scores of a row that prefers the other": ([[1, 0], [0, 1], [0, -1]], 100.0, 3.0),
    "the same where keys differ": ([[1, 0], [0.01, 1], [-0.01, -1]], 100.0, 4.0),
    "values move": ([[1, 0], [0, 0], [0, 0]], 1.0, 0.0),
    "keys move where the query is zero": ([[0, 0], [0, 1], [0, -1]], 1.0, 0.0),
    "values move where keys differ": ([[0, 0], [1, 0], [-1, 0]], 1.0, 0.0),
}


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("eps", [1e-4, 0.03])
def test_each_cause_of_change_is_counted(cause, eps):
    x, gain, offset = CAUSES[cause]
    x, masked = torch.tensor(x, dtype=torch.float64), -math.inf
    first, second = torch.eye(2, dtype=torch.float64).unsqueeze(1)
    table = torch.tensor([[masked, 0, offset], [masked, 0, masked], [masked, masked, 0]], dtype=torch.float64)
    f = SelfAttention(gain * first, first, second, scale=1.0, score_bias=table)
    bound = Head(LayerAtTokens(LayerForm(f), x), 0).on_ball(eps)
    moves = torch.cat([torch.zeros(1, 2, dtype=torch.float64), *(s * eps * torch.eye(2).double() for s in (1, -1))])
    at_x, worst = three_terms(f, x, 0), [0.0] * 6
    for a in moves:  # each token moves along an axis, or not at all
        for b in moves:
            for c in moves:
                moved = three_terms(f, x + torch.stack([a, b, c]), 0)
                truths = [t for pair in zip(moved, at_x, strict=True) for t in (pair[0], pair[0] - pair[1])]
                norms = [float(torch.linalg.matrix_norm(t, 2).max()) for t in truths]
                worst = [max(pair) for pair in zip(worst, norms, strict=True)]
    covered = (
        bound.value,
        bound.value_change,
        bound.query.max(),
        bound.query_change.max(),
        bound.key,
        bound.key_change,
    )
    for truth, value in zip(worst, covered, strict=True):
        assert at_most(truth, float(value) * (1 + 1e-9) + 1e-12)
        if (
            eps == 1e-4 and truth > 1e-6
        ):  # none is far off; symmetric cases have zero third moments, which the bound does not use
            assert at_most(float(value), 15 * truth)


@pytest.mark.parametrize("name, d_out", KINDS)
@pytest.mark.parametrize("eps", [0.01, 0.4])
def test_each_term_of_the_layer_is_bounded(name, d_out, eps):
    f, x = layer(name, d_out=d_out), 0.7 * normal(4, N, D)
    form = LayerForm(f)

    def layer_terms(x):
        """The three terms of all heads together, each (n·d_out, n·d)."""
        parts = [three_terms(f, x, h) for h in range(f.heads)]
        value = [
            torch.kron(p, form.wv[h // form.groups] if f.wo is None else form.wo[h] @ form.wv[h // form.groups])
            for h, (p, _, _) in enumerate(parts)
        ]
        query = [torch.block_diag(*m) for _, m, _ in parts]
        key = [m for _, _, m in parts]
        # Without an output projection heads are concatenated: stacking rows has the same norm.
        return [torch.cat(t) if f.wo is None else sum(t) for t in (value, query, key)]

    terms, at_x = certify_ball(f, x, eps).terms, layer_terms(x)
    for e in perturbations(12, eps, 10):
        for term, at_centre, moved in zip(("value", "query", "key"), at_x, layer_terms(x + e), strict=True):
            assert at_most(float(torch.linalg.matrix_norm(moved, 2)), terms[term])
            assert at_most(float(torch.linalg.matrix_norm(moved - at_centre, 2)), terms[f"{term} change"])


def test_interval_ends_are_attained_at_extreme_scores():
    s, delta = normal(1, 3, 5), normal(2, 3, 5).abs()
    s[0, 3] = -torch.inf
    p = softmax_interval(Interval(s - delta, s, s + delta))
    for j in range(5):
        mine = torch.nn.functional.one_hot(torch.tensor(j), 5).bool()
        highest = torch.softmax(torch.where(mine, s + delta, s - delta), -1)[:, j]
        lowest = torch.softmax(torch.where(mine, s - delta, s + delta), -1)[:, j]
        assert torch.allclose(p.high[:, j], highest, rtol=1e-12, atol=0)
        assert torch.allclose(p.low[:, j], lowest, rtol=1e-12, atol=0)


@pytest.mark.parametrize("width", [1e-14, 1.0, 50.0, 1000.0])
def test_intervals_contain_all_probabilities_for_extreme_scores(width):
    s = 300 * normal(1, 50, 7)
    p = softmax_interval(Interval(s - width, s, s + width))
    assert bool((p.low <= p.centre).all() and (p.centre <= p.high).all() and (p.high <= 1 + 1e-12).all())
    for seed in range(20):
        other = torch.softmax(
            s + width * (2 * torch.rand(50, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1),
            -1,
        )
        assert at_most(other, p.high) and at_most(p.low, other)
        assert at_most((other - p.centre).abs(), p.change + 1e-300)


def test_rows_with_no_visible_key_and_with_one():
    s = torch.tensor([[-torch.inf, -torch.inf], [-torch.inf, 3.0]], dtype=torch.float64)
    p = softmax_interval(Interval(s - 1, s, s + 1))
    assert p.high.tolist() == p.centre.tolist() == [[0, 0], [0, 1]]
    assert float(p.low[1, 1]) == pytest.approx(1)


def test_derivatives_of_the_soft_cap():
    s, change = 3 * normal(1, 40), normal(2, 40).abs()
    scores, slopes = softcap_interval(s, change, 1.3)
    for t in torch.linspace(-1, 1, 21, dtype=torch.float64):
        at = s + t * change
        slope = 1 - torch.tanh(at / 1.3) ** 2
        assert at_most(slopes.low - 1e-15, slope) and at_most(slope, slopes.high + 1e-15)
        assert at_most(scores.low, 1.3 * torch.tanh(at / 1.3))


def test_concentration_is_the_largest_in_the_intervals():
    """Against a fine grid over p₁ and p₂ themselves, for rows of three."""
    s, delta = 2 * normal(3, 200, 3), normal(4, 200, 3).abs()
    p = softmax_interval(Interval(s - delta, s, s + delta))
    bound = largest_concentration(p)
    grid = torch.linspace(0, 1, 101, dtype=torch.float64)
    rows = torch.stack(torch.meshgrid(grid, grid, indexing="ij"), -1).flatten(0, 1)
    rows = torch.cat([rows, 1 - rows.sum(-1, keepdim=True)], -1)
    rows = rows[rows[:, 2] >= 0]
    first, second = rows.topk(2, -1).values.unbind(-1)
    g = first * (1 - first + second)
    for i in range(200):
        inside = ((rows >= p.low[i]) & (rows <= p.high[i])).all(-1)
        assert not inside.any() or at_most(float(g[inside].max()), float(bound[i]))
    assert torch.allclose(
        largest_concentration(Interval(p.centre, p.centre, p.centre)).max(), torch.tensor(g1(p.centre)).double()
    )


@pytest.mark.parametrize(
    "make",
    [
        lambda: normal(1, 7, 9).abs(),
        lambda: normal(1, 30, 30).abs().tril(),
        lambda: torch.zeros(3, 4).double(),
        lambda: torch.block_diag(normal(1, 3, 3).abs(), normal(2, 4, 4).abs()),
        lambda: 1e-160 * normal(3, 4, 4).abs(),
        lambda: torch.eye(5).double(),
    ],
)
def test_norms_of_nonnegative_matrices(make):
    m = make()
    truth, found = float(torch.linalg.matrix_norm(m, 2)), norm_of_nonnegative(m)
    assert at_most(truth, found) and at_most(found, truth, tol=1e-9)


@pytest.mark.parametrize("name, d_out", [*KINDS, ("two heads", 40)])
def test_combined_norm_of_heads(name, d_out):
    """Σ_h U_h F_h Z_hᵀ for random F_h: never above `combined_norm`, which is never above the sum."""
    form = LayerForm(layer(name, d_out=d_out, d=30))
    overlap, n = Overlap(form), 3
    u, s, z = overlap.value_svd
    for h in range(form.heads):
        product = form.wv[h // form.groups]
        product = product if form.wo is None else form.wo[h] @ product
        here = (
            product
            if form.wo is not None
            else torch.nn.functional.pad(product, (0, 0, h * len(product), (form.heads - 1 - h) * len(product)))
        )
        assert torch.allclose((u[h] * s[h]) @ z[h].mT, here, atol=1e-10)
    for seed in range(20):
        size = normal(seed, form.heads).exp()
        p = torch.stack([m / torch.linalg.matrix_norm(m, 2) for m in normal(seed + 100, form.heads, n, n)])
        p = p * size[:, None, None]
        total = sum(torch.kron(p[h], (u[h] * s[h]) @ z[h].mT) for h in range(form.heads))
        assert at_most(float(torch.linalg.matrix_norm(total, 2)), overlap.combined_norm("value", size), tol=1e-10)
        assert at_most(overlap.combined_norm("value", size), float((size * form.value_norm).sum()))
        for term in ("query", "key"):
            out, rows = overlap.out.contiguous(), overlap.rows[term].contiguous()
            f = normal(seed + 200, form.heads, n * out.shape[2], n * rows.shape[2])
            f = size[:, None, None] * f / torch.linalg.matrix_norm(f, 2)[:, None, None]
            eye = torch.eye(n, dtype=torch.float64)
            total = sum(torch.kron(eye, out[h]) @ f[h] @ torch.kron(eye, rows[h]).mT for h in range(form.heads))
            assert at_most(float(torch.linalg.matrix_norm(total, 2)), overlap.combined_norm(term, size), tol=1e-10)
            assert at_most(overlap.combined_norm(term, size), float(size.sum()))


@pytest.mark.parametrize("name, d_out", KINDS)
def test_grows_with_eps_and_starts_at_the_local_bound(name, d_out):
    f, x = layer(name, d_out=d_out), 0.5 * normal(7, N, D)
    local = this_project.local(f, x).value
    growing = (0.0, 1e-12, 1e-8, 1e-4, 1e-3, 0.01, 0.3, 5.0, 1e4)
    certificates = [certify_ball(f, x, eps, at_center=local) for eps in growing]
    assert at_most(certificates[0].value, local, tol=1e-9)
    assert at_most(certificates[1].parts["interval"], local, tol=1e-5)
    for part in certificates[0].parts:
        values = [c.parts[part] for c in certificates if c.parts.get(part) is not None]
        assert len(values) < 2 or at_most(*values, tol=1e-9), part


@pytest.mark.parametrize("name", ["one head", "causal", "grouped", "two heads", "scale"])
def test_never_above_the_other_bounds(name):
    f, x = layer(name, biases=False), 0.5 * normal(7, N, D)
    for eps in (0.01, 1.0, 30.0):
        certificate = certify_ball(f, x, eps)
        radius = float(x.norm(dim=-1).max()) + eps
        for other in (this_project.upper, this_project.n_free_upper, castin2024.multi_head_upper):
            value = other(f, N, radius).value
            assert value is None or at_most(certificate.value, value, tol=1e-9), other
        if name == "one head":
            # Over the ball Yudin's bound is at least what it is at any of its points.
            for e in perturbations(2, eps, 10):
                assert at_most(yudin2025.local(f, x + e).value, certificate.parts["yudin"], tol=1e-9)
            at_x = certify_ball(f, x, 0.0).parts["yudin"]
            assert at_x == pytest.approx(yudin2025.local(f, x).value, rel=1e-6)


def test_bounds_that_do_not_apply_have_a_reason():
    f, x = layer("rotary"), normal(1, N, D)
    certificate = certify_ball(f, x, 0.1)
    assert certificate.parts["yudin"] is None and "bias" in certificate.reasons["yudin"]
    assert certificate.parts["centre"] is None and "at_center" in certificate.reasons["centre"]
    assert certificate.bound.side == "upper" and "ε" in certificate.bound.holds
    assert "window" in certify_ball(layer("window"), x, 0.1).reasons["this_project.n_free_upper"]


@pytest.mark.parametrize("name", ["two heads", "causal", "rotary", "bias function", "causal window", "softcap"])
def test_padded_tokens_neither_move_nor_count(name):
    f, x = layer(name), 0.5 * normal(3, 6, D)
    padding = torch.tensor([False, True, True, False, True, True])
    for eps in (0.0, 0.05, 0.5):
        certificate = certify_ball(f, x, eps, padding, at_center=float(sigma(f, x, padding)))
        assert at_most(ascended(f, x, eps, padding, steps=6), certificate.value, tol=1e-9)
        far = torch.where(padding.unsqueeze(-1), x, 1e3 * x)
        assert certify_ball(f, far, eps, padding).value == pytest.approx(certify_ball(f, x, eps, padding).value)


def test_few_tokens_and_equal_ones():
    f = layer("two heads")
    one = normal(1, 1, D)
    for x in (one, one.expand(3, D), torch.zeros(3, D, dtype=torch.float64)):
        for eps in (0.0, 0.2):
            value = certify_ball(f, x, eps).value
            assert at_most(max(float(sigma(f, x + e)) for e in perturbations(1, eps, 20, n=len(x))), value)
    # A single token attends only to itself: f is linear, and the certificate is its norm at every ε.
    linear = layer("one head")
    assert certify_ball(linear, one, 3.0).value == pytest.approx(float(sigma(linear, one)), rel=1e-6)


def test_rounding_errors_are_included():
    """Values that nearly agree: v − o is mostly rounding, and scores are large."""
    f = layer("two heads")
    x = 1e4 * torch.ones(N, D, dtype=torch.float64) + 1e-6 * normal(1, N, D)
    parts = certify_ball(f, x, 0.0).parts
    assert at_most(float(sigma(f, x)), parts["interval"])
    assert at_most(float(sigma(f, x)), parts["form"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", LAYERS)
def test_low_precision_layers_are_evaluated_in_float64(name, dtype):
    """Products are in float64 whatever the dtypes of the layer and of the tokens."""
    f, x = layer(name).to(dtype=dtype), (0.5 * normal(1, N, D)).to(dtype)
    for bound in (lambda f, x: certify_ball(f, x, 0.01).value, lambda f, x: this_project.local(f, x).value):
        value = bound(f.converted(dtype=torch.float64), x.double())
        assert bound(f, x) == pytest.approx(value, rel=1e-12)
        assert bound(f, x.double()) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("name, d_out", KINDS)
def test_at_zero_the_interval_bound_is_the_local_one(name, d_out):
    f, x = layer(name, d_out=d_out), 0.5 * normal(7, 6 if name != "bias table" else N, D)
    for padding in (None, torch.arange(len(x)) != 1):
        interval = certify_ball(f, x, 0.0, padding).parts["interval"]
        assert this_project.local(f, x, padding).value == pytest.approx(interval, rel=1e-5)


@pytest.mark.parametrize("name", ["two heads", "grouped", "rotary"])
def test_number_of_threads_does_not_matter(name):
    f, x = layer(name), 0.5 * normal(7, N, D)
    threads = torch.get_num_threads()
    try:
        found = []
        for count in (1, 3):
            torch.set_num_threads(count)
            found.append((certify_ball(f, x, 0.1).parts, this_project.local(f, x).value))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    assert same_record(found[0], found[1], tol=1e-12)


def test_vacuous_eps():
    f, x = layer("two heads"), 0.5 * normal(7, N, D)
    eps = vacuous_eps(f, x, rtol=1e-2)

    def is_useful(eps):
        parts = certify_ball(f, x, eps).parts
        return parts["interval"] < min(parts[name] for name in parts if name.startswith("this_project."))

    assert eps > 0 and is_useful(eps) and not is_useful(1.02 * eps)


def test_vacuous_eps_of_zero_and_infinity():
    eye, zero = torch.eye(2, dtype=torch.float64), torch.zeros(2, 2, dtype=torch.float64)
    x = normal(1, 3, 2)
    # exact: the search begins at zero and ends there
    assert vacuous_eps(SelfAttention(eye, eye, zero), x) == 0.0  # no bound is below zero
    assert vacuous_eps(SelfAttention(zero, eye, eye, causal=True), x) == math.inf  # constant scores
    # exact: the search begins at zero and ends there
    assert (
        vacuous_eps(SelfAttention(zero, eye, eye), x) == 0.0
    )  # the mean, of norm ‖V‖, as the bounds of the radius give


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda f, x: certify_ball(f, x, -1.0), "0 ≤ ε"),
        (lambda f, x: certify_ball(f, x, math.nan), "0 ≤ ε"),
        (lambda f, x: certify_ball(f, x[None], 0.1), r"\(n, d\)"),
        (lambda f, x: certify_ball(f, x, 0.1, at_center=math.inf), "at_center"),
        (lambda f, x: certify_ball(f, x, 0.1, torch.zeros(N, dtype=torch.bool)), "real token"),
        (lambda f, x: vacuous_eps(f, x, rtol=2.0), "rtol"),
    ],
)
def test_invalid_arguments(call, words):
    with pytest.raises(InputError, match=words):
        call(layer("one head"), normal(1, N, D))
