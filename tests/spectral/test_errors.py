"""Statuses and invalid arguments."""

from dataclasses import fields
from functools import partial

import pytest
import torch

from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz import local_lipschitz
from howsmooth.spectral import FunctionOperator, LinearOperator, MatrixOperator, Solver, restrict, singular_values
from howsmooth.spectral.solver import SolverOptions
from tests.oracles.spectra import SPECTRA, largest, matrix_with
from tests.tolerances import at_most, close, less


def test_step_limit_raises_with_the_partial_result():
    matrix = matrix_with(SPECTRA["flat"])
    with pytest.raises(NotConverged, match=r"step limit.*max_steps") as caught:
        singular_values(MatrixOperator(matrix), max_steps=5)
    partial = caught.value.partial
    assert partial.status == "step limit" and partial.steps == 5
    assert at_most(partial.lower, largest(matrix), partial.upper) and less(partial.upper, float("inf"))
    same = singular_values(MatrixOperator(matrix), max_steps=5, strict=False)
    assert close(same.upper, partial.upper)
    assert "max_steps" in same.remedy


def test_step_limit_on_the_residual():
    operator = MatrixOperator(matrix_with(SPECTRA["flat"]))
    found = singular_values(operator, stop="residual", max_steps=3, strict=False)
    assert found.status == "step limit"


@pytest.mark.parametrize("dtype, tol", [(torch.float32, 1e-7), (torch.float64, 1e-15)])
def test_precision_limit(dtype, tol):
    matrix = matrix_with(SPECTRA["separated"]).to(dtype)
    found = singular_values(MatrixOperator(matrix), tol=tol, strict=False)
    assert found.status == "precision limit"
    assert at_most(found.lower, largest(matrix), found.upper)
    with pytest.raises(NotConverged, match="float64"):
        singular_values(MatrixOperator(matrix), tol=tol)


def test_each_batch_member_has_its_own_status():
    matrices = torch.stack([matrix_with(SPECTRA[name])[:60, :60] for name in ("rank deficient", "clustered")])
    found = singular_values(MatrixOperator(matrices), max_steps=7, strict=False)
    assert found.status == ["converged", "step limit"]


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_non_finite_products_are_reported(poison):
    matrix = torch.eye(5)
    matrix[2, 3] = poison
    with pytest.raises(InputError, match="J v"):
        singular_values(MatrixOperator(matrix))
    with pytest.raises(InputError, match=r"batch member \(1, 0\);"):
        singular_values(MatrixOperator(torch.stack([torch.eye(5), matrix])[:, None]))
    adjoint = FunctionOperator(lambda v: v, lambda u: u * poison, (5, 5), dtype=torch.float32)
    with pytest.raises(InputError, match="Jᵀ u"):
        singular_values(adjoint)
    late = FunctionOperator(
        lambda v: v, lambda u: u, (5, 5), dtype=torch.float32, precise=lambda: MatrixOperator(matrix.double())
    )
    with pytest.raises(InputError, match="float64"):
        singular_values(late)


WRONG_OPTIONS = {"tol": 0, "confidence": 1.0, "stop": "soon", "max_steps": 0, "max_memory": 2.5, "seed": -1}


@pytest.mark.parametrize("call", [Solver, partial(singular_values, MatrixOperator(torch.eye(3)))])
def test_all_wrong_options_are_reported_at_once(call):
    with pytest.raises(InputError) as caught:
        call(**WRONG_OPTIONS)
    for name in WRONG_OPTIONS:
        assert f"expected {name}" in str(caught.value)


def test_all_other_wrong_arguments_are_reported_at_once():
    with pytest.raises(InputError) as caught:
        singular_values(MatrixOperator(torch.eye(3)), k=4, progress=3, product_dtype=torch.float32)
    for words in ("k from 1 to 3", "progress", "product_dtype only with a layer"):
        assert f"expected {words}" in str(caught.value)


