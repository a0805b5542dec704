"""Products in half precision: the spectral gap absorbs their rounding, or the reference solves again."""

import numpy as np
import pytest
import torch
from scipy.stats import binom

from howsmooth.spectral import FunctionOperator, MatrixOperator, deflation, plan, singular_values
from howsmooth.spectral.deflation import DeflatedSolve, joint_bound
from tests.oracles.spectra import SPECTRA, largest, matrix_with
from tests.tolerances import at_most, close, less

HALF = [torch.float16, torch.bfloat16]


def in_half(matrix, dtype, applied=None):
    """J in float32, whose products round all factors to half precision; J and Jᵀ are rounded in different units.

    So the products are neither linear nor those of a matrix and its transpose. `applied` is multiplied in place of J.
    """
    stored = matrix.float()
    applied = stored if applied is None else applied.float()
    count = dict(half=0, float32=0)

    def times(a, unit):
        rounded = (a / unit).to(dtype).float() * unit

        def product(v):
            count["half"] += 1
            return (rounded @ v.to(dtype).float()[..., None])[..., 0]

        return product

    def reference():
        operator = MatrixOperator(stored)
        for name in ("matvec", "rmatvec"):
            setattr(operator, name, counted(getattr(operator, name)))
        return operator

    def counted(product):
        def call(v):
            count["float32"] += 1
            return product(v)

        return call

    operator = FunctionOperator(
        times(applied, 1.0),
        times(applied.mT, 3.0),
        tuple(matrix.shape[-2:]),
        batch=tuple(matrix.shape[:-2]),
        dtype=torch.float32,
        precise=reference,
    )
    operator.roundoff = torch.finfo(dtype).eps
    return operator, count


def gapped(ratio, n=300, seed=0):
    """A matrix with σ₁ = 1 and λ₂/λ₁ = ratio, and then a decay like that of a layer."""
    rest = ratio**0.5 * (1 + 0.2 * np.arange(n - 1)) ** -1.0
    return matrix_with(np.concatenate([[1.0], rest]), seed=seed)


def truth_of(matrix, k=1):
    return largest(matrix.float(), k)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_joint_bound_holds_for_any_vectors(count):
    """Against dense eigenvalues, for accurate and for random vectors; for one vector the bound is an eigenvalue."""
    generator = torch.Generator().manual_seed(count)
    for seed in range(40):
        j = matrix_with(SPECTRA["separated"][:20], seed=seed) / 10
        m = (j.mT @ j).numpy()
        noise = torch.randn(20, count, dtype=torch.float64, generator=generator).numpy() * 10.0 ** -(seed % 5)
        v = np.linalg.qr(np.linalg.eigh(m)[1][:, ::-1][:, :count] + noise)[0]
        values, rotation = np.linalg.eigh(v.T @ m @ v)
        v, values = v @ rotation[:, ::-1], values[::-1]
        residuals = np.linalg.norm(m @ v - v * values, axis=0)
        q = np.eye(20) - v @ v.T
        rest = np.linalg.eigvalsh(q @ m @ q)[-1:]
        bounds = joint_bound(values[None], residuals[None], rest)[0]
        assert at_most(np.linalg.eigvalsh(m)[::-1][:count].copy(), bounds) and at_most(values.copy(), bounds)
        if count == 1:
            block = np.array([[values[0], residuals[0]], [residuals[0], rest[0]]])
            assert close(bounds, np.linalg.eigvalsh(block)[-1:])


def test_the_joint_bound_without_residuals_and_of_zero():
    assert joint_bound(np.array([[3.0, 2.0]]), np.zeros((1, 2)), np.array([2.5])).tolist() == [[3.0, 2.5]]
    assert joint_bound(np.zeros((1, 1)), np.zeros((1, 1)), np.zeros(1)).tolist() == [[0.0]]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("ratio", [0.2, 0.5])
