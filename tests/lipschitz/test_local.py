"""`local_lipschitz` for layers and for any callable, against dense references."""

import math

import numpy as np
import pytest
import scipy.sparse.linalg as sla
import torch

from howsmooth import InputError, NotConverged, SelfAttention, local_lipschitz
from howsmooth.attention import reference
from howsmooth.lipschitz import AutodiffJacobian
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import FLOAT32, assert_close, at_most, close


def sigma_1(matrix):
    return float(torch.linalg.svdvals(matrix.detach().double())[0])


@pytest.mark.parametrize("name", LAYERS)
def test_automatic_differentiation_gives_the_same_estimate(name):
    f, x = layer(name), normal(50, 4, 6)
    by_formula, by_autodiff = local_lipschitz(f, x, tol=1e-6), local_lipschitz(lambda y: f(y), x, tol=1e-6)
    assert math.isclose(by_formula.value, by_autodiff.value, rel_tol=1e-6)
    assert math.isclose(by_formula.relative, by_autodiff.relative, rel_tol=1e-6)


def test_scipy_finds_the_same_singular_values():
    f, x = layer("grouped"), normal(50, 4, 6)
    operator = f.jacobian(x)
    linear = sla.LinearOperator(
        operator.shape,
        dtype=np.float64,
        matvec=lambda v: operator.matvec(torch.from_numpy(v.reshape(-1))).numpy(),
        rmatvec=lambda u: operator.rmatvec(torch.from_numpy(u.reshape(-1))).numpy(),
    )
    theirs = sla.svds(linear, k=3, return_singular_vectors=False, rng=np.random.default_rng(0))
    ours = local_lipschitz(f, x, k=3, tol=1e-8).triplets.value.numpy()
    np.testing.assert_allclose(ours, np.sort(theirs)[::-1], rtol=1e-8)


def test_float32_interval_contains_the_float64_reference():
    f, x = layer("two heads").to(torch.float32), normal(50, 4, 6).float()
    truth = sigma_1(reference.jacobian(f, x))
    estimate = local_lipschitz(f, x)
    assert estimate.dtype == torch.float32 and estimate.status == "converged"
    assert at_most(estimate.lower, truth, estimate.upper)
    assert at_most(estimate.upper - estimate.lower, 1e-3 * estimate.value)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_measured_as_it_is_stored(half):
    f, x = layer("two heads").to(half), normal(50, 4, 6).to(half)
    estimate = local_lipschitz(f, x)
    assert at_most(estimate.lower, sigma_1(reference.jacobian(f, x)), estimate.upper)
    assert estimate.dtype == torch.float32


def test_direction_response_and_shares():
    f, x = layer("causal"), normal(50, 4, 6)
    estimate = local_lipschitz(f, x, tol=1e-8)
    assert estimate.direction.shape == (4, 6) and estimate.response.shape == (4, 5)
    assert_close(f.jacobian(x).matvec(estimate.direction.flatten()), estimate.value * estimate.response.flatten())
    assert_close(estimate.shares.sum(), torch.tensor(1.0, dtype=torch.float64))
    assert_close(estimate.shares, estimate.direction.norm(dim=-1) ** 2)


def test_finite_differences_agree_for_small_steps_only():
    f, x = layer("two heads"), normal(50, 4, 6)
    estimate = local_lipschitz(f, x)
    assert math.isclose(estimate.check(), estimate.value, rel_tol=1e-4)
    assert not math.isclose(estimate.check(eta=1.0), estimate.value, rel_tol=1e-2)  # far beyond linearity
    part = local_lipschitz(f, x, output_tokens=[2])
    assert math.isclose(part.check(), part.value, rel_tol=1e-4)
    single = local_lipschitz(f.converted(dtype=torch.float32), x.float())
    assert math.isclose(single.check(), single.value, rel_tol=1e-4)


def test_radii_and_relative_constant():
    f, x = layer("two heads"), normal(50, 4, 6)
    estimate = local_lipschitz(f, x)
    norms = x.norm(dim=-1)
    assert math.isclose(estimate.radius, norms.max(), rel_tol=1e-12)
    assert math.isclose(estimate.mean_radius, (norms**2).mean() ** 0.5, rel_tol=1e-12)
    assert math.isclose(estimate.relative, estimate.value * x.norm() / f(x).norm(), rel_tol=1e-12)


