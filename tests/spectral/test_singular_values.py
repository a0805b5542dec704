"""Certified singular values against a dense SVD, on prescribed spectra."""

import itertools

import numpy as np
import pytest
import scipy.sparse.linalg
import torch

from howsmooth.spectral import FunctionOperator, MatrixOperator, restrict, singular_values
from tests.oracles.spectra import SPECTRA, largest, matrix_with
from tests.tolerances import at_most, close, less

DTYPES = [torch.float64, torch.float32]


def assert_triplets(matrix, found, tol):
    """Interval, accuracy, orthonormality and J v = σ u, Jᵀu = σ v + r, all against the dense matrix."""
    k = found.value.shape[-1]
    truth = largest(matrix, k)
    top = truth[..., :1]
    wide = 4 * torch.finfo(found.dtype).eps * matrix.shape[-1] ** 0.5
    assert at_most(found.lower, truth) and at_most(truth, found.upper)
    assert at_most((found.value - truth).abs(), tol * truth + wide * top)
    J, u, v = matrix.double(), found.u.double(), found.v.double()
    eye = torch.eye(k, dtype=torch.float64)
    assert torch.allclose(v @ v.mT, eye.expand(v.shape[:-2] + eye.shape), atol=wide)
    assert torch.allclose(u @ u.mT, eye.expand(u.shape[:-2] + eye.shape), atol=wide)
    forward = (v @ J.mT - found.value[..., None] * u).norm(dim=-1)
    adjoint = (u @ J - found.value[..., None] * v).norm(dim=-1)
    assert at_most(forward, 2 * wide * top)
    assert at_most((adjoint - found.residual).abs(), 2 * wide * top)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", SPECTRA)
def test_dense_svd_agrees_on_every_spectrum(name, dtype):
    matrix = matrix_with(SPECTRA[name]).to(dtype)
    found = singular_values(MatrixOperator(matrix))
    assert_triplets(matrix, found, tol=1e-3)
    assert found.status == "converged"
    assert found.width.item() <= 1e-3


def test_assert_triplets_can_fail():
    matrix = matrix_with(SPECTRA["separated"])
    found = singular_values(MatrixOperator(matrix), k=2)
    for wrong in (matrix * 1.01, matrix * 0.99, matrix.mT, matrix.flip(0)):
        with pytest.raises(AssertionError):
            assert_triplets(wrong, found, tol=1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(90, 60), (60, 90), (1, 60), (60, 1), (1, 1), (2, 3)])
def test_every_shape(shape, dtype):
    matrix = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(dtype)
    found = singular_values(MatrixOperator(matrix), tol=1e-4)
    assert_triplets(matrix, found, tol=1e-4)
    assert found.status == "converged"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["separated", "clustered", "repeated top", "rank deficient", "all equal", "huge"])
def test_top_k(name, dtype):
    matrix = matrix_with(SPECTRA[name], rows=len(SPECTRA[name]) + 7).to(dtype)
    found = singular_values(MatrixOperator(matrix), k=4)
    assert_triplets(matrix, found, tol=1e-3)
    assert found.status == "converged"


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_values_than_the_rank(dtype):
    matrix = matrix_with(np.r_[3.0, 1.0, np.zeros(28)]).to(dtype)
    found = singular_values(MatrixOperator(matrix), k=4)
    assert found.status == "converged"
    assert torch.allclose(found.value, torch.tensor([3.0, 1.0, 0.0, 0.0], dtype=torch.float64), atol=1e-5)
    assert (found.upper[2:] <= 3e-3).all()


def test_all_values_of_a_small_matrix():
    matrix = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_triplets(matrix, singular_values(MatrixOperator(matrix), k=4, tol=1e-8), tol=1e-8)


