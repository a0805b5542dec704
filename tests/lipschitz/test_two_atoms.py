"""Two points against whole sequences; the reference is the dense Jacobian of the layer."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth import SelfAttention
from howsmooth.attention.weighted import WeightedAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.two_atoms import sequence_norm, two_atom_norm, zero_sum_norm
from tests.tolerances import assert_close, less


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(seed: int, d: int, bias: bool = False):
    """A, V, y, z, c and the layer that has them: wq = A, wk = I, scale 1, so that ⟨Ax + c, y⟩ is q·k."""
    A, V, (y, z) = normal(seed, d, d), normal(seed + 1, d, d), normal(seed + 2, 2, d)
    c = normal(seed + 3, d) if bias else None
    return A, V, y, z, c, SelfAttention(A, torch.eye(d, dtype=torch.float64), V, scale=1.0, bq=c)


def tokens(y, z, isolated: int, others: int) -> torch.Tensor:
    return torch.cat([y.expand(isolated, -1), z.expand(others, -1)])


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("isolated, others", [(1, 1), (1, 2), (1, 9), (2, 7), (4, 1)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", range(0, 40, 10))
def test_the_whole_sequence(d, isolated, others, bias, seed):
    A, V, y, z, c, f = drawn(seed, d, bias)
    truth = torch.linalg.matrix_norm(f.jacobian(tokens(y, z, isolated, others)).dense(), 2)
    found = sequence_norm(A, V, y, z, math.log(others), math.log(isolated), c).exp()
    assert_close(found, truth, tol=1e-12)


@pytest.mark.parametrize("seed", range(0, 30, 10))
def test_common_perturbations_are_those_of_weighted_atoms(seed):
    A, V, y, z, c, f = drawn(seed, 2, bias=True)
    logs = torch.tensor([0.0, 5.0], dtype=torch.float64)
    truth = torch.linalg.matrix_norm(WeightedAttention(f).jacobian(torch.stack([y, z]), logs).dense(), 2)
    assert_close(two_atom_norm(A, V, y, z, 5.0, c).exp(), truth, tol=1e-12)


def test_zero_sum_perturbations_may_be_the_worst():
    """A = −1, one token at −4 and eight at −0.1: perturbations with sum zero at −0.1 are amplified most."""
    one = torch.ones(1, 1, dtype=torch.float64)
    y, z = (torch.tensor([t], dtype=torch.float64) for t in (-4.0, -0.1))
    together, apart = (g(-one, one, y, z, math.log(8)) for g in (two_atom_norm, zero_sum_norm))
    assert less(math.log(1.5), float(apart - together))
    f = SelfAttention(-one, one, one, scale=1.0)
    truth = torch.linalg.matrix_norm(f.jacobian(tokens(y, z, 1, 8)).dense(), 2)
    assert_close(sequence_norm(-one, one, y, z, math.log(8)).exp(), truth, tol=1e-12)
    assert_close(apart.exp(), truth, tol=1e-12)


def test_lengths_that_overflow_a_float():
    """γR² = 1000 and e^{2000} tokens: ½ e^{γR²}(1 + γR²), as by the formula at representable lengths."""
    one = torch.ones(1, 1, dtype=torch.float64)
    for g in (4.0, 50.0, 1000.0):
        R = torch.tensor([math.sqrt(g)], dtype=torch.float64)
        assert float(two_atom_norm(-one, one, R, -R, 2 * g)) == pytest.approx(g + math.log((1 + g) / 2), abs=1e-3)


def test_the_two_points_may_be_exchanged():
    A, V, y, z, c, _ = drawn(7, 3, bias=True)
    assert_close(two_atom_norm(A, V, y, z, 3.0, c), two_atom_norm(A, V, z, y, -3.0, c))
    assert_close(zero_sum_norm(A, V, y, z, 3.0, c, "y"), zero_sum_norm(A, V, z, y, -3.0, c, "z"))


def test_refusals():
    one = torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(InputError, match=r"expected A \(d, d\)"):
        two_atom_norm(one, one, torch.ones(2).double(), torch.ones(2).double(), 0.0)
    with pytest.raises(InputError, match="float64"):
        two_atom_norm(one, one, torch.ones(1), torch.ones(1), 0.0)
    with pytest.raises(InputError, match="'y' or 'z'"):
        zero_sum_norm(one, one, one[0], one[0], 0.0, at="x")