def test_record_contains_plain_numbers_under_the_common_names():
    record = local_lipschitz(layer("two heads"), normal(50, 4, 6)).as_record()
    assert set(record) >= {
        "value",
        "lower",
        "upper",
        "confidence",
        "residual",
        "status",
        "steps",
        "products",
        "dtype",
        "seconds",
        "seed",
        "relative",
        "radius",
        "mean_radius",
    }
    assert record.pop("notes") == []
    assert all(type(value) in (int, float, str) for value in record.values())
    assert record["dtype"] == "float64"


def test_selected_tokens_are_a_submatrix():
    f, x = layer("rotary"), normal(50, 4, 6)
    blocks = reference.jacobian(f, x).view(4, 5, 4, 6)
    estimate = local_lipschitz(f, x, tokens=[1, 3], output_tokens=torch.tensor([False, True, True, False]), tol=1e-6)
    truth = sigma_1(blocks[1:3][:, :, [1, 3]].reshape(10, 12))
    assert math.isclose(estimate.value, truth, rel_tol=1e-6)
    assert not estimate.direction[[0, 2]].any() and not estimate.response[[0, 3]].any()
    by_autodiff = local_lipschitz(lambda y: f(y), x, tokens=[1, 3], output_tokens=[1, 2], tol=1e-6)
    assert math.isclose(by_autodiff.value, truth, rel_tol=1e-6)


def test_a_batch_with_different_paddings():
    f, x = layer("causal"), normal(50, 2, 4, 6)
    padding = torch.tensor([[True, True, True, False], [True, True, True, True]])
    both = local_lipschitz(f, x, padding=padding, tol=1e-6)
    alone = [local_lipschitz(f, x[0, :3], tol=1e-6), local_lipschitz(f, x[1], tol=1e-6)]
    for together, single in zip(both, alone, strict=True):
        assert math.isclose(together.value, single.value, rel_tol=1e-6)
        assert math.isclose(together.relative, single.relative, rel_tol=1e-6)
        assert math.isclose(together.radius, single.radius)
        assert math.isclose(together.check(), together.value, rel_tol=1e-4)
        assert together.triplets.v.shape == (1, 24) and together.triplets.status == "converged"
    assert not both[0].direction[3].any()
    fewer = local_lipschitz(f, x, padding=padding, tokens=[1, 2, 3], output_tokens=[0, 2], k=2, tol=1e-6)
    for i, estimate in enumerate(fewer):
        real, dense = padding[i], reference.jacobian(f, x[i], padding[i]).view(4, 5, 4, 6)
        dense = dense[[0, 2]][:, :, [j for j in (1, 2, 3) if real[j]]].flatten(2).flatten(0, 1)
        assert_close(estimate.triplets.value, torch.linalg.svdvals(dense)[:2], 1e-6)
        assert math.isclose(estimate.check(), estimate.value, rel_tol=1e-4)


def test_outputs_of_another_shape_than_the_input():
    x = normal(1, 5, 8)
    copies = local_lipschitz(lambda y: torch.stack([y, 5 * y]), x, output_tokens=[0])
    assert math.isclose(copies.value, 26**0.5, rel_tol=1e-6) and copies.response.shape == (2, 5, 8)
    mean = local_lipschitz(lambda y: y.mean(0), x, tokens=[0])
    assert math.isclose(mean.value, 0.2, rel_tol=1e-6)
    with pytest.raises(InputError, match="no token axis"):
        local_lipschitz(lambda y: y.mean(0), x, output_tokens=[0])


def test_a_mask_of_two_axes_for_a_callable():
    x, mask = normal(1, 2, 3, 4), torch.tensor([[True, False, False], [False, True, True]])
    scale = torch.arange(1.0, 7.0, dtype=torch.float64).view(2, 3, 1)
    whole = local_lipschitz(lambda y: scale * y, x, tokens=mask, batched=False)
    assert math.isclose(whole.value, 6.0, rel_tol=1e-9) and not whole.direction[~mask].any()
    samples = local_lipschitz(lambda y: scale * y, x, tokens=mask)
    assert [estimate.value for estimate in samples] == pytest.approx([1.0, 6.0], rel=1e-9)
    assert [estimate.check() for estimate in samples] == pytest.approx([1.0, 6.0], rel=1e-6)
    assert not any(estimate.direction[~real].any() for estimate, real in zip(samples, mask, strict=True))


