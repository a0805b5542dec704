"""Closed-form configurations against the bounds and limits that hold for them."""

import math

import pytest
import torch

from howsmooth import InputError, SelfAttention, local_lipschitz
from howsmooth.attack import configurations
from howsmooth.attack.configurations import castin, far_token, three_point, two_point
from howsmooth.bounds.bound import Refused
from howsmooth.bounds.castin2024 import theorem1_lower
from howsmooth.models import AttentionFile
from tests import data
from tests.attention.cases import layer, normal
from tests.tolerances import assert_close, at_most, less

EYE = torch.eye(4, dtype=torch.float64)
ROTATION = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)


def form(A: torch.Tensor, causal: bool = False) -> SelfAttention:
    """One head with this A and V = I."""
    return SelfAttention(
        A, torch.eye(len(A), dtype=torch.float64), torch.eye(len(A), dtype=torch.float64), scale=1.0, causal=causal
    )


def value(f, configuration) -> float:
    return local_lipschitz(f, configuration.tokens, tol=1e-6).value


def scalar(a: float, **options) -> SelfAttention:
    return form(torch.tensor([[a]], dtype=torch.float64), **options)


def test_published_values():
    f = scalar(8.0)
    assert value(f, castin(f, 10, 1.5)) == pytest.approx(3.98, abs=0.005)
    wrong = torch.full((10, 1), -1.5, dtype=torch.float64)
    wrong[0] = 1.5
    assert local_lipschitz(f, wrong).value == pytest.approx(1.0, abs=0.005)
    f = scalar(1.0)
    assert value(f, castin(f, 16, 3.0)) == pytest.approx(3.98, abs=0.005)
    f, radius = scalar(-1.0), math.sqrt(math.log(399) / 2)
    assert value(f, castin(f, 400, radius)) == pytest.approx(40.1, abs=0.05)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_theorem_1_lower_holds_at_its_configuration(seed, causal):
    f = form(normal(seed, 3, 3), causal)  # of odd width, so that A has a real eigenvalue
    for n, radius in ((2, 1.0), (9, 0.7), (30, 2.5)):
        found = castin(f, n, radius)
        assert found.tokens.shape == (n, 3)
        assert at_most(found.tokens.norm(dim=-1).max(), radius)
        assert at_most(theorem1_lower(f, n, radius).value, value(f, found), tol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_complex_spectra_use_the_symmetric_part(causal):
    """A = −I plus a rotation: no real eigenvalue, and still γ = 1 in uᵀAu."""
    f = form(torch.tensor([[-1.0, -2.0], [2.0, -1.0]], dtype=torch.float64), causal)
    found = castin(f, 50, 1.2)
    assert "(A + Aᵀ)/2" in found.about
    p = 1 / (1 + 49 * math.exp(-2 * 1.2**2))
    assert at_most(1 if causal else math.sqrt(49) * p, value(f, found))


@pytest.mark.parametrize("seed", range(4))
def test_two_point_works_where_castin_is_refused(seed):
    """A is antisymmetric up to rounding: neither A nor its symmetric part has a non-zero real eigenvalue."""
    basis = torch.linalg.qr(normal(seed, 4, 4)).Q
    rotation = torch.block_diag(ROTATION, 3 * ROTATION)
    f = SelfAttention(rotation @ basis.T, basis.T, EYE, scale=1.0)
    with pytest.raises(Refused, match="two_point"):
        castin(f, 8, 2.0)
    assert less(4 * math.sqrt(8), value(f, two_point(f, 8, 2.0)))


def dense(f: SelfAttention, x: torch.Tensor) -> float:
    """Return ‖J‖₂ of the dense Jacobian."""
    J = torch.autograd.functional.jacobian(f, x).reshape(x.numel(), -1)
    return float(torch.linalg.matrix_norm(J, 2))


def biased_layer(seed: int) -> SelfAttention:
    """Two heads of width 4 with large query biases."""
    wq, wk, wv = (normal(10 * seed + i, 8, 4) for i in range(3))
    return SelfAttention(wq, wk, wv, bq=3 * normal(seed + 7, 8), wo=normal(seed + 8, 4, 8), heads=2, scale=1.0)


@pytest.mark.parametrize("seed", range(6))
def test_the_sign_with_the_larger_constant_of_the_layer_is_returned(seed):
    """The other heads see the same tokens, so for some layers the sign that the head's own bias prefers is smaller."""
    f, tol = biased_layer(seed), configurations.SIGN_TOLERANCE
    for n in (3, 12):
        found = castin(f, n, 1.0, head=0)
        larger, smaller = dense(f, found.tokens), dense(f, found.other.tokens)
        assert found.other.sign == -found.sign and less(smaller, larger)
        assert found.estimate.value == pytest.approx(larger, rel=tol)
        assert found.other.estimate.value == pytest.approx(smaller, rel=tol)
        for sign in (1, -1):
            fixed = castin(f, n, 1.0, head=0, sign=sign)
            assert fixed.sign == sign and fixed.estimate is None is fixed.other
            assert_close(fixed.tokens, found.tokens * sign * found.sign)
        assert castin(f, n, 1.0, head=0, sign=1).tokens[0] @ (f.bq[:4] @ f.wk[:4]) > 0


def test_both_signs_are_returned_by_some_layer():
    """The test above must not pass with a fixed sign."""
    assert {castin(biased_layer(seed), 12, 1.0, head=0).sign for seed in range(6)} == {1, -1}


@pytest.mark.parametrize("causal", [False, True])
def test_without_a_query_bias_both_signs_have_the_same_constant(causal):
    f = SelfAttention(normal(1, 4, 4), EYE, EYE, bv=normal(2, 4), bk=normal(3, 4), scale=1.0, causal=causal)
    found = castin(f, 7, 1.3)
    assert found.sign == 1
    assert dense(f, found.tokens) == pytest.approx(dense(f, found.other.tokens), rel=1e-12)


def test_a_head_of_a_layer():
    f = layer("two heads")
    for head in range(2):
        for sign in (1, -1):
            chosen, alone = castin(f, 6, 1.0, head=head, sign=sign), castin(f.head(head), 6, 1.0, sign=sign)
            assert torch.allclose(chosen.tokens, alone.tokens) and chosen.head == head


@data.needs(data.GPT2)
def test_the_constant_of_gpt2s_layer_depends_on_the_sign():
    """With one sign it hardly grows, with the other it does, and beyond some length the other is larger."""
    f = AttentionFile(data.DATA / data.GPT2).attention(0).to(torch.float64)
    short, long = castin(f, 2, 10.0, head=0), castin(f, 97, 10.0, head=0)
    assert (short.sign, long.sign) == (1, -1)
    assert short.estimate.value == pytest.approx(480.4, rel=2e-2)
    assert short.other.estimate.value == pytest.approx(61.3, rel=2e-2)
    assert long.estimate.value == pytest.approx(565.5, rel=2e-2)
    assert long.other.estimate.value == pytest.approx(533.2, rel=2e-2)


@pytest.mark.parametrize("name", ["one head", "two heads", "causal", "grouped", "one key head"])
def test_two_points_beat_random_tokens(name):
    f, n, radius = layer(name), 24, 0.5
    found = two_point(f, n, radius)
    assert found.tokens.norm(dim=-1).max() <= radius * (1 + 1e-12)
    random = normal(3, 16, n, f.d)
    random = radius * random / random.norm(dim=-1, keepdim=True)
    assert less(max(e.value for e in local_lipschitz(f, random)), value(f, found))


@pytest.mark.parametrize("name", ["one head", "two heads", "causal", "grouped", "one key head"])
def test_a_far_token_has_the_largest_score_and_the_norm_its_limit(name):
    f, n = layer(name, d=12, d_out=7), 20
    found = far_token(f, n, 1e3)
    groups = f.heads // f.kv_heads
    assert found.about == "largest score of 19 of the 19 other tokens in all heads"
    values = f.wv.unflatten(0, (f.kv_heads, -1)).repeat_interleave(groups, 0).flatten(0, 1)
    limit = torch.linalg.matrix_norm(f.wo @ values, 2)
    assert at_most(limit * math.sqrt(n - 1) * 0.999, value(f, found), limit * math.sqrt(n) * 1.01)
    assert torch.pdist(found.tokens).min() > 0.1  # all distinct
    assert found.tokens.norm(dim=-1).max() <= 1e3 * (1 + 1e-12)


@pytest.mark.parametrize("name", ["two heads", "causal", "grouped", "rotary", "rotary interleaved"])
def test_three_points_beat_random_tokens(name):
    f, n, radius = layer(name, d=16), 12, 5.0  # wider than a head, so that y − y' can be hidden from the keys
    found = three_point(f, n, radius)
    assert at_most(found.tokens.norm(dim=-1).max(), radius)
    random = normal(3, 16, n, f.d)
    random = radius * random / random.norm(dim=-1, keepdim=True)
    assert less(max(e.value for e in local_lipschitz(f, random)), value(f, found))


def test_one_token_is_a_configuration():
    f = layer("one head")
    for make in (castin, two_point, far_token):
        assert make(f, 1, 1.0).tokens.shape == (1, 6)


@pytest.mark.parametrize("make", [castin, two_point, far_token])
@pytest.mark.parametrize(
    "name, message",
    [("rotary", "rotary"), ("softcap", "soft cap"), ("window", "window"), ("bias function", "score_bias")],
)
def test_refused_layers(make, name, message):
    with pytest.raises(Refused, match=message):
        make(layer(name), 4, 1.0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: castin(layer("two heads"), 4, 1.0), "castin: expected one head, got 2"),
        (lambda: castin(layer("two heads"), 4, 1.0, head=2), "head from 0 to 1, got 2"),
        (lambda: castin(form(0 * EYE), 4, 1.0), "A = 0"),
        (lambda: castin(form(ROTATION), 4, 1.0), r"castin: .*\(A \+ Aᵀ\)/2 = 0; .*two_point"),
        (lambda: castin(layer("two heads"), 4, 1.0, head="a"), "head from 0 to 1, got 'a'"),
        (lambda: castin(form(EYE), 0, 1.0), "castin: expected n as a positive whole number, got 0"),
        (lambda: castin(form(EYE), "a", 1.0), "castin: expected n as a positive whole number, got 'a'"),
        (lambda: castin(form(EYE), 4, 1.0, sign=0), "castin: expected sign as 1, -1 or None, got 0; None"),
        (lambda: castin(form(EYE), 4, 1.0, sign=True), "expected sign as 1, -1 or None, got True"),
        (lambda: castin(EYE, 4, 1.0), "castin: expected a SelfAttention, got Tensor"),
        (lambda: far_token(form(EYE), 4, 1.0, seed="a"), "far_token: expected seed"),
        (lambda: two_point(form(EYE), 4, "a"), "two_point: expected a finite radius above 0, got 'a'"),
        (lambda: two_point(form(EYE), 3, 1e200), r"two_point: expected radius from 1e-100 to 1e\+100, got 1e\+200"),
        (lambda: two_point(form(EYE), 4, math.nan), "finite radius"),
    ],
)
def test_refused_arguments(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_the_package_exports_the_module():
    from howsmooth import attack

    assert attack.configurations is configurations
