"""`howsmooth.scaled_dot_product_attention` against PyTorch's, with its conventions, dtypes and errors."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

from howsmooth import InputError, attend, replace_sdpa, scaled_dot_product_attention
from tests.attention.cases import normal
from tests.tolerances import assert_close

Q, K, V = normal(1, 2, 4, 6, 5), normal(2, 2, 4, 10, 5), normal(3, 2, 4, 10, 7)
SQUARE = [normal(i, 2, 4, 6, 5) for i in range(3)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(is_causal=True),
        dict(scale=0.3),
        dict(attn_mask=normal(4, 6, 10)),
        dict(attn_mask=normal(4, 1, 10)),
        dict(attn_mask=normal(5, 4, 6, 10) > -0.5),
        dict(attn_mask=normal(6, 2, 4, 6, 10)),
        dict(attn_mask=normal(7, 2, 1, 6, 10) > -0.5),
    ],
    ids=["plain", "causal", "scale", "table", "row", "boolean by head", "table by sequence", "boolean by sequence"],
)
def test_outputs_and_derivatives_are_those_of_pytorch(options):
    """With 6 queries and 10 keys: a causal mask is aligned at the top left."""

    def derivatives(f):
        leaves = [t.clone().requires_grad_() for t in (Q, K, V)]
        output = f(*leaves, **options)
        first = torch.autograd.grad(output, leaves, normal(8, 2, 4, 6, 7), create_graph=True)
        return output, *first, *torch.autograd.grad(sum((t * t).sum() for t in first), leaves)

    for found, expected in zip(
        derivatives(scaled_dot_product_attention), derivatives(F.scaled_dot_product_attention), strict=True
    ):
        assert_close(found, expected)


def test_the_alignment_differs_from_attend():
    top_left = scaled_dot_product_attention(Q, K, V, is_causal=True)
    assert_close(top_left, attend(Q, K, V, causal=True, offset=0))
    assert (top_left - attend(Q, K, V, causal=True)).abs().max() > 0.1


def test_vmap_over_sequences_that_have_tables_of_their_own():
    table = normal(9, 2, 1, 6, 6)
    q, k, v = ([normal(10 * i + j, 2, 4, 6, 5) for j in range(3)] for i in range(3))
    found = torch.func.vmap(lambda q, k, v: attend(q, k, v, score_bias=table))(*map(torch.stack, (q, k, v)))
    for i, one in enumerate(zip(q, k, v, strict=True)):
        assert_close(found[i], attend(*one, score_bias=table))


def test_shared_keys_and_tensors_without_heads():
    k, v = K[:, :2], V[:, :2]
    expected = F.scaled_dot_product_attention(Q, k, v, enable_gqa=True)
    assert_close(scaled_dot_product_attention(Q, k, v, enable_gqa=True), expected)
    assert_close(
        scaled_dot_product_attention(Q[0, 0], K[0, 0], V[0, 0]),
        F.scaled_dot_product_attention(Q[0, 0], K[0, 0], V[0, 0]),
    )


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: scaled_dot_product_attention(*SQUARE, dropout_p=0.1), r"dropout_p = 0, got 0.1"),
        (
            lambda: scaled_dot_product_attention(*SQUARE, attn_mask=normal(1, 6, 6), is_causal=True),
            "attn_mask or is_causal, got both",
        ),
        (
            lambda: scaled_dot_product_attention(Q, K[:, :2], V[:, :2]),
            "as many key heads as query heads, got 2 and 4; pass enable_gqa=True",
        ),
        (
            lambda: scaled_dot_product_attention(*SQUARE, attn_mask=normal(1, 6, 7)),
            r"attn_mask of shape \(…, 6, 6\), got \(6, 7\)",
        ),
        (
            lambda: scaled_dot_product_attention(*SQUARE, attn_mask=normal(1, 3, 6, 6)),
            r"a score_bias table of shape \(6, 6\) or, broadcast, \(2, 4, 6, 6\), got \(3, 6, 6\)",
        ),
    ],
)
def test_what_is_not_supported_is_refused(call, match):
    with pytest.raises(InputError, match=match):
        call()


def test_replaced_inside_the_context_only():
    q, k, v = SQUARE
    with replace_sdpa():
        inside = torch.func.jvp(lambda x: F.scaled_dot_product_attention(x, k, v), (q,), (q,))
        with pytest.raises(InputError, match="dropout_p"):
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
    for found, expected in zip(inside, torch.func.jvp(lambda x: attend(x, k, v), (q,), (q,)), strict=True):
        assert_close(found, expected)
    assert F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).shape == q.shape


def test_modules_of_pytorch_and_imported_names_are_reached():
    imported = F.scaled_dot_product_attention
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    x, dx = normal(1, 2, 5, 8), normal(2, 2, 5, 8)
    with replace_sdpa():
        y, dy = torch.func.jvp(layer, (x,), (dx,))
        _, direct = torch.func.jvp(lambda x: imported(x, x, x), (x,), (dx,))
    assert F.scaled_dot_product_attention is imported
    step = 1e-6
    assert_close(y, layer(x))
    assert_close(dy, (layer(x + step * dx) - layer(x - step * dx)) / (2 * step), tol=1e-7)
    assert direct.shape == x.shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_gives_the_dtype_and_the_accuracy_of_pytorch(dtype):
    q, k, v = (t.float() for t in SQUARE)
    truth = attend(*SQUARE)
    with torch.autocast("cpu", dtype=dtype):
        found, theirs = attend(q, k, v), F.scaled_dot_product_attention(q, k, v)
    assert found.dtype == theirs.dtype == dtype
    assert (found - truth).norm() <= 2 * (theirs - truth).norm() + 1e-3 * truth.norm()  # exact: both are rounded


def test_autocast_leaves_float64_alone():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attend(*SQUARE).dtype == torch.float64


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_vectorised_jacobians_of_autograd(strategy):
    """They apply a `vmap` of their own, below autograd, which asks no custom function for a rule."""
    f = functools.partial(scaled_dot_product_attention, is_causal=True)
    one = tuple(t[0, :2, :4, :3] for t in SQUARE)
    found = torch.autograd.functional.jacobian(f, one, vectorize=True, strategy=strategy)
    for part, expected in zip(found, torch.autograd.functional.jacobian(f, one), strict=True):
        assert_close(part, expected)


@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_vectorised_hessians_of_autograd(strategy):
    one = tuple(t[0, :1, :3, :2] for t in SQUARE)

    def f(q, k, v):
        return scaled_dot_product_attention(q, k, v).square().sum()

    found = torch.autograd.functional.hessian(f, one, vectorize=True, outer_jacobian_strategy=strategy)
    for row, expected in zip(found, torch.autograd.functional.hessian(f, one), strict=True):
        for block, other in zip(row, expected, strict=True):
            assert_close(block, other)