def test_interval_allows_for_rounding_without_a_float64_reference():
    f, x = layer("two heads").to(torch.float32), 30 * normal(50, 4, 6).float()  # scores in the tens of thousands
    stubborn = local_lipschitz(lambda y: f(y.float()).float(), x, strict=False)
    truth = sigma_1(reference.jacobian(f, x))
    assert at_most(stubborn.lower, truth, stubborn.upper)


def test_a_module_is_certified_through_its_float64_copy():
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    x = normal(1, 4, 5).float()
    estimate = local_lipschitz(module, x)
    truth = sigma_1(torch.func.jacrev(module.double())(x.double()).reshape(12, 20))
    assert at_most(estimate.lower, truth, estimate.upper)
    assert at_most(truth, estimate.lower, tol=1e-6)


def test_fused_attention_of_pytorch_is_differentiated():
    x = normal(1, 1, 2, 5, 4)
    estimate = local_lipschitz(lambda y: torch.nn.functional.scaled_dot_product_attention(y, y, y), x)
    truth = torch.func.jacrev(lambda y: reference.forward(y, y, y))(x[0])
    assert math.isclose(estimate.value, sigma_1(truth.reshape(40, 40)), rel_tol=1e-3)


def test_a_map_without_forward_mode_uses_double_backward():
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return 3 * ctx.saved_tensors[0] ** 2 * g

    operator = AutodiffJacobian(Cube.apply, torch.tensor([1.0, -2.0], dtype=torch.float64))
    assert_close(operator.dense(), torch.diag(torch.tensor([3.0, 12.0], dtype=torch.float64)))


def test_a_map_with_neither_is_refused():
    class Opaque(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        @torch.autograd.function.once_differentiable
        def backward(ctx, g):
            return 2 * g

    with pytest.raises(InputError, match="forward mode or double backward"):
        local_lipschitz(Opaque.apply, torch.ones(3))


def test_random_maps_and_broken_derivatives_are_refused():
    x, w = normal(1, 4, 6), normal(2, 6, 6)
    with pytest.raises(InputError, match="eval"):
        local_lipschitz(torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5)).double(), x)

    def hidden(y):
        with torch.no_grad():
            part = y @ w
        return y + part

    with pytest.raises(InputError, match="no_grad"):
        local_lipschitz(hidden, x)


def test_maps_that_refuse_float64_are_measured_in_their_own_dtype():
    def stubborn(y):
        assert y.dtype == torch.float32, "float32 only"
        return torch.tanh(y)

    refused = r"does not run in float64 \(AssertionError: float32 only.*\); "
    with pytest.warns(UserWarning, match=refused + "the interval allows for rounding without a reference"):
        estimate = local_lipschitz(stubborn, torch.zeros(2, 3))
    assert math.isclose(estimate.value, 1.0, rel_tol=1e-4) and estimate.lower <= 1 <= estimate.upper
    with pytest.warns(UserWarning, match=refused + "it is evaluated in float32"):
        assert math.isclose(estimate.check(1e-2), 1.0, rel_tol=1e-3)


@pytest.mark.parametrize("refusal", [RuntimeError, NotImplementedError, TypeError, ValueError, KeyError])
def test_the_error_of_a_map_that_refuses_float64_is_named(refusal):
    def stubborn(y):
        if y.dtype == torch.float64:
            raise refusal
        return torch.tanh(y)

    with pytest.warns(UserWarning, match=rf"does not run in float64 \({refusal.__name__}\)"):
        local_lipschitz(stubborn, torch.zeros(2, 3))


@pytest.mark.parametrize("error", [AttributeError, ZeroDivisionError, IndexError, MemoryError])
@pytest.mark.parametrize("casts", [False, True])
def test_an_error_in_float64_that_is_not_about_dtypes_is_raised(error, casts):
    def broken(y):
        if y.dtype == torch.float64:
            raise error("a mistake")
        return torch.tanh(y.bfloat16() if casts else y)

    with pytest.raises(error, match="a mistake") as raised:
        local_lipschitz(broken, torch.zeros(2, 3), strict=False)
    assert raised.value.__notes__ == ["It was raised when the map was evaluated in float64 instead of its own dtype."]


def test_not_converging_raises_or_returns_the_partial_estimate():
    f, x = layer("two heads"), normal(50, 4, 6)
    with pytest.raises(NotConverged) as caught:
        local_lipschitz(f, x, max_steps=2)
    partial = caught.value.partial
    lenient = local_lipschitz(f, x, max_steps=2, strict=False)
    assert close(partial.value, lenient.value) and lenient.status == "step limit" and "max_steps" in lenient.remedy
    assert at_most(lenient.lower, sigma_1(reference.jacobian(f, x)), lenient.upper)


