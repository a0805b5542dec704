"""Two places against whole sequences: every token free, the dense Jacobian of the layer the truth."""

from __future__ import annotations

import math

import pytest
import torch

from howsmooth import SelfAttention
from howsmooth.attention.weighted import WeightedAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.two_atoms import apart_norm, sequence_norm, two_atom_norm
from tests.tolerances import assert_close, less


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def drawn(seed: int, d: int, bias: bool = False):
    """A, V, y, z, c and the layer that has them: wq = A, wk = I, scale 1, so that ⟨Ax + c, y⟩ is q·k."""
    A, V, (y, z) = normal(seed, d, d), normal(seed + 1, d, d), normal(seed + 2, 2, d)
    c = normal(seed + 3, d) if bias else None
    return A, V, y, z, c, SelfAttention(A, torch.eye(d, dtype=torch.float64), V, scale=1.0, bq=c)


def tokens(y, z, isolated: int, crowd: int) -> torch.Tensor:
    return torch.cat([y.expand(isolated, -1), z.expand(crowd, -1)])


@pytest.mark.parametrize("d", [1, 3])
@pytest.mark.parametrize("isolated, crowd", [(1, 1), (1, 2), (1, 9), (2, 7), (4, 1)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("seed", range(0, 40, 10))
def test_the_whole_sequence(d, isolated, crowd, bias, seed):
    A, V, y, z, c, f = drawn(seed, d, bias)
    truth = torch.linalg.matrix_norm(f.jacobian(tokens(y, z, isolated, crowd)).dense(), 2)
    found = sequence_norm(A, V, y, z, math.log(crowd), math.log(isolated), c).exp()
    assert_close(found, truth, tol=1e-12)


@pytest.mark.parametrize("seed", range(0, 30, 10))
def test_common_moves_are_the_weighted_atoms(seed):
    A, V, y, z, c, f = drawn(seed, 2, bias=True)
    logs = torch.tensor([0.0, 5.0], dtype=torch.float64)
    truth = torch.linalg.matrix_norm(WeightedAttention(f).jacobian(torch.stack([y, z]), logs).dense(), 2)
    assert_close(two_atom_norm(A, V, y, z, 5.0, c).exp(), truth, tol=1e-12)


def test_moving_apart_can_be_more_than_moving_together():
    """A = −1, one token at −4 and eight at −0.1: the crowd gains more by moving apart than all do together."""
    one = torch.ones(1, 1, dtype=torch.float64)
    y, z = (torch.tensor([t], dtype=torch.float64) for t in (-4.0, -0.1))
    together, apart = (g(-one, one, y, z, math.log(8)) for g in (two_atom_norm, apart_norm))
    assert less(math.log(1.5), float(apart - together))
    f = SelfAttention(-one, one, one, scale=1.0)
    truth = torch.linalg.matrix_norm(f.jacobian(tokens(y, z, 1, 8)).dense(), 2)
    assert_close(sequence_norm(-one, one, y, z, math.log(8)).exp(), truth, tol=1e-12)
    assert_close(apart.exp(), truth, tol=1e-12)


def test_lengths_that_no_float_holds():
    """γR² = 1000 and e^{2000} tokens: ½ e^{γR²}(1 + γR²), as the formula at lengths that floats do hold."""
    one = torch.ones(1, 1, dtype=torch.float64)
    for g in (4.0, 50.0, 1000.0):
        R = torch.tensor([math.sqrt(g)], dtype=torch.float64)
        assert float(two_atom_norm(-one, one, R, -R, 2 * g)) == pytest.approx(g + math.log((1 + g) / 2), abs=1e-3)


def test_names_of_the_two_places_do_not_matter():
    A, V, y, z, c, _ = drawn(7, 3, bias=True)
    assert_close(two_atom_norm(A, V, y, z, 3.0, c), two_atom_norm(A, V, z, y, -3.0, c))
    assert_close(apart_norm(A, V, y, z, 3.0, c, "y"), apart_norm(A, V, z, y, -3.0, c, "z"))


def test_refusals():
    one = torch.ones(1, 1, dtype=torch.float64)
    with pytest.raises(InputError, match=r"expected A \(d, d\)"):
        two_atom_norm(one, one, torch.ones(2).double(), torch.ones(2).double(), 0.0)
    with pytest.raises(InputError, match="float64"):
        two_atom_norm(one, one, torch.ones(1), torch.ones(1), 0.0)
    with pytest.raises(InputError, match="'y' or 'z'"):
        apart_norm(one, one, one[0], one[0], 0.0, at="x")
