"""Products by stored probabilities against the dense reference, and solves in float32 that use them."""

import pytest
import torch

from howsmooth import SelfAttention, local_lipschitz
from howsmooth.attention import blockwise, dense_products, jacobian, reference
from howsmooth.attention.jacobian import jacobian_with_reference
from howsmooth.spectral import plan, singular_values
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import FLOAT32, assert_close, at_most

PADDING = torch.tensor([True, False, True, True])
NOTHING_SEEN = torch.tensor([False, False, True, True])  # in a causal layer the first queries see no key


@pytest.fixture(params=["one tile", "tiles of rows", "several blocks"])
def tiling(request, monkeypatch):
    if request.param != "one tile":
        monkeypatch.setattr(dense_products, "TILE_BYTES", 100)
    if request.param == "several blocks":
        monkeypatch.setattr(blockwise, "BLOCK_SCORES", 40)
        monkeypatch.setattr(blockwise, "MASKED_BLOCK_ROWS", 3)


@pytest.mark.parametrize("padding", [None, PADDING, NOTHING_SEEN], ids=["all real", "padded", "unseen"])
@pytest.mark.parametrize("name", LAYERS)
def test_products_give_the_reference(name, padding, tiling):
    f, x = layer(name), normal(50, 4, 6)
    products, expected = f.jacobian(x, padding).dense_products, reference.jacobian(f, x, padding)
    inputs, outputs = torch.eye(24, dtype=torch.float64), torch.eye(20, dtype=torch.float64)
    forward = [products.forward(e.view(1, 4, 6)).flatten() for e in inputs]
    assert_close(torch.stack(forward, 1), expected)
    assert_close(torch.stack([products.adjoint(u.view(1, 4, 5)).flatten() for u in outputs]), expected)
    gram = [products.gram(e.view(1, 4, 6)) for e in inputs]
    assert_close(torch.stack([(image * factor).flatten() for image, factor in gram]), expected.T @ expected)


@pytest.mark.parametrize("name", LAYERS)
def test_sequences_of_a_batch_are_independent(name, tiling):
    f, x, v, u = layer(name), normal(50, 3, 4, 6), normal(51, 3, 4, 6), normal(52, 3, 4, 5)
    padding = torch.stack([PADDING, ~PADDING, torch.ones(4, dtype=torch.bool)])
    products = f.jacobian(x, padding).dense_products
    image, factor = products.gram(v)
    for i in range(3):
        expected = reference.jacobian(f, x[i], padding[i])
        assert_close(products.forward(v)[i].flatten(), expected @ v[i].flatten())
        assert_close(products.adjoint(u)[i].flatten(), expected.T @ u[i].flatten())
        assert_close((factor[i] * image[i]).flatten(), expected.T @ expected @ v[i].flatten())


def test_heads_may_be_concatenated(tiling):
    f, x, v = layer("grouped", d_out=None), normal(50, 4, 6), normal(51, 24)
    operator, expected = f.jacobian(x), reference.jacobian(f, x)
    assert_close(operator.matvec(v), expected @ v)
    assert_close(operator.rmatvec(expected @ v), expected.T @ expected @ v)
    assert not operator.has_gram


def test_a_zero_vector_has_a_zero_image():
    image, factor = layer("two heads").jacobian(normal(50, 4, 6)).dense_products.gram(torch.zeros(1, 4, 6).double())
    assert not image.any() and not factor.any()


@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_the_gram_product_overflows_no_earlier_than_the_product(size):
    weights = [normal(i, 6, 6, dtype=torch.float32) for i in range(4)]
    f, x = SelfAttention(*weights[:3], size * weights[3], heads=2), 0.1 * normal(50, 4, 6, dtype=torch.float32)
    assert f.jacobian(x).has_gram
    truth = float(torch.linalg.matrix_norm(reference.jacobian(f.converted(dtype=torch.float64), x.double()), ord=2))
    found = local_lipschitz(f, x)
    assert at_most(found.lower, truth, found.upper) and found.status == "converged"


def in_float32(name: str) -> SelfAttention:
    return layer(name).converted(dtype=torch.float32)


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "recomputed"])
@pytest.mark.parametrize("name", LAYERS)
def test_intervals_in_float32_contain_the_truth(name, stored, monkeypatch):
    if not stored:
        monkeypatch.setattr(jacobian, "MAX_STORED_PROBABILITIES", 0)
    f, x = in_float32(name), normal(50, 2, 4, 6, dtype=torch.float32)
    padding = torch.stack([PADDING, torch.ones(4, dtype=torch.bool)])
    assert (jacobian_with_reference(f, x, padding).dense_products is not None) == stored
    found = local_lipschitz(f, x, padding=padding, k=2, tol=1e-4)
    for i, estimate in enumerate(found):
        real = (padding[i, :, None] & torch.ones(4, 6, dtype=torch.bool)).flatten()
        kept = (padding[i, :, None] & torch.ones(4, 5, dtype=torch.bool)).flatten()
        dense = reference.jacobian(f.converted(dtype=torch.float64), x[i].double(), padding[i])[kept][:, real]
        truth = torch.linalg.svdvals(dense)[:2]
        assert estimate.status == "converged"
        assert at_most(estimate.triplets.lower, truth) and at_most(truth, estimate.triplets.upper)


