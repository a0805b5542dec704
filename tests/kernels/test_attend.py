"""attend and local_lipschitz through the kernels against float64: on a GPU, or under Triton's interpreter."""

import pytest
import torch

from tests import reasons

pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import attend, kernels, local_lipschitz
from howsmooth.attention import jacobian
from tests.attention.cases import layer, normal
from tests.kernels.cases import DEVICE, TOLERANCE, assert_near
from tests.tolerances import at_most


@pytest.fixture(autouse=True)
def used(monkeypatch):
    """Let the kernels accept tensors on the CPU, too, and count the launches of each."""
    unsupported, count = kernels.unsupported, dict(forward=0, jvp=0, vjp=0)

    def refused(*args, **options):
        why = unsupported(*args, **options)
        return None if why and "written for NVIDIA GPUs" in why else why

    def counted(name, launch):
        def call(*args, **options):
            count[name] += 1
            return launch(*args, **options)

        return call

    monkeypatch.setattr(kernels, "unsupported", refused)
    for name in count:
        monkeypatch.setattr(kernels, name, counted(name, getattr(kernels, name)))
    return count


def f(q, k, v):
    return attend(q, k, v, causal=True, softcap=3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_first_and_second_derivatives(dtype, used):
    at = [normal(i, 2, h, 9, 4).to(DEVICE, dtype) for i, h in enumerate((4, 2, 2))]
    tangents = [normal(5 + i, *t.shape).to(t) for i, t in enumerate(at)]
    g = normal(9, 2, 4, 9, 4).to(DEVICE, dtype)

    def everything(at, tangents, g):
        leaves = [t.clone().requires_grad_() for t in at]
        pulled = torch.autograd.grad(f(*leaves), leaves, g, create_graph=True)
        second = torch.autograd.grad(sum((a * t).sum() for a, t in zip(pulled, tangents, strict=True)), leaves)
        return *torch.func.jvp(f, tuple(at), tuple(tangents)), *pulled, *second, torch.func.vmap(f)(*at)

    found = everything(at, tangents, g)
    launches = dict(used)
    truth = everything(*([t.double() for t in part] for part in (at, tangents)), g.double())
    assert all(launches.values()) and launches == used  # float64 is computed in blocks, without kernels
    for actual, expected in zip(found, truth, strict=True):
        assert actual.dtype == dtype
        assert_near(actual.detach(), expected.detach().cpu(), TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("product_dtype", "width"), [(None, 1e-3), (torch.float32, 1e-3), (torch.float16, 0.1)], ids=str
)
def test_the_local_constant(product_dtype, width, used, monkeypatch):
    monkeypatch.setattr(jacobian, "MAX_STORED_PROBABILITIES", 0)  # on a CPU they serve in place of kernels
    f, x = layer("grouped").to(torch.float32), 0.3 * normal(50, 4, 6).float()
    truth = float(torch.linalg.matrix_norm(f.converted(dtype=torch.float64).jacobian(x.double()).dense(), 2))
    f, x = f.converted(device=DEVICE), x.to(DEVICE)
    found = local_lipschitz(f, x, product_dtype=product_dtype, tol=width)
    assert used["forward"] and used["jvp"] and used["vjp"]
    assert found.status == "converged" and at_most(found.lower, truth, found.upper)
    if product_dtype == torch.float16:
        early = local_lipschitz(f, x, product_dtype=product_dtype, tol=width, stop="residual")
        assert early.status == "lower bound only" and at_most(early.lower, truth) and early.upper is None


def test_gram_products(used, monkeypatch):
    monkeypatch.setattr(jacobian, "MAX_STORED_PROBABILITIES", 0)
    f, x, v = layer("grouped"), 0.3 * normal(50, 4, 6), normal(51, 24)
    dense = f.jacobian(x).dense()
    operator = f.converted(dtype=torch.float32, device=DEVICE).jacobian(x.float().to(DEVICE))
    assert operator.has_gram
    image, factor = operator.gram(v.float().to(DEVICE))
    assert used["jvp"] == used["vjp"] == 1
    assert_near(factor * image.double(), dense.T @ dense @ v, TOLERANCE[torch.float32])
