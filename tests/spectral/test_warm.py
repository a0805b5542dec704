"""Few steps from a good start: attained, exact at a singular vector, never below the value at the start."""

import pytest
import torch

from howsmooth.errors import InputError
from howsmooth.spectral import MatrixOperator, warm_triplet
from tests.oracles.spectra import SPECTRA, largest, matrix_with
from tests.tolerances import assert_close, at_most


def top(matrix):
    return largest(matrix)[..., 0]


def unit(*shape, seed=0):
    v = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return v / v.norm(dim=-1, keepdim=True)


@pytest.mark.parametrize("name", ["separated", "clustered", "tiny", "huge"])
def test_attained_and_no_less_than_the_start(name):
    matrix = matrix_with(SPECTRA[name])
    size, start = top(matrix), unit(matrix.shape[1])
    for steps in (1, 2, 5):
        sigma, u, v = warm_triplet(MatrixOperator(matrix), start, steps)
        assert_close((matrix @ v) / size, sigma * u / size)
        assert_close(v.norm(), torch.ones((), dtype=torch.float64))
        assert at_most((matrix @ start).norm(), sigma, size)


def test_the_value_is_the_best_in_the_krylov_space():
    """σ is the largest singular value of J on the span of the start and its images, computed densely."""
    matrix, start = matrix_with(SPECTRA["clustered"]), unit(60)
    for steps in (1, 2, 4):
        krylov = [start]
        for _ in range(steps - 1):
            w = matrix.mT @ (matrix @ krylov[-1])
            krylov.append(w / w.norm())
        basis = torch.linalg.qr(torch.stack(krylov, -1)).Q
        assert_close(warm_triplet(MatrixOperator(matrix), start, steps)[0], top(matrix @ basis), tol=1e-9)


def test_exact_from_a_singular_vector_and_close_from_near_it():
    matrix = matrix_with(SPECTRA["separated"])
    vh = torch.linalg.svd(matrix).Vh
    assert_close(warm_triplet(MatrixOperator(matrix), vh[0].clone(), 1)[0], top(matrix))
    near = warm_triplet(MatrixOperator(matrix), vh[0] + 0.1 * unit(60), 3)[0]
    assert near >= top(matrix) * (1 - 1e-4)


def test_a_batch_equals_its_members_and_a_zero_matrix_gives_zero():
    matrices = torch.stack([matrix_with(SPECTRA["separated"]), matrix_with(SPECTRA["clustered"])])
    matrices = torch.cat([matrices, torch.zeros(1, 60, 60, dtype=torch.float64)])
    start = unit(3, 60)
    sigma, u, v = warm_triplet(MatrixOperator(matrices), start)
    for i in range(2):
        alone = warm_triplet(MatrixOperator(matrices[i]), start[i])
        assert_close(sigma[i], alone[0])
        assert_close(v[i], alone[2], tol=1e-9)
    # exact: of a zero matrix all products are zero
    assert sigma[2] == 0 and not u[2].any() and torch.isfinite(v[2]).all()


def test_more_steps_than_dimensions():
    sigma, _, _ = warm_triplet(MatrixOperator(torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))), unit(2), 9)
    assert_close(sigma, torch.tensor(2.0, dtype=torch.float64))


@pytest.mark.parametrize(
    "start, steps, message",
    [
        (torch.zeros(60, dtype=torch.float64), 3, "not zero"),
        (unit(60), 0, "steps"),
        (unit(59), 3, r"\(60,\)"),
        (unit(60).float(), 3, "float64"),
    ],
)
def test_invalid_arguments(start, steps, message):
    with pytest.raises(InputError, match=message):
        warm_triplet(MatrixOperator(matrix_with(SPECTRA["clustered"])), start, steps)
