"""Starts almost orthogonal to the top vector, as one in a thousand may be: attained values contradict the interval."""

import math

import numpy as np
import pytest
import torch

from howsmooth.errors import NotConverged
from howsmooth.spectral import MatrixOperator, golub_kahan, singular_values
from howsmooth.spectral.products import solver_generator
from tests.tolerances import at_most, close

SEED, N = 0, 200


def matrix(overlap: float, top: float, start: torch.Tensor) -> torch.Tensor:
    """Singular values spread over [0, 1] and one at `top`, whose vector has this overlap with the solver's start."""
    start = start / start.norm()
    t = torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    t = t - (t @ start) * start
    t = (1 - overlap**2) ** 0.5 * t / t.norm() + overlap * start
    others = torch.randn(N, N - 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    q = torch.linalg.qr(torch.cat([t[:, None], others], 1)).Q
    values = torch.linspace(1, 0, N, dtype=torch.float64)
    values[0] = top
    return q @ torch.diag(values) @ q.T


@pytest.mark.parametrize("top", [1.1, 1.3, 2.0])
@pytest.mark.parametrize("overlap", [1e-5, 1e-6, 1e-7])
def test_another_start_is_drawn(overlap, top):
    start = torch.randn(1, N, dtype=torch.float64, generator=solver_generator(SEED)[0])[0]
    found = singular_values(MatrixOperator(matrix(overlap, top, start)), seed=SEED)
    assert at_most(found.lower[0], top, found.upper[0]) and found.status == "converged"
    assert found.residual[0] < 1e-4


def test_only_the_contradicted_members_of_a_batch_are_solved_again():
    starts = torch.randn(2, N, dtype=torch.float64, generator=solver_generator(SEED)[0])
    pair = torch.stack([matrix(1e-6, 1.3, starts[0]), matrix(0.1, 1.3, starts[1])])
    found = singular_values(MatrixOperator(pair), seed=SEED)
    assert (found.lower[:, 0] <= 1.3).all() and (found.upper[:, 0] >= 1.3).all()
    fine = singular_values(MatrixOperator(torch.stack([matrix(0.1, 1.3, starts[0]), pair[1]])), seed=SEED)
    assert found.products > fine.products


TRUTH = torch.linspace(4, 1, 40, dtype=torch.float64)


def test_a_bound_on_a_later_value_is_contradicted_like_that_on_the_first():
    """This start misses the second vector: its bound is below the attained value, which had replaced it."""
    found = singular_values(MatrixOperator(torch.diag(TRUTH)), k=2, confidence=0.99, seed=292)
    assert at_most(found.lower, TRUTH[:2], found.upper) and (found.residual < 1e-2).all()


@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("confidence, most", [(0.99, 4), (0.5, 30)])  # of 200; up to 45 were outside
def test_an_attained_value_is_never_the_upper_end(confidence, most, k):
    found = singular_values(
        MatrixOperator(torch.diag(TRUTH).expand(200, 40, 40)), k=k, confidence=confidence, seed=1, strict=False
    )
    assert (found.upper - found.lower).min() > 1e-9
    outside = torch.maximum(found.lower - TRUTH[:k], TRUTH[:k] - found.upper).amax(1) > 1e-9
    assert outside.sum() <= most


def test_if_every_start_is_contradicted_there_is_no_upper_end(monkeypatch):
    run = golub_kahan._Solve.run
    monkeypatch.setattr(golub_kahan._Solve, "run", lambda self: (run(self)[0], np.ones(1, dtype=bool)))
    matrix = MatrixOperator(torch.diag(TRUTH))
    found = singular_values(matrix, strict=False)
    assert found.status == "contradicted" and found.upper[0] == math.inf and close(found.lower[0], 4, tol=1e-2)
    with pytest.raises(NotConverged, match=r"contradicted.*raise confidence"):
        singular_values(matrix)


def test_a_generator_seeded_like_the_data_draws_another_start():
    """A flat spectrum except for one value, whose vector is orthogonal to the first draw from this seed."""
    start = torch.randn(1, N, dtype=torch.float64, generator=torch.Generator().manual_seed(7))[0]
    t = torch.randn(N, dtype=torch.float64, generator=torch.Generator().manual_seed(8))
    t -= (t @ start) / (start @ start) * start
    t /= t.norm()
    flat = torch.eye(N, dtype=torch.float64) + 9 * torch.outer(t, t)
    found = singular_values(MatrixOperator(flat), seed=torch.Generator().manual_seed(7))
    assert at_most(found.lower[0], 10, found.upper[0]) and found.seed == 7
