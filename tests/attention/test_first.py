"""On four tokens, the matrix-free σ₁ equals that of a dense SVD."""

import pytest
import torch

from howsmooth import local_lipschitz
from howsmooth.attention import reference
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import at_most, less

PADDING = {"all real": None, "one padded": torch.tensor([True, True, False, True])}


@pytest.mark.parametrize("padding", PADDING.values(), ids=PADDING)
@pytest.mark.parametrize("d_out", [5, None], ids=["projected", "concatenated"])
@pytest.mark.parametrize("name", LAYERS)
def test_matrix_free_norm_equals_the_dense_norm_on_four_tokens(name, d_out, padding):
    f, x = layer(name, d_out=d_out), normal(50, 4, 6)
    estimate = local_lipschitz(f, x, padding=padding, tol=1e-6)
    dense = reference.jacobian(f, x, padding)
    if padding is not None:  # padded tokens are neither perturbed nor part of the output
        dense = dense.view(4, -1, 4, 6)[padding][:, :, padding].reshape(3 * f.d_out, 18)
    sigma = float(torch.linalg.svdvals(dense)[0])
    assert at_most(estimate.lower, sigma)
    assert at_most(sigma, estimate.upper)
    assert at_most(abs(estimate.value - sigma), 1e-6 * sigma)
    assert estimate.status == "converged"


def test_reading_the_output_as_the_tangent_would_be_detected():
    f, x = layer("two heads"), normal(50, 4, 6)
    sigma = local_lipschitz(f, x).value
    mistaken = float(torch.func.vjp(f, x)[1](f(x))[0].norm() ** 0.5)  # √‖Jᵀf(X)‖, which is no norm of J
    assert less(0.01 * sigma, abs(mistaken - sigma))
