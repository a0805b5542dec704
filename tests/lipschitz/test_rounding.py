"""Intervals where rounding is largest: products without a float64 reference, and values that nearly cancel."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from howsmooth import local_lipschitz
from howsmooth.attention import SelfAttention
from howsmooth.lipschitz import mean_field_jacobian, mean_field_lipschitz, token_gains
from tests.tolerances import assert_close, at_most

N, D = 6, 8
Case = tuple[SelfAttention, Tensor]


def _weights(generator: torch.Generator, size: float) -> list[Tensor]:
    return [torch.randn(D, D, generator=generator) * size / math.sqrt(D) for _ in range(4)]


def _capped(generator: torch.Generator) -> Case:
    """Scores far beyond a soft cap: its slope 1 − tanh² loses its digits."""
    return SelfAttention(*_weights(generator, 10.0), heads=2, softcap=2.0), torch.randn(N, D, generator=generator)


def _saturated(generator: torch.Generator) -> Case:
    """Large scores: some tokens hardly matter, and J at these is far smaller than J."""
    return SelfAttention(*_weights(generator, 7.0), heads=2), torch.randn(N, D, generator=generator)


def _cancelling(generator: torch.Generator) -> Case:
    """Biases that cancel a large common part of the tokens."""
    wq, wk, wv, wo = _weights(generator, 1.0)
    shift = 300 * torch.randn(D, generator=generator)
    biases = {name: -(w @ shift) for name, w in (("bq", wq), ("bk", wk), ("bv", wv))}
    return SelfAttention(wq, wk, wv, wo, heads=2, **biases), torch.randn(N, D, generator=generator) + shift


def _tiny(generator: torch.Generator) -> Case:
    """Tokens and weights whose products are near the smallest numbers of float32."""
    wq, wk, wv, wo = _weights(generator, 3.0)
    return SelfAttention(wq, wk, wv, 1e-30 * wo, heads=2), 1e-20 * torch.randn(N, D, generator=generator)


def _truth(f: SelfAttention, x: Tensor, tokens: list[int]) -> float:
    """Return the norm of the columns of `tokens`, of the map that float32 stores, in float64."""
    jacobian = f.converted(dtype=torch.float64).jacobian(x.double()).dense()
    columns = jacobian.unflatten(1, (N, D))[:, tokens].flatten(1)
    return float(torch.linalg.matrix_norm(columns, ord=2))


@pytest.mark.parametrize("tokens", [list(range(N)), [1, 2]], ids=["all", "two"])
@pytest.mark.parametrize("case", [_capped, _saturated, _cancelling, _tiny])
def test_products_without_a_reference(case: Callable[[torch.Generator], Case], tokens: list[int]) -> None:
    for seed in range(40):
        f, x = case(torch.Generator().manual_seed(seed))
        found = local_lipschitz(f, x, product_dtype=torch.float32, strict=False, tokens=tokens, batched=False)
        truth = _truth(f, x, tokens)
        assert at_most(found.lower, truth), (seed, found, truth)
        assert found.upper is None or at_most(truth, found.upper), (seed, found, truth)


@pytest.mark.parametrize("bias", [1e8, 1e12])
def test_a_large_value_bias_takes_no_digits(bias: float) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        wq, wk = (torch.randn(D, D, generator=generator, dtype=torch.float64) for _ in range(2))
        x = torch.randn(N, D, generator=generator, dtype=torch.float64)
        plain = SelfAttention(wq, wk, torch.eye(D, dtype=torch.float64))
        truth = float(torch.linalg.matrix_norm(plain.jacobian(x).dense(), ord=2))
        found = local_lipschitz(plain.replaced(bv=torch.full((D,), bias, dtype=torch.float64)), x, batched=False)
        assert at_most(found.lower, truth)
        assert found.upper is not None
        assert at_most(truth, found.upper)


@pytest.mark.parametrize("bias", [1e8, 1e12])
def test_a_large_value_bias_takes_no_digits_of_token_gains(bias: float) -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        wq, wk = (torch.randn(D, D, generator=generator, dtype=torch.float64) for _ in range(2))
        x = torch.randn(N, D, generator=generator, dtype=torch.float64)
        plain = SelfAttention(wq, wk, torch.eye(D, dtype=torch.float64))
        columns = plain.jacobian(x).dense().unflatten(1, (N, D)).transpose(0, 1)
        truth = torch.linalg.matrix_norm(columns, ord=2)
        found = token_gains(plain.replaced(bv=torch.full((D,), bias, dtype=torch.float64)), x)
        assert at_most(found.lower, truth)
        assert at_most(truth, found.upper)


def _on_a_grid(generator: torch.Generator, *shape: int) -> Tensor:
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) * 2**20).round() / 2**20


@pytest.mark.parametrize("shift", [2.0**20, 2.0**27])
def test_a_common_part_of_the_tokens_takes_digits_in_float64(shift: float) -> None:
    """Rows of the weights sum to 0: the shift cancels in exact arithmetic, after products that are rounded."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        weights = [_on_a_grid(generator, D, D) for _ in range(3)]
        for w in weights:
            w[:, -1] -= w.sum(1)
        x = _on_a_grid(generator, N, D)  # and x + shift is exact
        f = SelfAttention(*weights, heads=2)
        truth = float(torch.linalg.matrix_norm(f.jacobian(x).dense(), ord=2))
        found = local_lipschitz(f, x + shift, tol=1e-9, strict=False, batched=False)
        assert at_most(found.lower, truth)
        assert found.upper is not None
        assert at_most(truth, found.upper)


