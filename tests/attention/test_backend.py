"""The choice between kernels and blocks, as far as it can be tested without a GPU."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from howsmooth import InputError, attend, kernels, local_lipschitz
from howsmooth.attention import backend
from howsmooth.attention.pattern import Pattern
from tests import reasons
from tests.attention.cases import layer, normal
from tests.tolerances import at_most

X = torch.zeros(1, 2, 4, 8)


@pytest.mark.parametrize(
    ("dtype", "pattern", "reason"),
    [
        (torch.float32, Pattern(1.0), "written for NVIDIA GPUs, got tensors on cpu"),
        (torch.bfloat16, Pattern(1.0), "written for NVIDIA GPUs, got tensors on cpu"),
        (torch.float64, Pattern(1.0), "take bfloat16, float16 or float32 in all of q, k, v, got torch.float64"),
        (torch.float32, Pattern(1.0, score_bias=lambda i, j: i - j), "take a score_bias as a table, got a function"),
    ],
    ids=["device", "half precision", "float64", "function"],
)
def test_the_reason_why_kernels_are_not_used(dtype, pattern, reason):
    pytest.importorskip("triton", reason=reasons.TRITON)
    assert reason in backend.unsupported_reason(*[X.to(dtype)] * 3, pattern)


def test_blocks_are_used_while_a_graph_is_recorded(monkeypatch):
    monkeypatch.setattr(kernels, "unsupported", lambda *_, **__: None)
    seen = []

    def f(x):
        seen.append(backend.unsupported_reason(x, x, x, Pattern(1.0)))
        return x

    make_fx(f)(X)
    f(X)
    assert seen == ["a graph is being recorded", None]


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_products_in_half_precision_without_kernels_are_refused(half):
    f, x = layer("causal").to(torch.float32), normal(50, 4, 6).float()
    for compute in (f.jacobian, lambda x, product_dtype: local_lipschitz(f, x, product_dtype=product_dtype)):
        with pytest.raises(
            InputError, match=rf"kernels for products in {half}, got none that support this call \(.+\); leave"
        ):
            compute(x, product_dtype=half)


def test_float32_products_have_no_reference_and_an_interval_that_contains_the_norm():
    f, x = layer("two heads").to(torch.float32), normal(50, 4, 6).float()
    assert f.jacobian(x).precise().dtype == torch.float64
    assert f.jacobian(x, product_dtype=torch.float32).precise() is None
    exact = torch.linalg.matrix_norm(f.converted(dtype=torch.float64).jacobian(x.double()).dense(), 2)
    found = local_lipschitz(f, x, product_dtype=torch.float32)
    assert found.status == "converged" and at_most(found.lower, exact, found.upper)


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_in_blocks_is_rounded_once(half):
    """Without kernels half precision is for storage only: all steps are computed in float32."""
    q, k, v, dq, dk, dv = (normal(i, 2, 7, 3).to(half) for i in range(6))

    def f(*x):
        return attend(*x, causal=True)

    found = torch.func.jvp(f, (q, k, v), (dq, dk, dv))
    wide = torch.func.jvp(f, (q.float(), k.float(), v.float()), (dq.float(), dk.float(), dv.float()))
    assert found[0].dtype == found[1].dtype == half
    assert at_most((found[0].float() - wide[0]).abs(), torch.finfo(half).eps / 2 * wide[0].abs(), tol=1e-5)
    gap = (found[1].float() - wide[1]).norm() / wide[1].norm()  # the output that is subtracted was rounded
    assert at_most(gap, 4 * torch.finfo(half).eps)
