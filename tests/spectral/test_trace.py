"""Frobenius norms, counts of singular values and eigenvalues, against prescribed spectra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.spectral import FunctionOperator, MatrixOperator
from howsmooth.spectral.eigenvalues import leading_eigenvalues
from howsmooth.spectral.trace import count_singular_values, frobenius_norm, interval_of_sum
from tests.tolerances import assert_close, at_most, close

SPECTRA = {
    "flat": torch.ones(60),
    "decaying": 0.9 ** torch.arange(60.0),
    "one": torch.cat([torch.tensor([5.0]), torch.full((59,), 1e-3)]),
    "deficient": torch.cat([torch.linspace(2, 1, 20), torch.zeros(40)]),
}


def operator(values: Tensor, seed: int = 0) -> MatrixOperator:
    """Return a 70 × 60 matrix with these singular values."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (
        torch.linalg.qr(torch.randn(rows, 60, dtype=torch.float64, generator=generator))[0] for rows in (70, 60)
    )
    return MatrixOperator(left * values.double() @ right.T)


@pytest.mark.parametrize("name", SPECTRA)
def test_the_frobenius_norm_and_the_effective_rank_are_inside_their_intervals(name):
    values = SPECTRA[name].double()
    norm, top = float(values.square().sum().sqrt()), float(values.max())
    rank = (norm / top) ** 2
    for seed in range(5):
        found = frobenius_norm(operator(values), (top, top, top), seed=seed)
        assert at_most(found.lower, norm, found.upper) and at_most(found.rank[1], rank, found.rank[2])
        assert at_most(found.lower, found.value, found.upper)
    if name == "flat":  # 64 probes of rank 60: the relative width is about 4 √(log(2/δ)/(64·60))
        assert found.upper / found.lower < 1.2


def test_the_interval_of_a_sum_misses_no_more_often_than_stated():
    """Rank one is the hardest spectrum: Q is χ²_m / m."""
    delta, probes = 0.05, 4
    generator = np.random.default_rng(0)
    means = generator.chisquare(probes, 4000) / probes
    missed = [not low <= 1 <= high for low, high in (interval_of_sum(float(q), probes, 1.0, delta) for q in means)]
    assert sum(missed) <= delta * len(missed)
    assert any(missed)  # the bound is not vacuous


@pytest.mark.parametrize("name", SPECTRA)
def test_the_counts_of_singular_values_are_inside_their_intervals(name):
    values = SPECTRA[name].double()
    for seed in range(3):
        found = count_singular_values(operator(values), seed=seed, probes=6)
        assert found.total == 60
        for threshold, value, low, high in zip(found.thresholds, found.value, found.lower, found.upper, strict=True):
            count = int((values > threshold).sum())
            assert low <= count <= high and at_most(low, value, high)  # exact: counts are integers
    assert list(found.thresholds) == sorted(found.thresholds, reverse=True)


def test_more_starts_make_the_intervals_of_counts_narrower():
    few, many = (count_singular_values(operator(SPECTRA["decaying"]), probes=probes) for probes in (2, 32))
    wide, narrow = (sum(found.upper) - sum(found.lower) for found in (few, many))
    assert 10 * narrow < 7 * wide  # exact: counts are integers


def test_few_lanczos_steps_make_wide_intervals_that_still_hold():
    values = SPECTRA["decaying"].double()
    found = count_singular_values(operator(values), probes=8, steps=3)
    counts = [int((values > threshold).sum()) for threshold in found.thresholds]
    assert all(low <= count <= high for low, count, high in zip(found.lower, counts, found.upper, strict=True))


@pytest.mark.parametrize("side", [30, 90])
def test_eigenvalues_have_the_residuals_that_they_state(side):
    generator = torch.Generator().manual_seed(side)
    matrix = torch.randn(side, side, dtype=torch.float64, generator=generator)
    truth = np.linalg.eigvals(matrix.numpy())
    truth = truth[np.argsort(-np.abs(truth))]
    found = leading_eigenvalues(MatrixOperator(matrix), 4, tol=1e-10)
    assert found.status == "converged" and close(found.radius, float(abs(truth[0])), 1e-8)
    assert_close(torch.tensor(sorted(map(abs, found.value))), torch.tensor(sorted(np.abs(truth[:4]))), 1e-6)
    assert at_most(max(found.residual), 1e-6 * found.radius)


def test_eigenvalues_of_a_map_that_is_not_normal():
    """A Jordan block with zero eigenvalue has the norm 1: the residual is small, and says nothing about the norm."""
    block = torch.diag(torch.ones(7), 1).double()
    found = leading_eigenvalues(MatrixOperator(block), 2)
    assert found.radius < 0.1 and at_most(found.residual[0], 1e-6)


def test_what_cannot_be_computed_is_refused():
    with pytest.raises(InputError, match="one square operator, got shape"):
        leading_eigenvalues(MatrixOperator(torch.ones(2, 3)))
    with pytest.raises(InputError, match="k from 1 to 2"):
        leading_eigenvalues(MatrixOperator(torch.eye(2)), 3)
    batch = FunctionOperator(lambda v: v, lambda u: u, (2, 2), dtype=torch.float64, batch=(3,))
    for compute in (lambda: count_singular_values(batch), lambda: frobenius_norm(batch, (1, 1, 1))):
        with pytest.raises(InputError, match="got a batch"):
            compute()
    zero = frobenius_norm(MatrixOperator(torch.zeros(3, 3)), (0.0, 0.0, 0.0))
    assert (zero.value, zero.upper, zero.rank) == (0.0, 0.0, (0.0, 0.0, 0.0))  # exact: zeros are returned
