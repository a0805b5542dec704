"""J v without products with zero: the same numbers as PyTorch's own forward mode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from howsmooth.lipschitz.forward_mode import jvp


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64)


W, BIAS, X, V = normal(4, 3), normal(4), normal(5, 3), normal(3, 5).T


def nested(x: Tensor) -> Tensor:
    """A map with forward mode of its own."""
    return torch.func.jvp(lambda y: F.linear(y.sin(), W), (x,), (x.cos(),))[1]


MAPS = {
    "linear": lambda x: F.linear(x, W, BIAS).tanh(),
    "linear in the weight": lambda x: F.linear(W[:, :3], x.sin()),
    "linear in both": lambda x: F.linear(x, x.cos()),
    "bias that moves": lambda x: F.linear(X, W, x.sum() * BIAS),
    "addmm": lambda x: torch.addmm(BIAS, x.sin(), W.T),
    "addmm with a sum that moves": lambda x: torch.addmm(x.sin(), x, W.T[:, :3]),
    "left": lambda x: x.sin() @ W.T,
    "right": lambda x: W @ x.T.sin(),
    "both": lambda x: x @ x.T,
    "batched": lambda x: torch.bmm(x[None].sin(), W.T[None])[0],
    "none": lambda x: X @ W.T + 0 * x.sum(),
    "nested": nested,
    "vmap": torch.vmap(lambda row: W @ row.sin()),
}


@pytest.mark.parametrize("name", MAPS)
def test_the_numbers_are_those_of_pytorch(name):
    with torch.no_grad():
        own = torch.func.jvp(MAPS[name], (X,), (V,))[1]
    found = jvp(MAPS[name], X, V)
    assert torch.equal(found, own)  # exact: a product with zeros is left out of a sum


def test_a_weight_that_does_not_move_costs_no_product(monkeypatch):
    """Two products for a linear layer: its value and its derivative."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as one:
        F.linear(X, W)
    with FlopCounterMode(display=False) as two:
        jvp(lambda x: F.linear(x, W), X, V)
    assert two.get_total_flops() <= 2 * one.get_total_flops()
