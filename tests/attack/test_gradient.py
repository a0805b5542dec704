"""The closed form of ∇_X ⟨u, J(X) v⟩ against dense double autograd."""

import pytest
import torch

from howsmooth.attention import reference
from tests.attention.cases import LAYERS, layer, normal
from tests.tolerances import assert_close


def by_autograd(f, x, u, v, padding=None):
    """∇_X of ⟨u, J(X) v⟩ with the dense reference for J, which is differentiable."""
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(u @ reference.jacobian(f, x, padding) @ v, x)
    return g


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("d_out", [5, None])
def test_against_double_autograd(name, d_out):
    f = layer(name, d_out=d_out)
    n = 4
    x = normal(20, 2, n, f.d)
    u, v = normal(21, 2, n * f.d_out), normal(22, 2, n * f.d)
    found = f.jacobian(x).gradient(u, v)
    assert_close(found, torch.stack([by_autograd(f, *args) for args in zip(x, u, v, strict=True)]))
    assert_close(f.jacobian(x[0]).gradient(u[0], v[0]), found[0])


def test_padding():
    f, x = layer("two heads"), normal(20, 4, 6)
    padding = torch.tensor([True, True, False, True])
    u, v = normal(21, 4 * f.d_out), normal(22, 4 * f.d)
    assert_close(f.jacobian(x, padding).gradient(u, v), by_autograd(f, x, u, v, padding))


def test_it_is_the_gradient_of_the_largest_singular_value():
    f, x, e = layer("causal"), normal(20, 5, 6), normal(23, 5, 6)
    u, _s, vh = torch.linalg.svd(f.jacobian(x).dense())
    derivative = (f.jacobian(x).gradient(u[:, 0], vh[0]) * e).sum()
    ahead, behind = (torch.linalg.matrix_norm(f.jacobian(x + t * e).dense(), 2) for t in (1e-5, -1e-5))
    assert_close(derivative, (ahead - behind) / 2e-5, tol=1e-7)
