"""Splitting on the line: the closed form against the dense criterion, and the published numbers of the grid."""

from __future__ import annotations

import pytest
import torch

from howsmooth import InputError, SelfAttention
from howsmooth.attention.fields import SoftmaxField
from howsmooth.lipschitz import splits
from howsmooth.lipschitz.criterion import criterion, line_splitting, line_splitting_grid
from tests.tolerances import at_most, close

ONE = torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize("atoms", [1, 2, 3, 4])
@pytest.mark.parametrize("a", [-1.0, 1.0, -0.3])
def test_closed_form(atoms, a):
    g = torch.Generator().manual_seed(atoms)
    x = 2 * torch.randn(3, atoms, generator=g, dtype=torch.float64)
    m = torch.rand(3, atoms, generator=g, dtype=torch.float64) + 0.05
    found = line_splitting(x, a, m)
    for i in range(3):
        truth = criterion(SoftmaxField.of(a * ONE, ONE), x[i][:, None], m[i].log())
        assert float(found.norm[i]) == pytest.approx(truth.norm, rel=1e-12)
        assert at_most((found.own[i] - truth.own).abs().max(), 1e-12 * truth.own.max() + 1e-15)


def test_masked():
    x = torch.tensor([3.0, -0.4, 1.0], dtype=torch.float64)
    found = line_splitting(x, masked=True)
    truth = splits(SelfAttention(-ONE, ONE, ONE, causal=True), x[:, None], tol=1e-9)
    assert float(found.norm) == pytest.approx(truth.norm.value, rel=1e-9)
    assert float(found.ratio) == pytest.approx(truth.ratio, rel=1e-9)


def test_grid_of_two_equal_atoms():
    axis, found = line_splitting_grid()
    assert found.ratio.shape == (400, 400)
    assert float(found.splits.double().mean()) == pytest.approx(0.067, abs=5e-4)
    assert close(found.ratio, found.ratio.T, tol=1e-9)  # equal atoms may be exchanged
    inside = axis.abs() <= 2
    assert not found.splits[inside][:, inside].any()


@pytest.mark.parametrize("x, low, high", [(4.0, -0.15, 0.66), (3.0, -0.12, 0.54)])
def test_interval_of_the_second_atom(x, low, high):
    y = torch.linspace(-4, 4, 16001, dtype=torch.float64)
    where = y[line_splitting(torch.stack([torch.full_like(y, x), y], -1)).splits]
    assert float(where.min()) == pytest.approx(low, abs=5e-3) and float(where.max()) == pytest.approx(high, abs=5e-3)


def test_positive_a_splits_slightly_at_large_atoms():
    y, x = torch.linspace(5, 14, 901, dtype=torch.float64)[:, None], torch.linspace(0, 0.6, 1201, dtype=torch.float64)
    found = line_splitting(torch.stack(torch.broadcast_tensors(x, y), -1), a=1.0)
    first = float(y[found.splits.any(1)].min())
    assert 8.1 < first < 8.2
    assert 1.004 < float(found.ratio.max()) < 1.0051
    best = line_splitting(torch.tensor([13.1091068, 0.2197482]), 1.0, torch.tensor([0.2547114, 0.7452886]))
    assert 1.00504 < float(best.ratio) < 1.0051


def test_unequal_masses_split_without_bound():
    """(1 − p) δ_0 + p δ_y with p = 1/y²: the norm tends to 0 like 1/y, C at 0 to 1."""
    for y in (5.0, 10.0, 100.0, 1000.0):
        found = line_splitting(torch.tensor([0.0, y]), masses=torch.tensor([1 - y**-2, y**-2], dtype=torch.float64))
        assert float(found.ratio) == pytest.approx(y, rel=0.06)
        assert float(found.own.max()) == pytest.approx(1 - y**-2, rel=1e-9)


def test_three_atoms():
    axis, found = line_splitting_grid(third=1.0, masses=(1.0, 1.0, 1.0), points=120)
    share = float(found.splits.double().mean())
    assert 0.02 < share < 0.05
    where = int(found.ratio.argmax())
    x = torch.stack([axis[where % 120], axis[where // 120], torch.tensor(1.0).double()])[:, None]
    assert float(found.ratio.max()) == pytest.approx(criterion(SoftmaxField.of(-ONE, ONE), x).ratio, rel=1e-10)


@pytest.mark.parametrize(
    "bad", [dict(points=1), dict(extent=0.0), dict(masses=(1.0,)), dict(masses=(1.0, -1.0)), dict(third=1.0)]
)
def test_bad_input(bad):
    with pytest.raises(InputError, match="expected"):
        line_splitting_grid(**bad)