def test_a_large_gap_absorbs_the_rounding(ratio, dtype):
    """The interval is far narrower than a unit of rounding, with few products of the reference."""
    for seed in range(5):
        matrix = gapped(ratio, seed=seed)
        operator, count = in_half(matrix, dtype)
        found = singular_values(operator, tol=1e-3, seed=seed)
        assert found.status == "converged" and not found.notes
        assert at_most(found.lower, truth_of(matrix), found.upper)
        assert less(found.width, torch.finfo(dtype).eps)
        assert count["float32"] <= 14 < count["half"] and found.products == count["half"] + count["float32"]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", ["clustered", "repeated top", "all equal"])
def test_a_small_gap_falls_back_to_the_reference(name, dtype):
    matrix = matrix_with(SPECTRA[name])
    operator, count = in_half(matrix, dtype)
    found = singular_values(operator, tol=1e-4)
    assert found.status == "converged" and at_most(found.lower, truth_of(matrix), found.upper)
    (note,) = found.notes
    assert note.startswith("rounded products did not suffice (the spectral gap is too small") and "float32" in note
    assert note in repr(found) and found.products >= count["half"] + count["float32"]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", [name for name in SPECTRA if name not in ("tiny", "huge")])
@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("tol", [0.1, 1e-2, 1e-3])
def test_every_interval_contains_the_truth(tol, k, name, dtype):
    matrix = matrix_with(SPECTRA[name])
    k = min(k, *matrix.shape)
    found = singular_values(in_half(matrix, dtype)[0], k=k, tol=tol)
    truth, slack = truth_of(matrix, k), 1e-14 * float(largest(matrix)[0])  # rounding of the dense solver
    assert found.status == "converged" and found.confidence == pytest.approx(0.999)
    assert at_most(found.lower, truth + slack) and at_most(truth, found.upper + slack)


@pytest.mark.parametrize("shape", [(1, 20), (20, 1), (12, 30), (30, 12), (1, 1), (2, 2)])
def test_every_shape(shape):
    matrix = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = singular_values(in_half(matrix, torch.float16)[0], k=min(2, *shape))
    assert found.status == "converged" and at_most(found.lower, truth_of(matrix, min(2, *shape)), found.upper)


def test_the_zero_matrix():
    found = singular_values(in_half(torch.zeros(30, 20), torch.float16)[0])
    assert found.status == "converged" and not found.notes
    assert not torch.stack([found.value, found.lower, found.upper]).any()


def test_products_that_underflow_are_not_taken_for_zero():
    """All entries of J are below the range of float16: M̃ is zero, and the probes show that M is not."""
    matrix = 1e-9 * gapped(0.5)
    found = singular_values(in_half(matrix, torch.float16)[0])
    assert found.notes and found.status == "converged" and at_most(found.lower, truth_of(matrix), found.upper)


def test_products_that_overflow_give_no_bound():
    matrix = 1e7 * gapped(0.5)
    operator, _ = in_half(matrix, torch.float16)
    found = singular_values(operator)
    assert "not finite" in found.notes[0] and at_most(found.lower, truth_of(matrix), found.upper)
    assert found.products > singular_values(MatrixOperator(matrix.float())).products


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("at", [0, 1, 2, 9, 20, 25])
def test_one_product_that_is_not_finite_gives_no_bound(at, value):
    """Whichever it is: of the search, of the second process or of a probe."""
    matrix = gapped(0.5)
    operator, count = in_half(matrix, torch.float16)

    def spoilt(product):
        def call(v):
            image = product(v).clone()
            if count["half"] == at + 1:
                image[7] = value
            return image

        return call

    operator._matvec, operator._rmatvec = spoilt(operator._matvec), spoilt(operator._rmatvec)
    found = singular_values(operator)
    assert count["half"] >= at + 1
    assert "not finite" in found.notes[0] and at_most(found.lower, truth_of(matrix), found.upper)