@pytest.mark.parametrize(
    "options",
    [{"dense": True}, {"dense": False}, {"dense": False, "product_dtype": torch.float32}],
    ids=["dense", "reference", "none"],
)
@pytest.mark.parametrize("case", [_saturated, _cancelling, _tiny])
def test_measures_in_float32(case: Callable[[torch.Generator], Case], options: dict) -> None:
    """The masses are those of the log weights as given, however their normalised logarithms round."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        f, x = case(generator)
        log_weights = torch.randn(N, generator=generator)
        found = mean_field_lipschitz(f, (x, log_weights), strict=False, **options)
        exact = mean_field_jacobian(f.converted(dtype=torch.float64), x.double(), log_weights.double())
        truth = float(torch.linalg.matrix_norm(exact.dense(), ord=2))
        assert at_most(found.lower, truth), (seed, found, truth)
        assert found.upper is None or at_most(truth, found.upper), (seed, found, truth)


def test_values_that_do_not_depend_on_the_tokens() -> None:
    w, x = torch.eye(D, dtype=torch.float64), torch.randn(N, D, dtype=torch.float64)
    f = SelfAttention(w, w, 0 * w, bv=torch.arange(1.0, D + 1, dtype=torch.float64))
    found = local_lipschitz(f, x, batched=False)
    assert (found.lower, found.upper) == (0, 0)  # exact: all products are zero


def test_constants_that_differ_in_float64() -> None:
    """A sum that Python rounds differently in float32 and in float64: the interval contains both factors."""
    for seed in range(40):
        a = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
        found = local_lipschitz(lambda z, a=a: z * torch.tensor(float(a.sum())), torch.ones(4, 3), batched=False)
        for factor in (abs(float(a.sum())), abs(float(a.double().sum()))):
            assert at_most(found.lower, factor)
            assert found.upper is not None
            assert at_most(factor, found.upper)


CONSTANTS: dict[str, Callable[[float], Tensor]] = {
    "tensor": torch.tensor,
    "as_tensor": torch.as_tensor,
    "asarray": torch.asarray,
    "scalar_tensor": torch.scalar_tensor,
    "full": lambda c: torch.full((3,), c),
    "linspace": lambda c: torch.linspace(c, c, 3),
    "list": lambda c: torch.tensor([c, c, c]),
}


@pytest.mark.parametrize("make", CONSTANTS.values(), ids=CONSTANTS)
def test_constants_that_are_made_of_numbers(make: Callable[[float], Tensor]) -> None:
    """A sum that cancels: in float64 its value is not rounded to float32 again when a tensor is made of it."""
    for seed in range(20):
        a = torch.randn(1000, generator=torch.Generator().manual_seed(seed))
        a -= 0.99 * a.mean()
        found = local_lipschitz(lambda z, a=a: z * make(float(a.sum())), torch.ones(4, 3), strict=False, batched=False)
        for factor in (abs(float(a.sum())), abs(float(a.double().sum()))):
            assert at_most(found.lower, factor)
            assert found.upper is not None
            assert at_most(factor, found.upper)


@pytest.mark.parametrize("projected", [True, False])
def test_the_moved_derivative_differs_by_rounding_alone(projected: bool) -> None:
    """It is made head by head, with and without an output projection, and with heads that share keys and values."""
    generator = torch.Generator().manual_seed(0)
    wq, _, _, wo = _weights(generator, 1.0)
    wk, wv = (torch.randn(D // 2, D, generator=generator) for _ in range(2))
    f = SelfAttention(wq, wk, wv, wo if projected else None, heads=4, kv_heads=2, causal=True)
    x = torch.randn(2, N, D, generator=generator)
    jacobian = f.jacobian(x, product_dtype=torch.float32)
    moved = jacobian.perturbed()
    assert moved is not None
    dense = jacobian.dense()
    assert_close(moved.dense(), dense, tol=1e-5)
    assert float((moved.dense() - dense).abs().max()) > 0
    u = torch.randn(2, jacobian.shape[0], generator=generator)
    assert_close(moved.rmatvec(u), (u[:, None] @ dense)[:, 0], tol=1e-5)
