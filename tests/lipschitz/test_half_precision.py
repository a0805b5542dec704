"""Layers with products in half precision, emulated on a CPU, against dense float64 norms."""

import pytest
import torch

from howsmooth import Rotary, SelfAttention, local_lipschitz
from howsmooth.attention import reference
from howsmooth.attention.jacobian import abstract_jacobian
from howsmooth.errors import InputError
from howsmooth.lipschitz import mean_field_lipschitz
from howsmooth.spectral import plan
from tests.attention.cases import normal
from tests.oracles.half_precision import emulated_kernels
from tests.tolerances import at_most, close, less

HALF = [torch.float16, torch.bfloat16]
N, D, HEADS = 20, 32, 4


@pytest.fixture(autouse=True)
def kernels_on_the_cpu():
    with emulated_kernels():
        yield


def make_layer(seed=0, *, kv_heads=HEADS, scores=1.0, rotary=False, **options):
    """A random layer with d = 32 and four heads of width 8; scores have about this size."""
    width = kv_heads * D // HEADS
    shapes = dict(wq=(D, D), wk=(width, D), wv=(width, D), wo=(D, D))
    weights = {name: normal(10 * seed + i, *shape).float() / D**0.5 for i, (name, shape) in enumerate(shapes.items())}
    weights["wq"] *= scores
    if rotary:
        angle = torch.arange(N)[:, None] * torch.tensor([1.0, 0.5, 0.2, 0.1]).repeat(2)
        options["rotary"] = Rotary(angle.cos(), angle.sin())
    return SelfAttention(**weights, heads=HEADS, kv_heads=kv_heads, **options), normal(10 * seed + 9, N, D).float()


def dense_norm(f, x):
    return float(torch.linalg.matrix_norm(reference.jacobian(f, x), 2))


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(causal=True, kv_heads=2, rotary=True)], ids=str)
def test_layers_are_certified_to_one_per_cent(options, dtype):
    certified_in_half = 0
    for seed in range(6):
        f, x = make_layer(seed, **options)
        found = local_lipschitz(f, x, product_dtype=dtype, tol=1e-2)
        assert found.status == "converged" and at_most(found.lower, dense_norm(f, x), found.upper)
        assert at_most(found.width, 1e-2) and found.dtype == torch.float32
        certified_in_half += not found.notes
    assert certified_in_half >= 5 or dtype == torch.bfloat16


def test_the_products_are_those_of_half_precision():
    """The emulation rounds: its products differ from the exact ones by about a unit of rounding."""
    f, x = make_layer()
    exact = f.converted(dtype=torch.float64).jacobian(x.double())
    v, u = normal(50, N * D), normal(51, N * D)
    for dtype in HALF:
        rounded = f.jacobian(x, product_dtype=dtype)
        forward, adjoint = rounded.matvec(v.float()).double(), rounded.rmatvec(u.float()).double()
        for found, truth in ((forward, exact.matvec(v)), (adjoint, exact.rmatvec(u))):
            error = float((found - truth).norm() / truth.norm())
            assert less(0.1 * torch.finfo(dtype).eps, error, 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("exponent", [-40, -14, 9, 30])
def test_products_do_not_depend_on_the_size_of_vectors(exponent, dtype):
    """Unit vectors of a million tokens have entries near 2⁻¹⁴, which float16 would round to a few bits."""
    f, x = make_layer()
    operator = f.jacobian(torch.stack([x, 2 * x]), product_dtype=dtype)
    v = normal(50, 2, N * D).float()
    v[1] *= 2.0**-20  # each sequence has its own exponent
    for product in (operator.matvec, operator.rmatvec):
        assert torch.equal(product(v * 2.0**exponent), product(v) * 2.0**exponent)  # exact: powers of two throughout
        assert torch.isfinite(product(v)).all() and not product(torch.zeros_like(v)).any()


def test_large_values_that_float16_cannot_hold():
    f, x = make_layer(scores=1e-4)
    huge = f.replaced(wv=1e5 * f.wv)
    with pytest.raises(InputError, match=r"in torch.float16.*NaN or ∞.*bfloat16"):
        local_lipschitz(huge, x, product_dtype=torch.float16)
    found = local_lipschitz(huge, x, product_dtype=torch.bfloat16, tol=1e-2)
    assert at_most(found.lower, dense_norm(huge, x), found.upper)


def test_a_product_that_overflows_falls_back_to_float32():
    """Large keys and values: the cotangent of q overflows, although q, k, v and the scores do not."""
    f, x = make_layer(scores=1e-5)
    large = f.replaced(wk=1e4 * f.wk, wv=1e3 * f.wv)
    found = local_lipschitz(large, x, product_dtype=torch.float16, tol=1e-2)
    assert "not finite" in found.notes[0] and found.as_record()["notes"] == list(found.notes)
    assert found.status == "converged" and at_most(found.lower, dense_norm(large, x), found.upper)


def test_several_values_samples_and_tokens():
    f, x = make_layer(causal=True)
    dense = reference.jacobian(f, x)
    truth = torch.linalg.svdvals(dense)
    found = local_lipschitz(f, x, k=3, product_dtype=torch.float16, tol=1e-2)
    assert found.status == "converged"
    assert at_most(found.triplets.lower, truth[:3]) and at_most(truth[:3], found.triplets.upper)

    pair = local_lipschitz(f, torch.stack([x, 0.5 * x]), product_dtype=torch.float16, tol=1e-2)
    assert all(at_most(one.lower, dense_norm(f, y), one.upper) for one, y in zip(pair, (x, 0.5 * x), strict=True))

    found = local_lipschitz(f, x, tokens=torch.arange(5), product_dtype=torch.float16, tol=1e-2)
    assert at_most(found.lower, torch.linalg.matrix_norm(dense[:, : 5 * D], 2), found.upper)


def test_the_mean_field_constant():
    f, x = make_layer()
    logs = normal(70, N).float()
    exact = mean_field_lipschitz(f.converted(dtype=torch.float64), (x.double(), logs.double()), dense=True)
    found = mean_field_lipschitz(f, (x, logs), dense=False, product_dtype=torch.float16, tol=1e-2)
    assert at_most(found.lower, exact.value, found.upper) and at_most(found.width, 1e-2)


def test_stopping_on_the_residual_gives_no_upper_end():
    f, x = make_layer()
    found = local_lipschitz(f, x, product_dtype=torch.float16, stop="residual", tol=0.05)
    assert found.status == "lower bound only" and found.upper is None and at_most(found.lower, dense_norm(f, x))


def test_the_memory_of_the_deflated_vectors_is_planned():
    f, x = make_layer()
    operator = f.jacobian(x, product_dtype=torch.float16)
    planned, single = plan(operator), plan(f.jacobian(x, product_dtype=torch.float32))
    assert planned.fixed > single.fixed and plan(abstract_jacobian(f, N, torch.float16)).fixed == planned.fixed
    few = max(one.total - (one.stored - 5) * one.bytes_per_vector for one in (planned, single)) + operator.held
    found = local_lipschitz(f, x, product_dtype=torch.float16, tol=1e-2, max_memory=few)
    assert at_most(found.lower, dense_norm(f, x), found.upper)


def test_half_and_single_precision_agree():
    f, x = make_layer(causal=True)
    half, single = (local_lipschitz(f, x, product_dtype=dtype) for dtype in (torch.float16, torch.float32))
    assert close(half.value, single.value, 1e-3 * single.value)
