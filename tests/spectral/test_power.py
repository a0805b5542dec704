"""The power method as published, compared with the certified solver."""

import math

import numpy as np
import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.spectral import MatrixOperator, power_method, singular_values
from tests.oracles.spectra import SPECTRA, largest, matrix_with


def test_a_separated_value_is_found():
    matrix = matrix_with(SPECTRA["separated"])
    found = power_method(MatrixOperator(matrix))
    assert found.status == "looks alike"
    assert found.value.item() == pytest.approx(largest(matrix).item(), rel=1e-4)
    assert found.upper.item() == math.inf and found.confidence == 0
    u, v = found.u[0], found.v[0]
    assert torch.allclose(matrix @ v, found.value * u)
    assert (matrix.mT @ u - found.value * v).norm().item() == pytest.approx(found.residual.item(), rel=1e-6)


def test_it_is_the_textbook_iteration():
    matrix = matrix_with(SPECTRA["flat"])
    first = power_method(MatrixOperator(matrix), max_steps=1)
    later = power_method(MatrixOperator(matrix), max_steps=6, threshold=0)
    v = first.v[0]
    for _ in range(5):
        v = matrix.mT @ (matrix @ v)
        v /= v.norm()
    assert torch.allclose(v, later.v[0], atol=1e-10)
    assert later.products == 12 and later.status == "step limit"


def test_small_changes_certify_nothing():
    """On a small matrix the absolute threshold stops at once, far from σ₁; the certified solver does not."""
    matrix = 1e-3 * matrix_with(np.r_[1.0, np.full(299, 0.5)])
    wrong = power_method(MatrixOperator(matrix))
    assert wrong.status == "looks alike" and wrong.value < 0.8e-3
    assert singular_values(MatrixOperator(matrix)).value.item() == pytest.approx(1e-3, rel=1e-6)


def test_batches_and_extreme_scales():
    matrices = torch.stack([matrix_with(SPECTRA[name]) for name in ("separated", "tiny", "huge")]).float()
    found = power_method(MatrixOperator(torch.cat([matrices, torch.zeros(1, 60, 60)])), max_steps=60)
    assert torch.allclose(found.value[[0, 2]], largest(matrices)[[0, 2]], rtol=1e-4)
    assert torch.isfinite(found.value).all() and found.value[3] == 0  # exact: of a zero matrix all products are zero
    assert found.status[1] == found.status[3] == "looks alike"


def test_wrong_arguments():
    with pytest.raises(InputError, match=r"LinearOperator.*max_steps.*threshold"):
        power_method(torch.eye(3), max_steps=0, threshold=float("nan"))


def test_a_member_stays_where_it_stopped():
    quick, slow = matrix_with(np.r_[3.0, np.full(63, 0.1)]), matrix_with(np.linspace(1, 0, 64))
    alone = power_method(MatrixOperator(quick))
    together = power_method(MatrixOperator(torch.stack([quick, slow])), threshold=1e-4)
    assert alone.steps < together.steps / 2
    assert torch.allclose(alone.v, together.v[0], atol=1e-12)
    assert alone.residual.item() == pytest.approx(together.residual[0].item(), rel=1e-6)
