"""The quadratic form of a ball against dense Jacobians: it dominates every bilinear form u·J(X + E)z of the ball."""

import math

import pytest
import torch

from howsmooth import InputError, SelfAttention, load
from howsmooth.attack import Near, worst_case
from howsmooth.attention import reference
from howsmooth.bounds import quadratic_form as module
from howsmooth.bounds.ball import certify_ball
from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.head_on_ball import LayerAtTokens
from howsmooth.bounds.overlap import CombinedHeads
from howsmooth.bounds.quadratic_form import LayerQuantities, QuadraticForm, TokenMoves, leading_eigenvectors, phi
from howsmooth.spectral import Solver
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import at_most, less

N, D = 4, 6
TEXT = "The harbour was quiet, and the keeper counted the ships."
KINDS = [(name, d_out) for name in LAYERS if name != "softcap" for d_out in (5, None)]


def quadratic_form(f, x, eps, padding=None, shared=False, moving=None, rounds=2):
    quantities = LayerQuantities(CombinedHeads(LayerAtTokens(LayerForm(f), x, padding)))
    moving = torch.ones(quantities.n, dtype=torch.bool) if moving is None else moving
    form = QuadraticForm(quantities, TokenMoves(eps, moving, shared))
    form.improve(rounds)
    return form


def dense(form):
    return torch.stack([form.apply(e) for e in torch.eye(form.size, dtype=torch.float64)])


def top(s):
    return float(torch.linalg.eigvalsh(s)[-1])


def jacobian(f, x, moving=None):
    """D_x f (n·d_out, n·d), with zero columns for tokens that stay."""
    j = reference.jacobian(f, x)
    return j if moving is None else j * moving.double().repeat_interleave(x.shape[1])


def excess(s, j):
    """How far 2 u·Jz exceeds (u, z)·S(u, z) at most: minus the least eigenvalue of S − [[0, J], [Jᵀ, 0]]."""
    rows, cols = j.shape
    both = torch.cat([torch.cat([j.new_zeros(rows, rows), j], 1), torch.cat([j.mT, j.new_zeros(cols, cols)], 1)])
    return -torch.linalg.eigvalsh(s - both)[0]


def projected(e, eps, shared):
    if shared:
        return e * (eps / e.norm())
    return e * (eps / e.norm(dim=-1, keepdim=True).clamp(min=1e-300))


def worst_excess(f, x, s, eps, shared=False, moving=None, steps=8, draws=4):
    """The largest excess over random E and those that gradient ascent finds."""
    worst = torch.tensor(-math.inf).double()
    mask = 1.0 if moving is None else moving.double().unsqueeze(-1)
    for seed in range(draws):
        e = projected(mask * normal(100 + seed, *x.shape), eps, shared)
        for _ in range(steps):
            e = e.detach().requires_grad_()
            value = excess(s, jacobian(f, x + e, moving))
            worst = torch.maximum(worst, value.detach())
            (gradient,) = torch.autograd.grad(value, e)
            e = projected(mask * gradient, eps, shared)
    return float(worst)


@pytest.mark.parametrize("name, d_out", KINDS)
@pytest.mark.parametrize("eps", [1e-3, 0.03, 0.3])
def test_it_dominates_every_derivative_in_the_ball(name, d_out, eps):
    f, x = layer(name, d_out=d_out), 0.7 * normal(4, N, D)
    s = dense(quadratic_form(f, x, eps))
    assert torch.allclose(s, s.mT, rtol=1e-12, atol=1e-12 * float(s.abs().max()))
    assert at_most(worst_excess(f, x, s, eps), 1e-12 * float(s.abs().max()))


@pytest.mark.parametrize("name", ["two heads", "grouped", "rotary", "causal window"])
def test_it_dominates_with_one_budget_for_the_text(name):
    f, x = layer(name), 0.7 * normal(4, N, D)
    for eps in (0.01, 0.3):
        shared, each = (dense(quadratic_form(f, x, eps, shared=shared)) for shared in (True, False))
        assert at_most(worst_excess(f, x, shared, eps, shared=True), 1e-12 * float(shared.abs().max()))
        # The set is smaller, and so is the bound.
        assert at_most(top(shared), top(each), tol=1e-9)


