"""The largest constant of n tokens at two points, against brute force, whole sequences and the theory of its limits."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz import mean_field_lipschitz, plateau, regime_curve
from howsmooth.lipschitz.regimes import SCORES, a_from_gamma, unit_layer
from howsmooth.lipschitz.three_points import three_point_plateau
from howsmooth.lipschitz.two_atoms import sequence_norm
from tests.tolerances import assert_close, at_most, less

ONE = torch.ones(1, 1, dtype=torch.float64)


def score(scores: str) -> torch.Tensor:
    return -ONE if scores == "negative" else ONE


def brute_force(a: float, scores: str, n: int, points: int) -> float:
    """Log of the best constant over a grid of points and all numbers of isolated tokens."""
    grid = torch.linspace(-math.sqrt(a), math.sqrt(a), points, dtype=torch.float64)
    y, z = (t.unsqueeze(-1) for t in torch.meshgrid(grid, grid, indexing="ij"))
    return max(float(sequence_norm(score(scores), ONE, y, z, math.log(n - k), math.log(k)).max()) for k in range(1, n))


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("gamma_r2", [0.05, 0.6, 2.0, 4.0])
def test_curve_is_not_below_brute_force_on_a_grid(scores, gamma_r2):
    lengths = [2, 3, 7, 30]
    for n, point in zip(lengths, regime_curve(gamma_r2, [math.log(n) for n in lengths], scores), strict=True):
        on_grid = brute_force(a_from_gamma(gamma_r2, scores), scores, n, 121)
        assert at_most(on_grid - 1e-9, point.log_value, on_grid + 0.05)


@pytest.mark.parametrize("scores", SCORES)
def test_values_are_attained_by_whole_sequences(scores):
    """The value is the norm of the dense Jacobian of the layer at the sequence."""
    f = SelfAttention(score(scores), ONE, ONE, scale=1.0)
    for n in (2, 5, 40):
        (point,) = regime_curve(2.0, [math.log(n)], scores)
        k = round(math.exp(point.log_isolated))
        x = torch.cat([torch.full((k, 1), point.y), torch.full((n - k, 1), point.z)]).double()
        assert at_most(float(x.abs().max()), math.sqrt(a_from_gamma(2.0, scores)), tol=1e-7)
        x = torch.cat(
            [torch.full((k, 1), point.y, dtype=torch.float64), torch.full((n - k, 1), point.z, dtype=torch.float64)]
        )
        truth = torch.linalg.matrix_norm(f.jacobian(x).dense(), 2)
        assert_close(torch.tensor(point.log_value, dtype=torch.float64).exp(), truth, tol=1e-11)


@pytest.mark.parametrize("gamma_r2", [4.0, 50.0, 1000.0, 1e5])
@pytest.mark.parametrize("scores", SCORES)
def test_the_plateau_at_large_radii(gamma_r2, scores):
    """(√3/4) e^g (1 + 3g/2) with masses 1 : 3e^{2g}, in the limit; the best mass is between that and 1 : e^{2g}."""
    top = plateau(gamma_r2, scores)
    limit = gamma_r2 + math.log(math.sqrt(3) / 4 * (1 + 1.5 * gamma_r2))
    assert at_most(limit - 1e-9, top.log_value, limit + 0.01)
    assert less(0.9, top.log_crossover - 2 * gamma_r2, math.log(3) + 0.01)
    assert top.y == pytest.approx(math.sqrt(top.a)) and top.z == pytest.approx(
        -top.y if scores == "negative" else top.y / 2, rel=1e-3
    )


@pytest.mark.parametrize("scores", SCORES)
def test_the_three_regimes(scores):
    g = 300.0
    top = plateau(g, scores)
    logs = [40.0, 60.0, 200.0, 400.0, top.log_crossover, 1e3, 2e3, 1e6]
    points = regime_curve(g, logs, scores)
    for point in points[:4]:  # ½√n·log n·(something between ½ and 1) while R allows it, one token isolated
        assert point.log_isolated == 0  # exact: log 1 is zero
        assert less(0.5 * point.log_n + math.log(point.log_n / 4) - 0.1, point.log_value)
        assert less(point.log_value, 0.5 * point.log_n + math.log(point.log_n / 2))
        assert point.log_at_radius == pytest.approx(0.5 * point.log_n, rel=1e-3)  # at R itself softmax has decided: √n
    for point in points[4:]:  # then nothing more, with ever more isolated tokens
        assert point.log_value == pytest.approx(top.log_value, abs=1e-9)
    assert points[-1].log_isolated == pytest.approx(1e6 - top.log_crossover, abs=1e-3)
    assert math.exp(points[-1].log_at_radius) == pytest.approx(1.0)  # one token among e^{10⁶} moves nobody


@pytest.mark.parametrize("scores", SCORES)
def test_values_do_not_decrease_in_multiples_of_a_length(scores):
    """A sequence with every token repeated has 2n tokens and at least the same constant."""
    lengths = [5, 10, 20, 40, 80]
    values = [point.log_value for point in regime_curve(3.0, [math.log(n) for n in lengths], scores)]
    assert at_most(*values)


def test_constant_is_one_at_radius_zero():
    found = [point.log_value for point in regime_curve(0.0, [math.log(2), 5.0, 1e3])]
    assert found == pytest.approx([0, 0, 0], abs=1e-12)
    assert plateau(0.0).log_crossover == 0.0 and plateau(0.0).log_isolated_mass == 0.0  # exact: log 1 is zero


def test_records():
    (point,) = regime_curve(2.0, [10.0])
    assert set(point.as_record()) == {"log_n", "log_value", "y", "z", "log_isolated", "apart", "log_at_radius"}
    assert plateau(2.0).as_record()["gamma_r2"] == 2.0  # exact: as given


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((2.0, [0.0]), "log n from log 2"),
        ((2.0, ["3"]), "log n from log 2"),
        ((-1.0, [3.0]), "expected γR² from 0"),
        ((math.nan, [3.0]), "expected γR² from 0"),
        ((2.0, [3.0], "both"), "negative, positive"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(InputError, match=message):
        regime_curve(*arguments)


def test_three_points_exceed_two_where_scores_are_positive():
    """A = 1, R² = 32: three points, each far lighter than the one before, exceed the best two by 68 %."""
    R = math.sqrt(32)
    atoms = torch.tensor([[R], [-3.07947644], [-R]], dtype=torch.float64)
    logs = torch.tensor([0.0, -27.11765531, -35.31015373], dtype=torch.float64)
    found = mean_field_lipschitz(unit_layer("positive"), (atoms, logs))
    assert less(plateau(4.0, "positive").log_value + math.log(1.68), math.log(found.lower))
    assert three_point_plateau(4.0, "positive") == pytest.approx(math.log(found.value), abs=1e-6)


def test_unknown_scores_are_refused():
    with pytest.raises(InputError, match="negative, positive, rotation"):
        unit_layer("sideways")
