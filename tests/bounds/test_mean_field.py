"""Bounds on measures: the counterexample to the masked statement, and values attained by ascent below the bounds."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from howsmooth import SelfAttention, local_lipschitz
from howsmooth.bounds import castin2024, mean_field, this_project
from howsmooth.bounds.alternating import alternating_matrix
from howsmooth.bounds.bound import Refused
from howsmooth.errors import InputError
from howsmooth.lipschitz import plateau
from howsmooth.lipschitz.mean_field import mean_field_jacobian
from howsmooth.spectral import attained_p_norm
from tests.tolerances import assert_close, at_most, less

RADIUS = 0.9
ONE = torch.ones(1, 1, dtype=torch.float64)


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def scalar(a: float, causal: bool = False) -> SelfAttention:
    """One head with d = 1, A = a and V = 1: on [−1, 1], ‖A‖R² is |a|."""
    return SelfAttention(a * ONE, ONE, ONE, scale=1.0, causal=causal)


def heads(bias: bool = True) -> SelfAttention:
    return SelfAttention(
        0.7 * normal(1, 4, 3),
        0.7 * normal(2, 4, 3),
        normal(3, 4, 3),
        normal(4, 3, 4),
        heads=2,
        bq=0.3 * normal(5, 4) if bias else None,
    )


# The published statement for the masked case, and where it is false.


@pytest.mark.parametrize("n, norm", [(2, 1.14), (16, 1.47), (256, 1.69), (1024, 1.75)])
def test_the_running_mean_is_above_the_statement_for_the_masked_case(n, norm):
    f = scalar(0.0, causal=True)
    found = local_lipschitz(f, torch.zeros(n, 1, dtype=torch.float64), tol=1e-4)
    assert found.value == pytest.approx(norm, abs=0.005)
    assert found.lower > 1 and mean_field.unmasked(scalar(0.0), 2, 1.0).value == pytest.approx(1)
    assert found.upper < 2 and mean_field.masked(f, 2, 1.0).value == pytest.approx(2)
    with pytest.raises(Refused, match="got 1, but measures approach 2 in d_2"):
        mean_field.stated_masked(f, 2, 1.0)


@pytest.mark.parametrize("a", [0.0, -1.3, 2.0])
def test_equal_tokens_are_the_running_mean_whatever_the_scores(a):
    x = torch.full((16, 1), 0.8, dtype=torch.float64)
    running_mean = torch.ones(16, 16, dtype=torch.float64).tril() / torch.arange(1, 17).unsqueeze(1)
    assert_close(scalar(a, causal=True).jacobian(x).dense(), running_mean)


def test_no_constant_exists_for_p_1():
    """The L¹ norm of the running mean is the harmonic sum: its largest column."""
    for n in (4, 64, 512):
        J = scalar(0.0, causal=True).jacobian(torch.zeros(n, 1, dtype=torch.float64)).dense()
        assert float(torch.linalg.matrix_norm(J, 1)) == pytest.approx(sum(1 / i for i in range(1, n + 1)))
    with pytest.raises(Refused, match=r"expected p > 1, got p = 1; there is no constant"):
        mean_field.masked(scalar(1.0), 1, 1.0)
    with pytest.raises(Refused, match="there is no constant in d_1"):
        mean_field.stated_masked(scalar(3.0), 1, 1.0)


def test_where_the_statement_is_true_false_and_open():
    assert mean_field.stated_masked(scalar(0.0), math.inf, 1.0).value == pytest.approx(1.0)
    assert mean_field.stated_masked(scalar(-1.0), 2, 1.0).value == pytest.approx(4 * math.exp(2))
    with pytest.raises(Refused, match="a statement that is true"):
        mean_field.stated_masked(scalar(0.1), 2, 1.0)  # (1 + 0.3)e^0.2 = 1.59 < 2
    with pytest.raises(Refused, match="a statement that is proved"):
        mean_field.stated_masked(scalar(0.3), 2, 1.0)


@pytest.mark.parametrize("a, p", [(0.16, 2), (0.17, 2), (0.175, 2), (0.178, 2), (-0.175, 2), (0.98, 1.3), (0.39, 1.5)])
def test_the_statement_is_false_beyond_what_equal_tokens_show(a, p):
    """Equal tokens reach p/(p−1), which the statement exceeds here; tokens that alternate in log-time reach more."""
    stated = (1 + 3 * abs(a)) * math.exp(2 * abs(a))
    lower, upper = mean_field.masked_lower(scalar(-a), p, 1.0), mean_field.masked(scalar(-a), p, 1.0)
    assert less(mean_field.hardy_constant(p), stated)
    assert less(stated, lower.value, upper.value) and lower.side == "lower"
    with pytest.raises(Refused, match="a statement that is true"):
        mean_field.stated_masked(scalar(-a), p, 1.0)


def test_the_statement_may_be_false_for_one_sign_of_the_scores_alone():
    """At ‖A‖R² = 0.178 alternating tokens exceed it if A = −0.178; nothing that is known does if A = 0.178."""
    with pytest.raises(Refused, match="a statement that is proved"):
        mean_field.stated_masked(scalar(0.178), 2, 1.0)
    plane = SelfAttention(torch.diag(torch.tensor([-0.178, 0.1])).double(), *2 * (torch.eye(2).double(),), scale=1.0)
    with pytest.raises(Refused, match="a statement that is true"):
        mean_field.stated_masked(plane, 2, 1.0)
    flat = SelfAttention(plane.wq, plane.wk, torch.diag(torch.tensor([0.5, 1.0])).double(), scale=1.0)  # ‖Vu‖ < ‖V‖
    with pytest.raises(Refused, match="a statement that is proved"):
        mean_field.stated_masked(flat, 2, 1.0)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("g", [-0.4, 0.0, 0.3, 1.5])
def test_the_alternating_pattern_is_the_limit_of_measures(p, g):
    """After many periods the rows of the Jacobian of a measure, summed over periods, are those of the matrix."""
    half_period, block, periods = 3.0, 6, 12
    n = 2 * block * periods
    sign = torch.where(torch.arange(n) // block % 2 == 0, 1.0, -1.0).double().unsqueeze(1)
    logs = torch.arange(n).double() * (half_period / block)
    J = mean_field_jacobian(scalar(-g, causal=True), sign, logs).dense()
    change = (logs * (1 / p - 0.5)).exp()  # D^½ ∂ D^{−½} → D^{1/p} ∂ D^{−1/p}, up to a factor
    J = change.unsqueeze(1) * J / change
    matrix = alternating_matrix(g, p, half_period, block)
    summed = J[-2 * block :].unflatten(1, (periods, 2 * block)).sum(1)
    assert_close(summed, matrix, tol=1e-9)
    assert at_most(attained_p_norm(matrix, p), mean_field.masked(scalar(-g), p, 1.0).value)


# The corrected constants.


@pytest.mark.parametrize(
    "p, value_constant, key_constant",
    [
        (2, 2.0, math.sqrt(6)),
        (math.inf, 1.0, 1.0),
        (1.2, 6.0, 12.0),  # 2p/(p−1)
        (20, 20 / 19, math.sqrt(20 / 18)),  # √(p/(p−2))
        (3, 1.5, (4 / 3) ** 0.25 * (9 / 5) ** 0.75),
    ],
)
def test_masked_constants(p, value_constant, key_constant):
    a = 0.8
    truth = a + (value_constant + key_constant * a) * math.exp(2 * a / p)
    assert mean_field.masked(scalar(-a), p, 1.0).value == pytest.approx(truth, rel=1e-12)
    if p > 2 and p < math.inf:
        bound = a + hardy_times(p, 1 + a * math.sqrt(p / (p - 2)) * (p - 1) / p) * math.exp(2 * a / p)
        assert at_most(truth, bound + 1e-12)
    if p < math.inf:
        assert at_most(truth, a + hardy_times(p, 1 + 2 * a) * math.exp(2 * a / p) + 1e-12)


def hardy_times(p: float, x: float) -> float:
    return p / (p - 1) * x


@pytest.mark.parametrize("a", [0.0, 0.5, 3.0])
def test_the_case_p_2_is_the_bound_free_of_n(a):
    for causal, bound in ((False, mean_field.unmasked), (True, mean_field.masked)):
        known = this_project.n_free_upper(scalar(-a, causal), 10, 1.0).log_value
        assert bound(scalar(-a, causal), 2, 1.0).log_value == pytest.approx(known, rel=1e-12)


def test_names_of_the_distances():
    f = scalar(1.0)
    assert (mean_field.unmasked(f, 2, 1.0).norm, mean_field.unmasked(f, math.inf, 1.0).norm) == ("W_2", "W_∞")
    assert mean_field.masked(f, 1.5, 1.0).norm == "d_1.5" and mean_field.masked(f, 2, 1.0).side == "upper"
    assert mean_field.unmasked(f, math.inf, 1.0).value == pytest.approx(3.0)


@functools.cache
def jacobian_at_random(seed: int, masked: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Log masses and J at ten atoms on the sphere; masked with two atoms at each time."""
    x = torch.nn.functional.normalize(normal(seed, 10, 3), dim=-1) * RADIUS
    logs, times = 2 * normal(seed + 50, 10), torch.arange(10).double().div(2).floor() if masked else None
    return logs, mean_field_jacobian(heads(), x, logs, times).dense()