def test_a_solver_and_its_fields_as_keywords_are_the_same():
    assert set(SolverOptions.__annotations__) == {field.name for field in fields(Solver)}
    operator = MatrixOperator(matrix_with(SPECTRA["flat"]))
    options = {"tol": 1e-2, "confidence": 0.9, "max_steps": 5, "seed": 3}
    solver, other = Solver(**options), Solver(**options | {"seed": 1})
    by_solver, by_keyword, by_both = (
        singular_values(operator, strict=False, **arguments)
        for arguments in ({"solver": solver}, options, {"solver": other, "seed": 3})
    )
    assert by_solver.seed == 3 and close(by_solver.confidence, 0.9) and by_solver.steps == 5
    for found in (by_keyword, by_both):
        assert close(found.upper, by_solver.upper) and found.seed == 3


def test_an_unknown_keyword_is_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'tolerance'"):
        singular_values(MatrixOperator(torch.eye(3)), tolerance=1e-3)
    with pytest.raises(TypeError, match="unexpected keyword argument 'tolerance'"):
        local_lipschitz(torch.tanh, torch.ones(2, 3), tolerance=1e-3)


def test_a_divided_confidence_holds_for_all():
    assert close(1 - Solver(confidence=0.9).divided(4).confidence, 0.025)


@pytest.mark.parametrize(
    "wrong",
    [{"k": 0}, {"k": True}, {"k": 1.0}, {"tol": float("nan")}, {"tol": "1e-3"}, {"confidence": 0}, {"seed": "a"}],
)
def test_each_wrong_argument(wrong):
    with pytest.raises(InputError, match="expected " + next(iter(wrong))):
        singular_values(MatrixOperator(torch.eye(3)), **wrong)


def test_invalid_operators():
    with pytest.raises(InputError, match="MatrixOperator"):
        singular_values(torch.eye(3))
    with pytest.raises(InputError, match="float32 or float64"):
        singular_values(MatrixOperator(torch.eye(3, dtype=torch.bfloat16)))
    with pytest.raises(InputError, match="positive sizes"):
        MatrixOperator(torch.ones(0, 3))
    with pytest.raises(InputError, match="rows, cols"):
        MatrixOperator(torch.ones(3))


def test_a_product_of_the_wrong_shape_or_dtype():
    with pytest.raises(InputError, match="matvec to return"):
        singular_values(FunctionOperator(lambda v: v[:-1], lambda u: u, (3, 3), dtype=torch.float32))
    with pytest.raises(InputError, match="rmatvec to return"):
        singular_values(FunctionOperator(lambda v: v, lambda u: u.double(), (3, 3), dtype=torch.float32))


def test_dense_is_refused_for_large_operators_and_correct_for_small_ones():
    big = FunctionOperator(lambda v: v, lambda u: u, (10**4, 10**4), dtype=torch.float32)
    with pytest.raises(InputError, match="dense"):
        big.dense()
    matrices = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    wrapped = FunctionOperator(
        MatrixOperator(matrices).matvec, MatrixOperator(matrices).rmatvec, (3, 4), dtype=torch.float32, batch=(2,)
    )
    assert torch.equal(wrapped.dense(), matrices)  # exact: products with unit vectors copy columns
    assert wrapped.precise() is None and "batch=(2,)" in repr(wrapped)
    with pytest.raises(NotImplementedError):
        LinearOperator((2, 2), dtype=torch.float32).matvec(torch.ones(2))


@pytest.mark.parametrize("rows", [[0, 0], [5], [-1], [], [[1]], [0.5], [True, False]])
def test_wrong_restrictions(rows):
    with pytest.raises(InputError, match="rows"):
        restrict(MatrixOperator(torch.eye(5)), rows=torch.tensor(rows))


def test_results_are_detached_from_weights_that_require_gradients():
    matrix = matrix_with(SPECTRA["separated"]).requires_grad_()
    found = singular_values(MatrixOperator(matrix), k=2)
    assert not found.v.requires_grad and not found.u.requires_grad


@pytest.mark.parametrize(
    "matrix, got",
    [
        (torch.ones(3, 3, dtype=torch.int64), "torch.int64"),
        ([[1.0]], "list"),
        (torch.ones(3, 3, dtype=torch.bool), "torch.bool"),
    ],
)
def test_a_matrix_without_a_floating_dtype_is_refused(matrix, got):
    with pytest.raises(InputError, match=f"tensor of a floating dtype, got {got}; convert it"):
        MatrixOperator(matrix)
