"""Sparse masks, tables with a gradient and sinks on a GPU, with the tiles that users get, against float64."""

from __future__ import annotations

import warnings

import pytest
import torch

from tests import reasons

if not torch.cuda.is_available():
    pytest.skip(reasons.GPU, allow_module_level=True)
pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import SparseMask, attend
from howsmooth.attention import backend
from tests.tolerances import at_most

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
TOLERANCE = {torch.bfloat16: 7e-3, torch.float16: 2e-3, torch.float32: 1e-5}
N = 1000


def draw(width, dtype, heads=(4, 2)):
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(2, heads[0], N, width), (2, heads[1], N, width), (2, heads[1], N, width)] * 2
    return [torch.randn(shape, device="cuda", generator=generator).to(dtype) for shape in shapes]


def everything(f, tensors, more=()):
    """The output, the tangent, and the gradients of a loss of both in all tensors."""
    leaves = [t.detach().clone().requires_grad_() for t in (*tensors, *more)]
    o, do = torch.func.jvp(lambda *at: f(*at, *leaves[6:]), tuple(leaves[:3]), tuple(leaves[3:6]))
    loss = o.double().square().sum() + do.double().square().sum()
    return o, do, *torch.autograd.grad(loss, leaves)


def check(f, tensors, more=()):
    dtype = tensors[0].dtype
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # nothing may fall back to a slow path
        found = everything(f, tensors, more)
    truth = everything(f, [t.double() for t in tensors], [t.double() for t in more])
    for index, (mine, wanted) in enumerate(zip(found, truth, strict=True)):
        gap = float((mine.double() - wanted).norm() / wanted.norm())
        assert at_most(gap, 2 * TOLERANCE[dtype]), f"result {index}: {gap:.2e}"


MASKS = {
    "documents": lambda: SparseMask.documents(torch.arange(N, device="cuda") // 170, causal=True),
    "by head": lambda: SparseMask.from_function(
        lambda i, j: (i - j).abs() < 100 * (1 + torch.arange(4, device="cuda")[:, None, None]), N, device="cuda"
    ),
    "blocks": lambda: SparseMask.from_function(lambda i, j: (i // 128 + j // 128) % 2 == 0, N, device="cuda"),
}


@pytest.mark.parametrize("make", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sparse_mask(dtype, width, make):
    mask = make()
    check(lambda q, k, v: attend(q, k, v, mask=mask), draw(width, dtype))


@pytest.mark.parametrize("shape", [(4, N, N), (2, 1, N, N)], ids=str)
@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_gradients_of_a_table_and_of_sinks(dtype, width, shape):
    generator = torch.Generator("cuda").manual_seed(1)
    table = torch.randn(shape, device="cuda", generator=generator).to(dtype)
    sinks = torch.randn(4, device="cuda", generator=generator).to(dtype)
    check(lambda q, k, v, t, s: attend(q, k, v, score_bias=t, sinks=s), draw(width, dtype), (table, sinks))


def test_a_slow_path_gives_one_warning():
    backend.warn_of_slow_path.cache_clear()
    q, k, v = (t[..., :50, :].float() for t in draw(64, torch.float32)[:3])
    for count in (1, 0):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            attend(q, k, v, score_bias=lambda i, j: -(i - j).abs())
        assert [str(w.message).split(":")[1] for w in caught] == [
            " the kernels take a score_bias as a table, got a function"
        ] * count