@pytest.mark.parametrize(
    "p, masked", [(1.0, False), *((p, masked) for p in (1.5, 2.0, 3.0, math.inf) for masked in (False, True))]
)
def test_bounds_hold_at_random_measures(p, masked):
    bound = (mean_field.masked if masked else mean_field.unmasked)(heads(), p, RADIUS).value
    for seed in range(2):
        logs, J = jacobian_at_random(seed, masked)
        # D^½ ∂ D^{−½} → D^{1/p} ∂ D^{−1/p}
        change = (torch.log_softmax(logs, -1) * ((0.0 if p == math.inf else 1 / p) - 0.5)).exp().repeat_interleave(3)
        assert at_most(attained_p_norm(change.unsqueeze(1) * J / change, p, widths=(3, 3), steps=50), bound)


@pytest.mark.parametrize("p", [1.3, 2.0, 4.0])
def test_the_running_mean_approaches_the_constant_at_a_0(p):
    J = scalar(0.0, causal=True).jacobian(torch.zeros(400, 1, dtype=torch.float64)).dense()
    found, bound = attained_p_norm(J, p, starts=1), mean_field.masked(scalar(0.0), p, 1.0).value
    assert bound == pytest.approx(p / (p - 1)) and less(0.55 * bound, found, bound)


# Upper and lower bounds on the mean-field constant.