@pytest.mark.parametrize("d_out", [5, None], ids=["projected", "concatenated"])
@pytest.mark.parametrize("size", [1e-25, 1.0, 1e25])
def test_gram_products_without_stored_probabilities(size, d_out, monkeypatch):
    monkeypatch.setattr(jacobian, "MAX_STORED_PROBABILITIES", 0)
    f, x, v = layer("rotary", d_out=d_out), normal(50, 3, 4, 6), normal(51, 3, 24)
    if f.wo is not None:
        f = f.converted(dtype=torch.float64)
        f.wo.data *= size
    operator = f.converted(dtype=torch.float32).jacobian(x.float())
    assert operator.dense_products is None and operator.has_gram
    image, factor = operator.gram(v.float())
    for i in range(3):
        dense = reference.jacobian(f, x[i])
        assert_close(factor[i] * image[i].double(), dense.T @ dense @ v[i], tol=FLOAT32)
    image, factor = operator.gram(torch.zeros(3, 24))
    assert not image.any() and not factor.any()


def test_a_solve_by_gram_products_takes_the_steps_of_one_by_pairs_of_products():
    f, x = in_float32("causal"), normal(50, 4, 6, dtype=torch.float32)
    by_gram = jacobian_with_reference(f, x)
    by_pairs = jacobian_with_reference(f, x)
    by_pairs.has_gram = False
    assert by_gram.has_gram
    one, other = (singular_values(J, tol=1e-4) for J in (by_gram, by_pairs))
    assert (one.steps, one.products) == (other.steps, other.products)
    assert_close(one.value, other.value, tol=FLOAT32)
    assert_close(one.upper, other.upper, tol=FLOAT32)


def test_basis_vectors_that_do_not_fit_are_recomputed_by_gram_products():
    f, x = in_float32("causal"), normal(50, 40, 6, dtype=torch.float32)
    J = jacobian_with_reference(f, x)
    assert J.has_gram
    whole = singular_values(J, tol=1e-5, max_steps=60, strict=False)
    part = singular_values(J, tol=1e-5, max_steps=60, strict=False, max_memory=plan_bytes(J))
    assert part.products > whole.products
    assert_close(part.value, whole.value, tol=FLOAT32)
    truth = torch.linalg.matrix_norm(reference.jacobian(f.converted(dtype=torch.float64), x.double()), ord=2)
    assert at_most(part.lower, truth, part.upper)


def plan_bytes(J) -> int:
    """Return the bytes with which only five basis vectors are stored."""
    whole = plan(J, max_steps=60, tol=1e-5)
    return whole.total - (whole.stored - 5) * whole.bytes_per_vector


def test_one_evaluation_in_float64_makes_the_operator_and_its_reference():
    f, x = in_float32("rotary"), normal(50, 4, 6, dtype=torch.float32)
    J = jacobian_with_reference(f, x)
    exact = J.precise()
    assert exact is J.precise() and exact.dtype == torch.float64
    assert_close(exact.dense(), reference.jacobian(f.converted(dtype=torch.float64), x.double()))
    for block, precise in zip(J.linearised.kept, exact.linearised.kept, strict=True):
        kept = precise.p > dense_products.MIN_PROBABILITY
        assert torch.equal(block.p[kept], precise.p[kept].float())  # exact: one is the other, rounded
    assert_close(J.dense(), f.jacobian(x).dense(), tol=FLOAT32)
    assert_close(J.image, f(x), tol=FLOAT32)
    assert jacobian_with_reference(f.converted(dtype=torch.float64), x.double()).reference is None
    assert jacobian_with_reference(f, x, product_dtype=torch.float32).reference is None


def test_tiny_probabilities_are_zero_in_float32_alone():
    f = in_float32("one head")
    x = 4 * normal(50, 4, 6, dtype=torch.float32)
    J = jacobian_with_reference(f, x)
    p, exact = J.linearised.kept[0].p, J.precise().linearised.kept[0].p
    assert bool(((exact > 0) & (exact < 1e-30)).any()), "expected a case with tiny probabilities"
    assert not bool(((p > 0) & (p < 1e-30)).any())
    assert torch.equal(p[exact > 1e-29], exact[exact > 1e-29].float())  # exact: one is the other, rounded
    truth = torch.linalg.matrix_norm(reference.jacobian(f.converted(dtype=torch.float64), x.double()), ord=2)
    found = local_lipschitz(f, x, tol=1e-2)
    assert at_most(found.lower, float(truth), found.upper)