@pytest.mark.parametrize("name", ["two heads", "grouped", "rotary"])
def test_it_dominates_where_only_some_tokens_move(name):
    f, x = layer(name), 0.7 * normal(4, N, D)
    moving = torch.tensor([False, True, False, True])
    for shared in (False, True):
        s = dense(quadratic_form(f, x, 0.1, shared=shared, moving=moving))
        assert at_most(worst_excess(f, x, s, 0.1, shared, moving), 1e-12 * float(s.abs().max()))
        assert at_most(top(s), float(torch.linalg.eigvalsh(dense(quadratic_form(f, x, 0.1)))[-1]))


@pytest.mark.parametrize("name", ["two heads", "causal", "rotary"])
@pytest.mark.parametrize("size", [3.0, 8.0])
def test_it_dominates_where_rows_are_saturated(name, size):
    f, x = layer(name), size * normal(4, N, D)
    p = LayerAtTokens(LayerForm(f), x).probabilities()
    assert float(p.amax(-1).max()) > 0.999
    for eps in (0.01, 0.1):
        s = dense(quadratic_form(f, x, eps))
        assert at_most(worst_excess(f, x, s, eps), 1e-12 * float(s.abs().max()))


def test_weights_of_any_kind_give_a_bound():
    """Whatever the averages that the weights suit, the form dominates: here squares without any relation to it."""
    f, x, eps = layer("two heads"), 0.7 * normal(4, N, D), 0.05
    form = quadratic_form(f, x, eps, rounds=0)
    squares = form.squares(torch.ones(form.size, dtype=torch.float64))
    for seed in range(5):
        form.weigh({name: (3 * normal(seed, *t.shape)).exp() for name, t in squares.items()})
        s = dense(form)
        assert at_most(worst_excess(f, x, s, eps, steps=4), 1e-12 * float(s.abs().max()))


@pytest.mark.parametrize("name", ["two heads", "rotary", "grouped"])
def test_at_zero_it_is_the_jacobian(name):
    f, x = layer(name), 0.7 * normal(4, N, D)
    s, j = dense(quadratic_form(f, x, 0.0)), reference.jacobian(f, x)
    assert top(s) == pytest.approx(float(torch.linalg.matrix_norm(j, 2)), rel=1e-6)


