"""Norms between Lᵖ spaces: known ones, and that no direction gives more."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.spectral import attained_p_norm


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
def test_known_norms(p, shape):
    for seed in range(3):
        J = normal(seed, *shape)
        found = attained_p_norm(J, p, starts=20)
        assert found == pytest.approx(float(torch.linalg.matrix_norm(J, p)), rel=1e-6)


@pytest.mark.parametrize("p", [1.3, 3.0, 8.0])
def test_no_direction_gives_more(p):
    J = normal(5, 2, 2)
    angle = torch.linspace(0, math.pi, 20001, dtype=torch.float64)
    v = torch.stack([angle.cos(), angle.sin()])
    truth = float((torch.linalg.vector_norm(J @ v, p, dim=0) / torch.linalg.vector_norm(v, p, dim=0)).max())
    assert attained_p_norm(J, p, starts=8) == pytest.approx(truth, rel=1e-6)


def test_tokens_of_several_coordinates():
    """Blocks on the diagonal: the largest of their norms, whatever p is."""
    J = torch.block_diag(normal(1, 2, 3), normal(2, 2, 3))
    truth = max(float(torch.linalg.matrix_norm(block, 2)) for block in (J[:2, :3], J[2:, 3:]))
    for p in (1.0, 1.7, 2.0, 4.0, math.inf):
        assert attained_p_norm(J, p, widths=(2, 3), starts=6, steps=150) == pytest.approx(truth, rel=1e-5)


def test_a_zero_matrix():
    # exact: of a zero matrix all products are zero
    assert attained_p_norm(torch.zeros(3, 3, dtype=torch.float64), 3.0) == 0.0


def test_invalid_arguments():
    with pytest.raises(InputError, match="multiples of"):
        attained_p_norm(normal(1, 3, 3), 2.0, widths=(2, 2))
    with pytest.raises(InputError, match="1 ≤ p ≤ ∞"):
        attained_p_norm(normal(1, 3, 3), 0.5)


def test_nan_is_refused():
    with pytest.raises(InputError, match="finite matrix"):
        attained_p_norm(torch.tensor([[1.0, torch.nan]]), 2.0)
