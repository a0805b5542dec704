"""The limiting rank: known limits, and flows that are too short to have one."""

from __future__ import annotations

import pytest
import torch

from howsmooth import InputError
from howsmooth.attention.fields import MeanPooling, SoftmaxField
from howsmooth.dynamics.gaussian import GaussianState
from howsmooth.dynamics.gaussian_flows import gaussian_flow
from howsmooth.dynamics.gaussian_rank import limiting_rank

EYE = torch.eye(3, dtype=torch.float64)


def diagonal(*values: float) -> torch.Tensor:
    return torch.diag(torch.tensor(values, dtype=torch.float64))


def test_fates_of_decoupled_directions():
    """S_i' = 2 v_i a_i S_i²: vanishes like 1/t, stays, or blows up at 1/(2 v_i a_i S_i)."""
    start = GaussianState.standard(3)
    still = limiting_rank(gaussian_flow(SoftmaxField.of(diagonal(-1, 0, -2), EYE), start, 1000.0))
    assert still.fates == ("stays", "vanishes", "vanishes") and still.rank == still.shape_rank == 1 and still.settled
    assert still.exponents[1:] == pytest.approx([-1, -1], abs=0.01)
    blown = limiting_rank(gaussian_flow(SoftmaxField.of(diagonal(1, 1, -2), EYE), start, 10.0))
    assert blown.fates == ("blows up", "blows up", "stays") and (blown.rank, blown.shape_rank) == (3, 2)
    shape = limiting_rank(gaussian_flow(SoftmaxField.of(-EYE, EYE), start, 1000.0))
    assert (shape.rank, shape.shape_rank) == (0, 3)  # all vanish alike: the shape keeps its rank


def test_a_direction_without_variance_is_not_counted():
    start = GaussianState(torch.zeros(3), diagonal(1, 2, 0))
    found = limiting_rank(gaussian_flow(MeanPooling(EYE), start, 2.0))
    assert found.fates == ("stays", "stays", "vanishes") and found.rank == found.shape_rank == 2


def test_a_run_that_is_too_short_is_not_settled():
    found = limiting_rank(gaussian_flow(SoftmaxField.of(diagonal(-1, 0, -2), EYE), GaussianState.standard(3), 0.2))
    assert not found.settled
    limited = gaussian_flow(SoftmaxField.of(EYE, EYE), GaussianState.standard(3), 1.0, max_steps=40)
    assert limiting_rank(limited).status == "step limit" and not limiting_rank(limited).settled


def test_bad_input():
    with pytest.raises(InputError, match="at least 11 frames"):
        limiting_rank(gaussian_flow(MeanPooling(EYE), GaussianState.standard(3), 1.0, frames=3))
