"""Rounding: flat spectra, scales near overflow and underflow, and inaccurate products."""

import pytest
import torch

from howsmooth.errors import InputError, NotConverged
from howsmooth.spectral import FunctionOperator, MatrixOperator, power_method, restrict, singular_values
from tests.oracles.spectra import SPECTRA, largest, matrix_with
from tests.tolerances import at_most, less


def diagonal(sigma, dtype):
    """diag(sigma) in dtype, with a float64 reference of the same numbers."""
    sigma = sigma.to(dtype)
    return FunctionOperator(
        lambda v: sigma * v,
        lambda u: sigma * u,
        (len(sigma),) * 2,
        dtype=dtype,
        precise=lambda: diagonal(sigma, torch.float64),
    )


@pytest.mark.parametrize("distance", [1.8e-4, 2.2e-4])
def test_a_nearly_flat_spectrum_is_not_mistaken_for_a_flat_one(distance):
    """The top value couples to the start by distance × component, often less than a unit of rounding."""
    sigma = torch.ones(10_000)
    sigma[7] += distance
    operator, truth = diagonal(sigma, torch.float32), sigma.max().item()
    missed = sum(singular_values(operator, seed=seed).upper.item() < truth for seed in range(150))
    assert missed <= 2  # 0.15 expected; about ten if the space were taken for invariant


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_termination_by_rounding_or_by_an_exact_zero(dtype):
    flat = singular_values(diagonal(torch.ones(10_000), dtype))
    assert flat.status == "converged" and flat.steps <= 2 and flat.lower <= 1 <= flat.upper
    for matrix, truth in ((torch.zeros(50, 50), 0.0), (torch.ones(50, 50), 50.0), (torch.eye(50)[:, :3], 1.0)):
        found = singular_values(MatrixOperator(matrix.to(dtype)))
        assert found.status == "converged" and at_most(found.lower, truth, found.upper)
        assert at_most(found.upper - found.lower, 1e-3 * truth)


def inaccurate(matrix, relative, **more):
    """J (1 + relative) in float32, without access to J itself."""
    applied = (matrix * (1 + relative)).float()
    return FunctionOperator(
        lambda v: (applied @ v[..., None])[..., 0],
        lambda u: (applied.mT @ u[..., None])[..., 0],
        tuple(matrix.shape[-2:]),
        batch=tuple(matrix.shape[:-2]),
        dtype=torch.float32,
        **more,
    )


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("relative", [1e-3, -1e-3])
@pytest.mark.parametrize("scale, stop", [(1.0, "interval"), (1e-30, "interval"), (1e30, "interval"), (1.0, "residual")])
def test_a_perturbed_operator_reveals_rounding(relative, k, scale, stop):
    """Products have an error of 1e-3, far more than any allowance: only the perturbed operator shows it."""
    matrix = scale * torch.stack([matrix_with(SPECTRA[name]) for name in ("separated", "repeated top")])
    truth = largest(matrix, k)
    operator = inaccurate(matrix, relative, perturbed=lambda: inaccurate(matrix, 0.0))
    found = singular_values(operator, k=k, tol=1e-4, strict=False, stop=stop)
    assert at_most(found.lower, truth) and at_most(truth, found.upper)
    assert found.status == ["precision limit" if stop == "interval" else "residual"] * 2
    assert (found.width[:, 0] < 0.1).all()
    unperturbed = singular_values(inaccurate(matrix, relative), k=k, tol=1e-4, strict=False)
    outside = torch.maximum(unperturbed.lower - truth, truth - unperturbed.upper) / truth
    assert (outside > 1e-6).any(dim=-1).all()


def test_a_perturbed_operator_never_narrows_the_interval():
    matrix = matrix_with(SPECTRA["separated"])
    bare = singular_values(inaccurate(matrix, 0.0))
    perturbed = singular_values(inaccurate(matrix, 0.0, perturbed=lambda: inaccurate(matrix, 0.0)))
    assert at_most(perturbed.lower, bare.lower) and at_most(bare.upper, perturbed.upper, tol=1e-6)
    assert perturbed.status == "converged" and perturbed.products > bare.products


def test_a_float64_reference_takes_precedence_over_a_perturbed_operator():
    matrix = matrix_with(SPECTRA["separated"])
    both = inaccurate(
        matrix, 0.0, precise=lambda: MatrixOperator(matrix.float().double()), perturbed=lambda: inaccurate(matrix, 0.5)
    )
    assert singular_values(both).status == "converged"


def test_a_restriction_is_perturbed_with_its_operator():
    matrix = matrix_with(SPECTRA["separated"])
    rows, cols = torch.tensor([3, 50, 7]), torch.arange(10, 30)
    part = restrict(inaccurate(matrix, 1e-3, perturbed=lambda: inaccurate(matrix, 0.0)), rows=rows, cols=cols)
    # exact: products with unit vectors copy columns
    assert torch.equal(part.perturbed().dense(), matrix.float()[rows][:, cols])
    found = singular_values(part, tol=1e-4, strict=False)
    assert at_most(found.lower, largest(matrix[rows][:, cols]), found.upper)
    assert restrict(inaccurate(matrix, 1e-3), rows=rows).perturbed() is None
    assert MatrixOperator(matrix).perturbed() is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(
    "dtype, scales",
    [
        (torch.float64, [1e-300, 1e-165, 1e-160, 1e-120, 1.0, 1e120, 1e160, 1e300]),
        (torch.float32, [1e-30, 1e-15, 1.0, 1e15, 1e30]),
    ],
)
def test_every_scale_in_range(dtype, scales, k):
    """One by one and in a batch, value, interval, residual and progress are as at scale one."""
    matrix = matrix_with(SPECTRA["separated"])
    truth = largest(matrix.to(dtype), k)
    every = torch.tensor(scales, dtype=torch.float64)
    matrices = (every[:, None, None] * matrix).to(dtype)
    together = singular_values(MatrixOperator(matrices), k=k)
    assert together.status == ["converged"] * len(scales)
    assert torch.allclose(together.value / every[:, None], truth.expand(len(scales), k), rtol=1e-3)
    for scale, member in zip(scales, matrices, strict=True):
        reports = []
        found = singular_values(
            MatrixOperator(member), k=k, progress=lambda *args, reports=reports: reports.append(args)
        )
        assert found.status == "converged"
        assert at_most(found.lower / scale, truth, tol=1e-6)
        assert at_most(truth, found.upper / scale, tol=1e-6)
        assert less(found.residual, 0.1 * found.value)
        assert reports[-1][1] == pytest.approx(found.value[-1].item(), rel=1e-3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [1e-165, 1e160])