@pytest.mark.parametrize("name", ["separated", "clustered", "flat"])
def test_scipy_agrees(name):
    matrix = matrix_with(SPECTRA[name], rows=70 if len(SPECTRA[name]) == 60 else None)
    found = singular_values(MatrixOperator(matrix), k=3, tol=1e-6)
    second = scipy.sparse.linalg.svds(matrix.numpy(), k=3, return_singular_vectors=False, rng=0)
    np.testing.assert_allclose(found.value.numpy(), np.sort(second)[::-1], rtol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_equals_its_members(dtype):
    spectra = ["separated", "clustered", "repeated top", "rank deficient", "tiny", "huge"]
    matrices = torch.stack([matrix_with(SPECTRA[name]) for name in spectra] + [torch.zeros(60, 60).double()])
    matrices = torch.stack([matrices, 3 * matrices.mT]).to(dtype)  # batch (2, 7), of many scales and depths
    together = singular_values(MatrixOperator(matrices), k=2)
    assert_triplets(matrices.flatten(0, 1), _flat(together), tol=1e-3)
    assert together.status == ["converged"] * 14
    for i, j in ((0, 1), (0, 4), (1, 2), (1, 5), (1, 6)):
        alone = singular_values(MatrixOperator(matrices[i, j]), k=2)
        assert torch.allclose(alone.value, together.value[i, j], rtol=1e-3, atol=0)


def _flat(found):
    parts = {n: getattr(found, n).flatten(0, 1) for n in ("value", "lower", "upper", "residual", "u", "v")}
    return type(found)(**{**found.__dict__, **parts})


def test_stopping_on_the_residual_is_earlier_and_has_its_status():
    matrix = matrix_with(SPECTRA["separated"], cols=600, rows=300)
    by_interval = singular_values(MatrixOperator(matrix), tol=1e-2)
    by_residual = singular_values(MatrixOperator(matrix), tol=1e-2, stop="residual")
    assert by_residual.status == "residual"
    assert by_residual.steps < by_interval.steps
    assert at_most(by_residual.residual, 1e-2 * by_residual.value)
    assert_triplets(matrix, by_residual, tol=1e-2)


def test_without_a_float64_reference_the_interval_is_wider():
    matrix = matrix_with(SPECTRA["separated"]).float()
    operator = FunctionOperator(lambda v: matrix @ v, lambda u: u @ matrix, (60, 60), dtype=torch.float32)
    bare = singular_values(operator, tol=1e-4)
    measured = singular_values(MatrixOperator(matrix), tol=1e-4)
    assert_triplets(matrix, bare, tol=1e-4)
    allowance = 120**0.5 * torch.finfo(torch.float32).eps
    assert bare.value - bare.lower == pytest.approx(allowance * bare.value.item(), rel=1e-6)
    assert less(measured.value - measured.lower, 1e-10 * measured.value)


def test_a_float64_reference_reveals_a_wrong_float32_operator():
    """An operator that differs by 1 % from its reference must not be certified to 0.1 %."""
    matrix = matrix_with(SPECTRA["separated"])
    wrong = (0.99 * matrix).float()
    operator = FunctionOperator(
        lambda v: wrong @ v, lambda u: u @ wrong, (60, 60), dtype=torch.float32, precise=lambda: MatrixOperator(matrix)
    )
    found = singular_values(operator, strict=False)
    assert found.status == "precision limit"
    assert at_most(found.lower, largest(matrix), found.upper)


def test_restricted_operator():
    matrix = matrix_with(SPECTRA["separated"])
    rows, cols = torch.tensor([3, 50, 7, 20]), torch.arange(10, 30)
    part = restrict(MatrixOperator(matrix.float()), rows=rows, cols=cols)
    assert torch.equal(part.dense(), matrix.float()[rows][:, cols])  # exact: products with unit vectors copy columns
    assert_triplets(matrix.float()[rows][:, cols], singular_values(part, k=2), tol=1e-3)


def test_the_seed_determines_the_result():
    matrix = matrix_with(SPECTRA["flat"])
    one, same, other = (singular_values(MatrixOperator(matrix), seed=s) for s in (5, 5, 6))
    assert close(one.v, same.v) and close(one.upper, same.upper)
    assert not close(one.v, other.v)
    generator = torch.Generator().manual_seed(9)
    assert singular_values(MatrixOperator(matrix), seed=generator).seed == 9


def test_the_start_differs_from_data_of_the_same_seed():
    """J = x xᵀ⊥-like with x drawn from the same seed: the start must not be x."""
    x = torch.randn(400, generator=torch.Generator().manual_seed(0)).double()
    x /= x.norm()
    matrix = torch.eye(400).double() - torch.outer(x, x)  # from the start x all products are zero
    found = singular_values(MatrixOperator(matrix), seed=0)
    assert found.value.item() == pytest.approx(1.0, rel=1e-6)


def test_progress_reports_a_shrinking_interval():
    matrix = matrix_with(SPECTRA["flat"])
    reports = []
    singular_values(MatrixOperator(matrix), progress=lambda *args: reports.append(args))
    steps, lowers, uppers = zip(*reports, strict=True)
    assert list(steps) == sorted(set(steps))
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(lowers))
    assert all(a >= b * (1 - 1e-12) for a, b in itertools.pairwise(uppers))
    assert lowers[-1].shape == ()


def test_the_repr_is_short_and_shows_six_digits():
    """Values, intervals, status and cost; neither vectors nor whole tensors."""
    diagonal = torch.diag(torch.tensor([2.0, 1.0, 0.5], dtype=torch.float64))
    text = repr(singular_values(MatrixOperator(diagonal / 3), k=2, tol=1e-8))
    assert "σ1 = 0.666667 in [0.666667, 0.666667]" in text and "σ2 = 0.333333" in text
    assert "converged; confidence 0.999" in text and "tensor" not in text and len(text.splitlines()) == 4


def test_the_repr_of_a_batch_is_short():
    matrices = torch.eye(4, dtype=torch.float64).expand(10, 4, 4)
    text = repr(singular_values(MatrixOperator(matrices)))
    assert "[5] σ1 = 1 in [" in text and "[6]" not in text and "and 4 more" in text and "converged (10)" in text
