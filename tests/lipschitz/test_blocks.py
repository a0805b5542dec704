"""Gains of pairs of tokens and the largest token norm, against the dense Jacobian."""

from __future__ import annotations

import itertools

import pytest
import torch

from howsmooth import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.blocks import gain_matrix
from tests.tolerances import assert_close, at_most

N, D = 5, 3


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def maps():
    wq, wk, wv = (normal(6, D, seed=seed) for seed in (1, 2, 3))
    layer = SelfAttention(wq, wk, wv, normal(4, 6, seed=4), heads=2, causal=True)
    wide = normal(7, D, seed=5)
    return {"attention": layer, "function": lambda x: torch.softmax(x @ x.T, -1) @ x @ wide.T}


@pytest.mark.parametrize("name", ["attention", "function"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_gains_are_the_norms_of_the_blocks(name, dtype):
    f, x = maps()[name], normal(N, D)
    truth = torch.func.jacrev(f)(x)  # (n, d_out, n, d)
    blocks = torch.linalg.matrix_norm(truth.permute(0, 2, 1, 3), 2)
    rows = torch.linalg.matrix_norm(truth.flatten(2), 2)
    if dtype == torch.float32:
        if name == "function":
            return
        f, x = f.converted(dtype=dtype), x.to(dtype)
        truth = torch.func.jacrev(f.converted(dtype=torch.float64))(x.double())
        blocks = torch.linalg.matrix_norm(truth.permute(0, 2, 1, 3), 2)
        rows = torch.linalg.matrix_norm(truth.flatten(2), 2)
    found = gain_matrix(f, x)
    assert_close(found.value, blocks, 1e-10)
    assert_close(found.rows, rows, 1e-10)
    if name == "attention":
        assert torch.count_nonzero(found.value.triu(1)) == 0  # causal


@pytest.mark.parametrize("name", ["attention", "function"])
def test_the_largest_token_norm_is_between_its_sides(name):
    """With d = 1 the maximum over signs is exact; with d = 3, over many perturbations, a lower bound."""
    f, x = maps()[name], normal(N, D)
    J = torch.func.jacrev(f)(x)
    lower, upper = gain_matrix(f, x).token_norm
    e = torch.nn.functional.normalize(normal(20_000, N, D, seed=9), dim=-1)
    tried = torch.einsum("iajb,tjb->tia", J, e).norm(dim=-1).max()
    assert at_most(float(tried), upper) and at_most(lower, upper)
    assert at_most(float(tried), 1.0001 * lower)


def test_the_largest_token_norm_of_narrow_tokens_is_between_its_sides():
    wide = normal(4, 1, seed=2)

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ x.T, -1) @ x.sin() @ wide.T

    x = normal(N, 1, seed=3)
    J = torch.func.jacrev(f)(x)[..., 0]  # (n, d_out, n)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=N)), dtype=torch.float64)
    exact = float(torch.einsum("iaj,tj->tia", J, signs).norm(dim=-1).max())
    lower, upper = gain_matrix(f, x).token_norm
    assert at_most(lower, exact, upper) and at_most(0.99 * exact, lower)


def test_inputs_without_tokens_are_refused():
    with pytest.raises(InputError, match=r"tokens of shape \(n, d\), got \(3,\)"):
        gain_matrix(torch.sin, torch.ones(3))
    with pytest.raises(InputError, match="a row per token"):
        gain_matrix(lambda x: x.sum(0), torch.ones(3, 2))
