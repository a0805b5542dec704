"""One rule for batches: three axes are a batch of independent samples for every map, unless `batched` overrides it."""

import inspect
import math
import typing

import pytest
import torch

from howsmooth import Estimate, InputError, local_lipschitz
from howsmooth.lipschitz import jacobian
from howsmooth.spectral.solver import SolverOptions
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import FLOAT32, assert_close, at_most


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6)])
@pytest.mark.parametrize("batched", [None, False])
def test_a_layer_and_a_function_that_calls_it_give_the_same_estimates(name, shape, batched):
    f, x = layer(name), normal(50, *shape)
    by_formula = local_lipschitz(f, x, tol=1e-6, batched=batched)
    by_autodiff = local_lipschitz(lambda y: f(y), x, tol=1e-6, batched=batched)
    assert isinstance(by_formula, list) == isinstance(by_autodiff, list) == (len(shape) == 3 and batched is None)
    pairs = zip(by_formula, by_autodiff, strict=True) if isinstance(by_formula, list) else [(by_formula, by_autodiff)]
    for one, other in pairs:
        for attribute in ("value", "lower", "upper", "relative", "radius", "mean_radius"):
            assert math.isclose(getattr(one, attribute), getattr(other, attribute), rel_tol=1e-6)
        assert one.status == other.status and one.dtype == other.dtype
        assert one.direction.shape == other.direction.shape and one.response.shape == other.response.shape
        assert_close(one.shares, other.shares, 1e-3)
        assert math.isclose(one.check(), other.check(), rel_tol=1e-6)


def test_each_sample_of_a_batch_has_the_estimate_of_the_sample_alone():
    torch.manual_seed(0)
    module = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = normal(1, 3, 5, 8).float()
    for together, sample in zip(local_lipschitz(module, x), x, strict=True):
        alone = local_lipschitz(module, sample)
        assert at_most(together.lower, alone.upper) and at_most(alone.lower, together.upper)
        assert together.direction.shape == sample.shape
        assert math.isclose(together.check(), together.value, rel_tol=1e-3)


def test_a_batch_of_one_is_a_list_of_one():
    (only,) = local_lipschitz(torch.sin, torch.zeros(1, 4, 3, dtype=torch.float64))
    assert math.isclose(only.value, 1.0, rel_tol=1e-9) and only.direction.shape == (4, 3)


def test_batched_is_meant_for_any_number_of_axes():
    x = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    rows = local_lipschitz(torch.sin, x, batched=True)
    assert [float(estimate) for estimate in rows] == pytest.approx([1.0, math.cos(1)])
    images = local_lipschitz(torch.sin, x.view(2, 1, 1, 2), batched=True)
    assert [float(estimate) for estimate in images] == pytest.approx([1.0, math.cos(1)])
    pooled = local_lipschitz(lambda y: y.sum((1, 2)), normal(1, 3, 2, 2))  # one number per sample
    assert [float(estimate) for estimate in pooled] == pytest.approx([2.0] * 3)


def test_batched_false_is_one_input():
    f, x = layer("causal"), normal(50, 3, 4, 6)
    whole = local_lipschitz(f, x, batched=False, tol=1e-6)
    samples = local_lipschitz(f, x, tol=1e-6)
    assert math.isclose(whole.value, max(estimate.value for estimate in samples), rel_tol=1e-6)
    assert whole.direction.shape == x.shape


def shifted(y):
    return y + 1e-6 * y.roll(1, 0)


@pytest.mark.parametrize(
    "f",
    [
        lambda y: y.flip(0),
        lambda y: y - y.mean(0),
        lambda y: y[:1].sin() + y,
        shifted,
        lambda y: y.flatten(1).T,
        lambda y: y.sum(),
        torch.nn.BatchNorm1d(4, track_running_stats=False).double(),
    ],
    ids=["flip", "mean", "first", "small", "transposed", "sum", "batch norm"],
)
def test_samples_that_depend_on_each_other_are_refused(f):
    x = normal(1, 3, 4, 6)
    with pytest.raises(InputError, match="batched=False"):
        local_lipschitz(f, x)
    assert local_lipschitz(f, x, batched=False).value > 0


def test_forward_mode_is_not_needed_for_a_batch():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] ** 2 * g

    x = normal(1, 2, 3, 4)
    found = local_lipschitz(Cube.apply, x)
    assert_close(torch.tensor([float(estimate) for estimate in found]), 3 * x.flatten(1).abs().amax(1) ** 2, FLOAT32)


def test_operators_of_a_batch_are_the_diagonal_blocks():
    x = normal(1, 2, 3, 2)
    J = jacobian(lambda y: y.cumsum(1).sin(), x)
    assert J.batch == (2,) and J.shape == (6, 6)
    blocks = torch.stack([jacobian(lambda y: y.cumsum(0).sin(), sample).dense() for sample in x])
    assert_close(J.dense(), blocks)
    assert_close(J.perturbed().dense(), blocks, 1e-12)


def test_padding_and_product_dtype_are_refused_for_a_batch_that_is_one_input():
    f, x = layer("two heads"), normal(1, 2, 4, 6)
    with pytest.raises(InputError, match="padding"):
        local_lipschitz(f, x, batched=False, padding=torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(InputError, match="product_dtype"):
        local_lipschitz(f, x, batched=False, product_dtype=torch.float64)


@pytest.mark.parametrize("shape", [(4, 6), (3, 4, 6)])
def test_the_annotated_types_are_returned(shape):
    """`batched` determines the type of the result; the overloads take the other arguments of the function."""
    f, x = layer("two heads"), normal(50, *shape)
    for g in (f, torch.tanh):
        assert isinstance(local_lipschitz(g, x, batched=False), Estimate)
    assert isinstance(local_lipschitz(torch.tanh, x, batched=True), list)
    single, batch, either = typing.get_overloads(local_lipschitz)
    names = {*inspect.signature(local_lipschitz).parameters, *SolverOptions.__annotations__}
    names -= {"f", "x", "batched", "options"}
    for overload in (single, batch, either):
        (options,) = typing.get_args(typing.get_type_hints(overload)["options"])
        assert names == options.__optional_keys__