def test_the_probes_see_what_the_products_hide(monkeypatch):
    """Products without the top direction: only η shows that it is missing."""
    matrix = torch.diag(torch.linspace(1.0, 0.1, 60, dtype=torch.float64))
    matrix[5, 5] = 3.0
    hidden = matrix.clone()
    hidden[5, 5] = 0.01
    hidden[0, 0] = 2.0
    matrix[0, 0] = 2.0
    found = singular_values(in_half(matrix, torch.float16, applied=hidden)[0])
    assert found.notes and at_most(found.lower, 3.0, found.upper)

    monkeypatch.setattr(deflation.Perturbation, "bound", lambda *_: np.zeros(1))
    unprobed = singular_values(in_half(matrix, torch.float16, applied=hidden)[0])
    assert less(unprobed.upper, 3.0) and not unprobed.notes


def test_a_direction_that_the_search_misses_is_found_in_the_complement():
    """σ₁ and σ₂ equal: one vector is deflated, and the second process sees the other one."""
    matrix = torch.diag(torch.tensor([2.0, 2.0, *[0.5] * 58], dtype=torch.float64))
    found = singular_values(in_half(matrix, torch.float16)[0])
    assert at_most(found.lower, 2.0, found.upper) and less(found.width, 1e-3)


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("ratio", [0.3, 0.8, 0.97])
def test_intervals_of_rounded_products_have_their_confidence(ratio, dtype, k):
    """Whether certified or not, as a batch with one start for each member."""
    members, delta = 150, 0.2
    matrix = gapped(ratio, n=60)
    operator, _ = in_half(matrix.expand(members, 60, 60), dtype)
    solve = DeflatedSolve(
        operator, operator.precise(), k, 1e-3, delta, plan(operator, k=k), torch.Generator().manual_seed(k), None
    )
    found = solve.run()
    if found is None:
        assert less(deflation.MAX_RATIO, ratio)
        return
    truth = truth_of(matrix, k).numpy()
    outside = ((found.lower > truth) | (found.upper < truth)).any(axis=1)
    assert outside.sum() <= int(binom.ppf(1 - 1e-6, members, delta))
    assert (np.isfinite(found.upper[found.is_certified])).all()


def test_members_of_a_batch_that_need_it_fall_back():
    matrices = torch.stack([gapped(0.3, n=60), torch.eye(60, dtype=torch.float64), torch.zeros(60, 60).double()])
    found = singular_values(in_half(matrices, torch.float16)[0])
    assert found.status == ["converged"] * 3 and found.notes[0].startswith("1 of 3 operators: rounded products")
    assert at_most(found.lower, truth_of(matrices), found.upper)


@pytest.mark.parametrize("ratio", [0.5, 0.999])
def test_progress_is_reported_for_every_phase(ratio):
    """Also where the reference solves again: its steps are counted on."""
    reports = []
    found = singular_values(in_half(gapped(ratio), torch.bfloat16)[0], progress=lambda *args: reports.append(args))
    assert bool(found.notes) == (ratio > 0.9)
    steps, lowers, uppers = zip(*reports, strict=True)
    assert list(steps) == sorted(set(steps)) and steps[-1] <= found.steps
    assert lowers[0] == 0 and uppers[0] == torch.inf and at_most(lowers[-1], 1.0, uppers[-1], tol=1e-6)


def test_a_limit_of_steps_is_kept():
    matrix = gapped(0.8)
    operator, _ = in_half(matrix, torch.float16)
    found = singular_values(operator, max_steps=3, strict=False)
    assert found.status == "step limit" and not found.notes and found.steps <= 6
    assert at_most(found.lower, truth_of(matrix), found.upper)


def test_little_memory():
    """Vectors that are not stored are recomputed, and the interval holds."""
    matrix = gapped(0.5)
    operator, _ = in_half(matrix, torch.float16)
    least = plan(operator).total - (plan(operator).stored - 4) * plan(operator).bytes_per_vector
    found = singular_values(operator, max_memory=least)
    assert found.status == "converged" and at_most(found.lower, truth_of(matrix), found.upper)