@pytest.mark.parametrize("a", [0.0, 0.01, 0.3, 0.7, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 50.0, 500.0])
def test_upper_and_lower_bounds_agree_up_to_a_factor(a):
    """−‖A‖ an eigenvalue: a + (1 + a)eᵃ against two Diracs of masses 1 : e^{2a} and 1 : 3e^{2a}."""
    f = scalar(-a)
    upper = mean_field.unmasked(f, 2, 1.0).log_value
    choices = (math.log((1 + a) / 2) + a, math.log(math.sqrt(3) / 4 * (1 + 1.5 * a)) + a)
    lower = this_project.two_dirac_lower(f, 2, 1.0).log_value
    assert lower == pytest.approx(max(choices), abs=1e-12)
    assert at_most(
        lower, plateau(a).log_value + 1e-9, upper + 1e-9
    )  # the maximum over all masses and positions is above both
    assert at_most(upper - lower, math.log(2.4))
    if a >= 50:
        assert upper - lower == pytest.approx(math.log(4 / (3 * math.sqrt(3)) * 2), abs=0.02)  # 1.54
        assert less(choices[0], choices[1])
    if a == 0.3:
        assert less(choices[1], choices[0])


# Lengths given by their logarithm.


@pytest.mark.parametrize("n", [1, 2, 50, 10**6, 2**50])
@pytest.mark.parametrize("radius", [0.0, 0.7, 5.0])
def test_bounds_at_log_n_agree_with_those_at_n(n, radius):
    assert mean_field.upper_at_log_n(heads(), math.log(n), radius).log_value == pytest.approx(
        this_project.upper_in_n_and_a(heads(), n, radius).log_value, rel=1e-9, abs=1e-9
    )
    one = heads(bias=False).head(0)
    assert mean_field.theorem1_at_log_n(one, math.log(n), radius).log_value == pytest.approx(
        castin2024.theorem1_upper(one, n, radius).log_value, rel=1e-9, abs=1e-9
    )


def test_refusals():
    for p in (0.5, math.nan, "2", True, -math.inf):
        with pytest.raises(InputError, match="1 ≤ p ≤ ∞"):
            mean_field.masked(scalar(1.0), p, 1.0)
    with pytest.raises(Refused, match=r"take mean_field.masked"):
        mean_field.unmasked(scalar(1.0, causal=True), 2, 1.0)
    with pytest.raises(InputError, match="finite log n ≥ 0"):
        mean_field.upper_at_log_n(scalar(1.0), -1.0, 1.0)
    capped = SelfAttention(ONE, ONE, ONE, softcap=3.0)
    with pytest.raises(Refused, match="soft cap"):
        mean_field.masked(capped, 2, 1.0)