def test_stop_on_residual_has_its_own_status():
    estimate = local_lipschitz(layer("two heads"), normal(50, 4, 6), stop="residual", tol=1e-2)
    assert estimate.status == "residual"
    assert at_most(estimate.residual, 1e-2 * estimate.value)


def test_a_constant_map_has_norm_zero():
    f = SelfAttention(normal(1, 3, 3), normal(2, 3, 3), torch.zeros(3, 3, dtype=torch.float64))
    estimate = local_lipschitz(f, normal(3, 4, 3))
    # exact: of a zero map all products are zero
    assert (estimate.value, estimate.lower, estimate.upper, estimate.status) == (0, 0, 0, "converged")


@pytest.mark.parametrize(
    ("f", "x", "options", "message"),
    [
        (layer("two heads"), torch.ones(4, 6, dtype=torch.int64), {}, "floating dtype"),
        (layer("two heads"), torch.ones(0, 6, dtype=torch.float64), {}, "non-empty"),
        (layer("two heads"), torch.full((4, 6), float("nan"), dtype=torch.float64), {}, "NaN"),
        (layer("two heads"), normal(1, 4, 6), dict(tokens=[4]), "from 0 to 3"),
        (layer("two heads"), normal(1, 4, 6), dict(tokens=[]), "indices from 0 to 3"),
        (layer("two heads"), normal(1, 4, 6), dict(tokens=torch.zeros(4, dtype=torch.bool)), "at least one real token"),
        (layer("two heads"), normal(1, 4, 6), dict(tol=0.0), "tol"),
        (layer("two heads"), normal(1, 4, 6), dict(confidence=1.0), "confidence"),
        (layer("two heads"), normal(1, 4, 6), dict(stop="soon"), "stop"),
        (layer("two heads"), normal(1, 4, 6), dict(tokens=[0], padding=torch.arange(4) > 0), "at least one real token"),
        (
            layer("two heads"),
            normal(1, 2, 4, 6),
            dict(padding=torch.tensor([[True] * 4, [False] * 4])),
            "every sequence",
        ),
        (lambda x: x.detach(), normal(1, 4, 6), {}, "depends on x"),
        (lambda x: (x, x), normal(1, 4, 6), {}, "one non-empty tensor"),
        (lambda x: x.sum(), normal(1, 4, 6), dict(output_tokens=[0]), "no token axis"),
        (lambda x: x / 0, normal(1, 4, 6), {}, "finite f"),
        (lambda x: x, normal(1, 6), dict(tokens=[0]), "second-to-last axis"),
        (lambda x: x, normal(1, 4, 6), dict(padding=torch.ones(4, dtype=torch.bool)), "only with a SelfAttention"),
        ("gpt2", normal(1, 4, 6), {}, "SelfAttention or a callable"),
    ],
)
def test_bad_input_is_refused_by_name(f, x, options, message):
    with pytest.raises(InputError, match=message):
        local_lipschitz(f, x, **options)


def test_float32_jacobian_is_within_the_float32_tolerance():
    f, x = layer("causal").to(torch.float32), normal(50, 4, 6).float()
    assert_close(f.jacobian(x).dense(), reference.jacobian(f, x), FLOAT32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e2, 1e4, 1e6, 1e7])
def test_scores_too_large_for_the_dtype_widen_the_interval(dtype, size):
    """For large tokens the last one is the argmax of three rows, and the norm is √3."""
    one = torch.ones(1, 1, dtype=dtype)
    x = size * torch.tensor([[-1.0], [0.5], [1.0], [2.0]], dtype=dtype)
    estimate = local_lipschitz(SelfAttention(one, one, one, scale=1.0), x, strict=False)
    assert estimate.lower <= 3**0.5 <= estimate.upper
    width = (estimate.upper - estimate.lower) / estimate.value
    assert width < 1.001e-3 if estimate.status == "converged" else width > 0.999e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_beyond_the_precision_are_refused(dtype):
    one = torch.ones(1, 1, dtype=dtype)
    with pytest.raises(InputError, match="scores with correct digits"):
        local_lipschitz(SelfAttention(one, one, one), 1e10 * torch.tensor([[-1.0], [0.5]], dtype=dtype))
