"""Invalid arguments of bounds, and sizes at the limits of float64."""

import math

import pytest
import torch

from howsmooth import InputError, SelfAttention, bounds
from howsmooth.attention import Normalisation
from howsmooth.bounds import (
    Refused,
    castin2024,
    certify_ball,
    every,
    kim2021,
    this_project,
    two_points,
    vacuous_eps,
    yudin2025,
)
from howsmooth.bounds.normalisation import global_norm, local_norm, radius, residual_block
from tests.attention.cases import normal
from tests.bounds.test_published import EYE, with_form

F, X = with_form(-EYE), normal(1, 3, 2)
SMALL_WEIGHTS = SelfAttention(1e-100 * EYE, 1e-100 * EYE, EYE)  # scores are moderate at tokens of norm 1e100
NONE_REAL = torch.zeros(3, dtype=torch.bool)
NORM = Normalisation(torch.ones(2))
NAN = torch.tensor([[1.0, math.nan]])


@pytest.mark.parametrize("size", [1e160, math.inf, math.nan, -1.0, "1", None, True, torch.ones(())])
def test_invalid_radii(size):
    for bound in bounds.BALL_BOUNDS:
        with pytest.raises(
            InputError,
            match="radius R up to 1e.100, got 1e.160; beyond" if size == 1e160 else "finite radius R ≥ 0, got .*; give",
        ):
            bound(F, 3, size)


@pytest.mark.parametrize("n", [0, -2, 2.5, 3.0, "3", None, True, 2**53 + 1])
def test_invalid_numbers_of_tokens(n):
    for bound in bounds.BALL_BOUNDS:
        with pytest.raises(InputError, match=r"whole n ≥ 1 up to 2⁵³, got .*; give"):
            bound(F, n, 1.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
@pytest.mark.parametrize("size", [1e-100, 1e60, 1e100])
def test_extreme_radii_have_finite_logarithms(causal, scale, size):
    f = with_form(-scale * EYE, causal=causal)
    for found in every(f, 7, size):
        if not isinstance(found, Refused):
            assert math.isfinite(found.log_value) or found.name == "kim2021.r_squared_lower"  # 0 near zero


def test_the_largest_number_of_tokens():
    for causal in (False, True):
        f = with_form(-EYE, causal=causal)
        for bound in (*bounds.BALL_BOUNDS[:7], kim2021.r_squared_lower):  # two_point_lower sums rows one by one
            try:
                assert math.isfinite(bound(f, 2**53, 2.0).log_value)
            except Refused as refusal:
                assert causal and "mask" in refusal.condition


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: certify_ball(F, X, "a"), "0 ≤ ε ≤ 1e.100, got 'a'; give"),
        (lambda: certify_ball(F, X, 1e101), "0 ≤ ε ≤ 1e.100, got 1e.101"),
        (lambda: certify_ball(SMALL_WEIGHTS, X / X.norm(dim=-1).max() * 1e100, 1e90), r"max \|x_i\| \+ ε up to 1e.100"),
        (lambda: certify_ball(F, X, 0.1, at_center="a"), "at_center as a finite upper bound .* got 'a'; leave it out"),
        (lambda: vacuous_eps(F, X, rtol="a"), "rtol between 0 and 1, got 'a'; "),
        (lambda: castin2024.large_radius(F, [1]), r"shape \(n, d\) .* d = 2.* got list; give"),
        (lambda: castin2024.large_radius(F, X[:0]), r"n ≥ 1 .* got shape \(0, 2\)"),
        (lambda: this_project.local(F, X[:, :1]), r"d = 2.* got shape \(3, 1\)"),
        (lambda: every(F, 4, 1.0, X), r"x with n = 4 tokens, got 3; .* n=len\(x\)"),
        (lambda: every(F, 3, 1.0, [1]), "got list"),
        (lambda: every(SelfAttention(1e200 * EYE, EYE, EYE), 3, 1.0), "weights of up to 1e.100, got 1e.200 in wq"),
        (lambda: two_points(F, None, 1.0), "whole n ≥ 1"),
        (lambda: radius(3), "a Normalisation, got int; make one"),
        (lambda: local_norm(3, X), "a Normalisation, got int"),
        (lambda: global_norm(None), "a Normalisation, got NoneType"),
        (lambda: local_norm(NORM, [1]), r"tokens \(…, 2\) as a tensor, got list; give"),
        (lambda: local_norm(NORM, NAN), "finite tokens, got NaN"),
        (lambda: local_norm(Normalisation(torch.ones(2), eps=0.0), NAN), "finite tokens, got NaN"),
        (lambda: local_norm(NORM, 1e200 * X), "squares fit into float64"),
        (lambda: residual_block(NORM, math.inf, X), "finite upper bound .* got inf; give"),
        (lambda: residual_block(NORM, -1.0, X), "from 0 on, got -1.0; give"),
        (lambda: residual_block(NORM, "a", X), "got 'a'; give"),
        (lambda: residual_block(NORM, 1.0, X[:0]), "at least one token"),
    ],
)
def test_invalid_arguments(call, words):
    with pytest.raises(InputError, match=words):
        call()


@pytest.mark.parametrize(
    "call",
    [
        lambda padding: this_project.local(F, X, padding),
        lambda padding: yudin2025.local(F, X, padding),
        lambda padding: certify_ball(F, X, 0.1, padding),
        lambda padding: vacuous_eps(F, X, padding),
        lambda padding: every(F, 3, 1.0, X, padding),
    ],
)
def test_invalid_padding(call):
    with pytest.raises(InputError, match="at least one real token, got padding that is False everywhere; "):
        call(NONE_REAL)
    for padding in ([True], ~NONE_REAL[:2], torch.ones(3)):
        with pytest.raises(InputError, match=r"dtype bool and shape \(3,\), got .*; give True where a token is real"):
            call(padding)


@pytest.mark.parametrize("query, key", [(1e60, 1.0), (1e60, 1e60)])
def test_certificates_whose_exponentials_overflow(query, key):
    # At these small tokens scores are accurate; over the ball their range overflows.
    found = certify_ball(SelfAttention(query * EYE, key * EYE, EYE), 1e-60 * X, 1e90)
    assert found.parts["this_project.n_free_upper"] == math.inf and math.isfinite(found.value)


def test_yudin_over_a_ball_too_large_for_a_float():
    found = certify_ball(SelfAttention(1e60 * EYE, 1e60 * EYE, 1e8 * EYE), 1e-60 * X, 1e90)
    assert found.parts["yudin"] == math.inf and found.method == "this_project.upper" and math.isfinite(found.value)
    with pytest.raises(InputError, match="sizes whose products leave float64"):
        certify_ball(SelfAttention(1e60 * EYE, 1e60 * EYE, 1e20 * EYE), 1e-60 * X, 1e90)
    with pytest.raises(InputError, match="scores with correct digits"):
        certify_ball(SelfAttention(1e60 * EYE, 1e60 * EYE, EYE), X, 1e90)


def test_refusals_have_a_remedy():
    with pytest.raises(Refused) as refusal:
        this_project.lower(with_form(EYE, window=2), 3, 1.0)
    error = refusal.value
    assert (error.bound, error.condition, error.got, error.remedy) == (
        "this_project.lower",
        "attention without a window",
        "a window of 2",
        "take this_project.upper",
    )