def test_the_identity_near_overflow_and_underflow_of_float64(scale):
    operator = diagonal(torch.full((100,), scale, dtype=torch.float64), torch.float64)
    for found in (singular_values(operator), power_method(operator)):
        assert found.value.item() == pytest.approx(scale, rel=1e-12)
        assert less(0, found.lower) and at_most(found.lower, found.value, found.upper)


@pytest.mark.parametrize("dtype, scale", [(torch.float64, 1e-310), (torch.float32, 1e-40)])
def test_underflow_is_refused_without_a_reference(dtype, scale):
    operator = FunctionOperator(lambda v: scale * v, lambda u: scale * u, (9, 9), dtype=dtype)
    with pytest.raises(InputError, match=r"norm 0 or at least.*multiply"):
        singular_values(operator)


def in_bf16(matrix, declared=True):
    """J in float32 whose products round both factors to bf16, with J itself as reference unless `declared` is false."""
    stored, applied = matrix.float(), matrix.bfloat16().float()

    def times(a):
        return lambda v: (a @ v.bfloat16().float()[..., None])[..., 0]

    operator = FunctionOperator(
        times(applied),
        times(applied.mT),
        tuple(matrix.shape[-2:]),
        batch=matrix.shape[:-2],
        dtype=torch.float32,
        precise=(lambda: MatrixOperator(stored)) if declared else None,
    )
    if declared:
        operator.roundoff = torch.finfo(torch.bfloat16).eps
    return operator


@pytest.mark.parametrize("k", [1, 3])
def test_products_in_half_precision_have_to_be_declared(k):
    """Declared, they are certified by their reference (see `test_deflation`); undeclared, the interval is wrong."""
    matrix = matrix_with(SPECTRA["separated"])
    truth, wrong = largest(matrix.float(), k), 0
    for seed in range(5):
        found = singular_values(in_bf16(matrix), k=k, tol=1e-4, seed=seed)
        assert found.status == "converged" and at_most(found.lower, truth) and at_most(truth, found.upper)
        undeclared = singular_values(in_bf16(matrix, declared=False), k=k, tol=1e-4, strict=False, seed=seed)
        outside = torch.maximum(undeclared.lower - truth, truth - undeclared.upper) / truth
        wrong += undeclared.status == "contradicted" or bool((outside > 1e-6).any())  # at best it is noticed
    assert wrong


def test_half_precision_is_enough_for_a_coarse_interval():
    matrix = matrix_with(SPECTRA["separated"])
    found = singular_values(in_bf16(matrix), tol=0.1)
    assert found.status == "converged" and at_most(found.lower, largest(matrix), found.upper)


@pytest.mark.parametrize("k", [1, 3])
def test_stopped_on_the_residual_half_precision_has_no_upper_end(k):
    matrix = torch.stack([matrix_with(SPECTRA[name]) for name in ("separated", "repeated top")])
    found = singular_values(in_bf16(matrix), k=k, tol=0.05, stop="residual")
    assert found.status == ["lower bound only"] * 2 and "lower end" in found.remedy
    assert torch.isinf(found.upper).all()
    early = singular_values(in_bf16(matrix), k=k, tol=1e-6, stop="residual", max_steps=2, strict=False)
    assert set(early.status) <= {"step limit, lower bound only", "precision limit, lower bound only"}
    with pytest.raises(NotConverged, match=r"expected a relative residual of 1e-06, got .*only the lower end"):
        singular_values(in_bf16(matrix), k=k, tol=1e-6, stop="residual", max_steps=2)
    assert at_most(found.lower, largest(matrix, k)) and at_most(0.9 * largest(matrix, 1)[:, 0], found.lower[:, 0])


@pytest.mark.parametrize("precision, unit", [("highest", 2.0**-23), ("high", 2.0**-10), ("medium", 2.0**-7)])
def test_float32_products_that_pytorch_may_round_further(precision, unit):
    """It is measured against a float64 reference; where it is not measured there is no upper end."""
    matrix, before = matrix_with(SPECTRA["separated"]).float(), torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        operator = MatrixOperator(matrix)
        assert operator.roundoff == unit and MatrixOperator(matrix.double()).roundoff == 2.0**-52
        found = singular_values(operator, strict=False)
        assert at_most(found.lower, largest(matrix), found.upper)
        unmeasured = singular_values(operator, stop="residual", strict=False)
        assert torch.isinf(unmeasured.upper).all() == (precision != "highest")
    finally:
        torch.set_float32_matmul_precision(before)
