"""Starts that all but miss the top vector, as one in a thousand may: what they attain gives the interval away."""

import pytest
import torch

from howsmooth.spectral import MatrixOperator, singular_values
from howsmooth.spectral.draws import own_generator
from tests.tolerances import at_most

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
    start = torch.randn(1, N, dtype=torch.float64, generator=own_generator(SEED)[0])[0]
    found = singular_values(MatrixOperator(matrix(overlap, top, start)), seed=SEED)
    assert at_most(found.lower[0], top, found.upper[0]) and found.status == "converged"
    assert found.residual[0] < 1e-4


def test_only_the_members_of_a_batch_that_were_refuted_are_found_again():
    starts = torch.randn(2, N, dtype=torch.float64, generator=own_generator(SEED)[0])
    pair = torch.stack([matrix(1e-6, 1.3, starts[0]), matrix(0.1, 1.3, starts[1])])
    found = singular_values(MatrixOperator(pair), seed=SEED)
    assert (found.lower[:, 0] <= 1.3).all() and (found.upper[:, 0] >= 1.3).all()
    fine = singular_values(MatrixOperator(torch.stack([matrix(0.1, 1.3, starts[0]), pair[1]])), seed=SEED)
    assert found.products > fine.products
