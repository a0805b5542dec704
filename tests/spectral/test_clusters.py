"""Singular values so close together that the Krylov space misses some of them by rounding."""

import pytest
import torch

from howsmooth.spectral import MatrixOperator, singular_values
from tests.tolerances import at_most

SEEDS = 12


def clustered(rows: int, cols: int, gap: float, seed: int) -> torch.Tensor:
    """Singular values 1, 1 − gap, 1 − 2·gap, … between random bases."""
    generator = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(n, n, dtype=torch.float64, generator=generator)).Q for n in (rows, cols))
    rank = min(rows, cols)
    values = 1 - gap * torch.arange(rank, dtype=torch.float64)
    return u[:, :rank] * values @ v[:, :rank].T


@pytest.mark.parametrize("rows, cols", [(10, 30), (30, 10), (20, 20), (3, 50), (1, 7)])
@pytest.mark.parametrize("gap", [1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize("tol", [1e-5, 1e-8])
def test_the_interval_contains_the_truth(rows, cols, gap, tol):
    """Wide operators (rows < cols) were declared invariant after rows + 1 steps: 59 of 60 intervals were wrong."""
    matrices = torch.stack([clustered(rows, cols, gap, 1000 + seed) for seed in range(SEEDS)])
    for seed, matrix in enumerate(matrices):
        found = singular_values(MatrixOperator(matrix), tol=tol, seed=seed)
        assert at_most(found.lower[0], 1, found.upper[0], tol=1e-14), seed
    together = singular_values(MatrixOperator(matrices), tol=tol)
    assert at_most(together.lower, 1, together.upper, tol=1e-14)


def test_a_reported_case():
    """Width 3e-15 around 0.99999978, where the truth is 1."""
    found = singular_values(MatrixOperator(clustered(10, 30, 1e-6, 24)), tol=1e-8, seed=24)
    assert at_most(found.lower[0], 1, found.upper[0], tol=1e-14)


@pytest.mark.parametrize("tol", [1e-16, 1e-320])
def test_a_tolerance_below_rounding_ends_at_the_precision_limit(tol):
    found = singular_values(MatrixOperator(clustered(8, 8, 0.1, 0)), tol=tol, strict=False)
    assert found.status == "precision limit" and at_most(found.lower[0], 1, found.upper[0])
