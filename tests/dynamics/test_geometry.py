"""How tokens are spread, on configurations whose answer is known."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth.dynamics.growth import growth_by_map
from howsmooth.dynamics.instruments import directions, principal_view, spread
from howsmooth.errors import InputError

F64 = torch.float64


def test_one_direction():
    x = torch.tensor([1.0, 2.0, 5.0], dtype=F64)[:, None] * torch.tensor([[3.0, 4.0, 0.0]], dtype=F64)
    found = spread(x)
    assert found.cosine == pytest.approx(1) and found.effective_rank == pytest.approx(1, abs=1e-6)
    assert found.participation == pytest.approx(1) and (found.size, found.largest) == pytest.approx((10.0, 25.0))


def test_opposite_and_orthogonal():
    assert spread(torch.tensor([[2.0, 0.0], [-7.0, 0.0]])).cosine == pytest.approx(-1)
    found = spread(5 * torch.eye(6, dtype=F64))
    assert found.cosine == pytest.approx(0) and found.effective_rank == pytest.approx(6)
    assert found.to_mean == pytest.approx(math.sqrt(5 / 6))  # |x|² less its mean's sixth


def test_all_tokens_equal():
    found = spread(torch.ones(4, 3, dtype=F64))
    assert found.to_mean == pytest.approx(0, abs=1e-15) and found.cosine == pytest.approx(1)


def test_cosine_against_all_pairs():
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(3), dtype=F64)
    u = directions(x)
    pairs = [float(u[i] @ u[j]) for i in range(9) for j in range(9) if i != j]
    assert spread(x).cosine == pytest.approx(sum(pairs) / len(pairs))
    p = torch.linalg.svdvals(u)
    assert spread(x).effective_rank == pytest.approx(math.exp(float(torch.distributions.Categorical(p).entropy())))


def test_principal_axes_of_anisotropic_tokens():
    x = torch.randn(4, 500, 6, generator=torch.Generator().manual_seed(0), dtype=F64)
    x = x * torch.tensor([1.0, 9.0, 0.1, 3.0, 0.1, 0.1], dtype=F64)
    seen = principal_view(x)
    assert seen.axes.abs().argmax(0).tolist() == [1, 3, 0] and seen(x).shape == (4, 500, 3)
    assert torch.allclose(seen.axes.mT @ seen.axes, torch.eye(3, dtype=F64))


def test_fewer_dimensions_than_axes():
    assert principal_view(torch.randn(5, 2), 3).axes.shape == (2, 2)


@pytest.mark.parametrize(
    "x, words",
    [
        (torch.ones(1, 3), "at least 2 tokens"),
        (torch.tensor([[1.0], [0.0]]), "0 as token 1"),
        (torch.tensor([[1.0], [math.nan]]), "finite"),
        (torch.ones(3), r"\(n, d\)"),
    ],
)
def test_spread_refuses_single_and_zero_tokens(x, words):
    with pytest.raises(InputError, match=words):
        spread(x)


@pytest.mark.parametrize("d", [3, 90])  # dense, and matrix-free
def test_perturbations_of_some_tokens_alone(d):
    g = torch.Generator().manual_seed(1)
    weights = [torch.randn(d, d, generator=g, dtype=F64) / d**0.5 for _ in range(3)]
    maps = [lambda x, w=w: torch.tanh(x @ w) + 0.1 * x.sum(0) for w in weights]
    x = torch.randn(4, d, generator=g, dtype=F64)
    J = torch.func.jacrev(lambda x: maps[2](maps[1](maps[0](x))))(x).reshape(4 * d, 4, d)[:, 1:].flatten(1)
    found = [grown for _, grown in growth_by_map(maps, x, at=[3], moved=[1, 2, 3], tol=1e-6)]
    assert found[:2] == [None, None]
    assert found[2].value == pytest.approx(float(torch.linalg.matrix_norm(J, 2)), rel=1e-5)
    assert not found[2].direction[0].any() and found[2].direction.shape == (4, d)
    assert float((J @ found[2].direction[1:].flatten()).norm()) == pytest.approx(found[2].value, rel=1e-5)


def test_depths_beyond_the_chain_are_refused():
    with pytest.raises(InputError, match="from 1 to 1, got"):
        next(growth_by_map([lambda x: x], torch.ones(2, 2), at=[2]))
