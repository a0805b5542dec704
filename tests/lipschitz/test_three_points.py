"""Measures at three points of the line: the norm against the dense one, and the largest constant that is found."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth.lipschitz import mean_field_lipschitz, plateau
from howsmooth.lipschitz.regimes import unit_layer
from howsmooth.lipschitz.three_points import line_log_norm, three_point_plateau
from tests.tolerances import at_most, less


@pytest.mark.parametrize("scores", ["negative", "positive"])
def test_the_norm_is_that_of_the_mean_field_derivative(scores):
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        x, logs = torch.randn(2, 4, generator=generator, dtype=torch.float64) * 2
        found = mean_field_lipschitz(unit_layer(scores), (x.unsqueeze(1), logs))
        sign = -1.0 if scores == "negative" else 1.0
        assert line_log_norm(x.tolist(), logs.tolist(), sign) == pytest.approx(math.log(found.value), abs=1e-9)


@pytest.mark.parametrize("gamma_r2", [0.0, 0.5, 8.0, 1000.0, 1e5])
def test_three_points_are_never_below_two(gamma_r2):
    for scores in ("negative", "positive"):
        assert at_most(plateau(gamma_r2, scores).log_value, three_point_plateau(gamma_r2, scores))


def test_the_gain_of_the_third_point_tends_to_16_over_9():
    gains = [
        math.exp(three_point_plateau(g, "positive") - plateau(g, "positive").log_value) for g in (4.0, 32.0, 1e3, 1e5)
    ]
    assert at_most(1.68, *gains, 16 / 9) and less(16 / 9 - 1e-4, gains[-1])


def test_masses_that_underflow_keep_their_digits():
    assert math.isfinite(line_log_norm([900.0, -450.0, -900.0], [0.0, -6e5, -8e5], 1.0))