@pytest.mark.parametrize("name", ["two heads", "causal", "rotary", "bias function"])
def test_padded_tokens_neither_move_nor_count(name):
    f, x = layer(name), 0.5 * normal(3, 6, D)
    padding = torch.tensor([False, True, True, False, True, True])
    s = dense(quadratic_form(f, x, 0.05, padding))
    for seed in range(20):
        e = torch.zeros_like(x)
        e[padding] = projected(normal(seed, 4, D), 0.05, shared=False)
        j = reference.jacobian(f, x + e, padding)
        rows, cols = (padding.repeat_interleave(size // len(x)) for size in j.shape)
        assert at_most(float(excess(s, j[rows][:, cols])), 1e-12 * float(s.abs().max()))


def test_the_certified_value_is_the_largest_eigenvalue():
    f, x = layer("two heads"), 0.7 * normal(4, N, D)
    form = quadratic_form(f, x, 0.05)
    exact, bound = top(dense(form)), form.bound(Solver(tol=1e-4))
    assert at_most(exact, bound) and at_most(bound, exact * (1 + 2e-4))


def test_rounds_improve_the_weights():
    f, x = layer("grouped"), 0.7 * normal(4, 8, D)
    first, last = (top(dense(quadratic_form(f, x, 0.1, rounds=r))) for r in (0, 16))
    assert at_most(last, 0.95 * first)


def test_leading_eigenvectors_against_dense_ones():
    m = normal(1, 30, 30)
    m = m + m.mT
    values, vectors, residual = leading_eigenvectors(lambda y: m @ y, normal(2, 30), steps=30, count=3)
    assert torch.allclose(values, torch.linalg.eigvalsh(m).flip(0)[:3], rtol=1e-10)
    assert torch.allclose(vectors @ m, values.unsqueeze(-1) * vectors, atol=1e-8) and residual < 1e-8


def test_phi_is_an_upper_bound():
    from mpmath import mp

    mp.dps = 60
    x = torch.cat([torch.zeros(1), torch.logspace(-12, 2, 400)]).double()
    for value, at in zip(phi(x).tolist(), x.tolist(), strict=True):
        exact = (mp.exp(at) - 1 - at) / mp.mpf(at) ** 2 if at > 0 else mp.mpf(1) / 2
        # exact: 60 digits, and the claim is about every one of them
        assert exact <= value <= exact * (1 + 1e-7)


def test_arguments_of_the_certificate():
    f, x = layer("two heads"), 0.7 * normal(4, N, D)
    each, text = (certify_ball(f, x, 0.05, per=per) for per in ("token", "text"))
    assert less(text.parts["form"], each.parts["form"]) and "‖X' − X‖" in text.bound.holds
    some = certify_ball(f, x, 0.05, tokens=[1, 3])
    mask = certify_ball(f, x, 0.05, tokens=torch.tensor([False, True, False, True]))
    assert less(some.value, each.value) and mask.parts == some.parts  # exact: one computation
    none = certify_ball(f, x, 0.05, effort=0)
    assert none.parts["form"] is None and "effort" in none.reasons["form"]
    capped = certify_ball(layer("softcap"), x, 0.05)
    assert capped.parts["form"] is None and "soft cap of 2" in capped.reasons["form"]


@pytest.mark.parametrize(
    "options, words",
    [
        (dict(per="head"), 'per as "token" or "text", got \'head\''),
        (dict(effort=-1), "effort as a whole number of rounds from 0, got -1"),
        (dict(effort=True), "effort as a whole number"),
        (dict(tokens=[4]), "indices from 0 to 3"),
        (dict(tokens=[]), "tokens as indices or as a mask"),
        (dict(tokens=torch.zeros(4, dtype=torch.bool)), "at least one real token in tokens"),
        (dict(tokens=torch.ones(3, dtype=torch.bool)), r"a mask of shape \(4,\)"),
    ],
)
def test_invalid_arguments_of_the_certificate(options, words):
    with pytest.raises(InputError, match=words):
        certify_ball(layer("two heads"), normal(1, N, D), 0.1, **options)


def test_too_many_tokens_are_refused(monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 2 * 3**2)
    refused = certify_ball(layer("two heads"), normal(1, N, D), 0.1)
    assert refused.parts["form"] is None
    assert "at most 3 tokens for 2 heads, got 4" in refused.reasons["form"]


def test_products_that_overflow_are_refused():
    eye = torch.eye(2, dtype=torch.float64)
    f = SelfAttention(1e-90 * eye, 1e-90 * eye, 1e100 * eye, 1e100 * eye)
    refused = certify_ball(f, 1e80 * normal(1, 3, 2), 1e70)
    assert refused.parts["form"] is None or refused.parts["form"] > 0
    assert math.isfinite(refused.bound.log_value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two heads", "grouped", "rotary", "causal window"])
@pytest.mark.parametrize("eps", [0.03, 0.3])
@pytest.mark.parametrize("shared", [False, True])
def test_ten_thousand_random_points_and_optimised_ones(name, eps, shared):
    f, x = layer(name), 0.7 * normal(4, N, D)
    s = dense(quadratic_form(f, x, eps, shared=shared, rounds=8))
    worst = worst_excess(f, x, s, eps, shared, steps=40, draws=10)
    for seed in range(10):
        e = normal(seed, 1000, N, D)
        size = e.flatten(1).norm(dim=-1)[:, None, None] if shared else e.norm(dim=-1, keepdim=True)
        e = e * (eps / size)
        e[::4] *= torch.rand(len(e[::4]), N, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        j = torch.func.vmap(torch.func.jacrev(lambda t: f(t).flatten()))(x + e).flatten(2)
        rows, cols = j.shape[1:]
        both = torch.zeros(len(j), rows + cols, rows + cols, dtype=torch.float64)
        both[:, :rows, rows:], both[:, rows:, :rows] = j, j.mT
        worst = max(worst, -float(torch.linalg.eigvalsh(s - both)[:, 0].min()))
    assert at_most(worst, 1e-12 * float(s.abs().max()))


@pytest.mark.slow
@pytest.mark.parametrize("at, ratios", [(0, (1.10, 2.0)), (1, (1.10, 2.5)), (3, (1.10, 2.2)), (5, (1.06, 1.8))])
def test_the_gap_to_ascent_on_a_trained_model(at, ratios):
    """The supremum over the ball is between what ascent finds and the certificate: close to each other for small ε."""
    minilm = load("minilm", dtype=torch.float64)
    f = minilm.attention(at).converted(dtype=torch.float64)
    x = minilm.inputs(TEXT, layer=at).double()
    for eps, ratio in zip((0.01, 0.1), ratios, strict=True):
        found = worst_case(f, len(x), Near(x, eps), restarts=1, steps=10)
        certificate = certify_ball(f, x, eps)
        assert certificate.method == "form"
        assert at_most(found.value, certificate.value) and at_most(certificate.value, ratio * found.value)
