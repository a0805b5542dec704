"""`torch.compile(fullgraph=True)` and `torch.export` record attention and its derivatives without a graph break."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

import howsmooth
from howsmooth import SelfAttention, SparseMask, attend
from tests.attention.cases import normal
from tests.tolerances import assert_close

PATTERNS = {
    "full": {},
    "causal": dict(causal=True),
    "window and soft cap": dict(causal=True, window=4, softcap=2.0),
    "padding": dict(padding=torch.tensor([True, True, False, True, True, True, False])),
    "table": dict(score_bias=normal(50, 7, 7)),
    "function": dict(score_bias=lambda i, j: 0.1 * (i - j)),
    "sparse": dict(mask=SparseMask.from_function(lambda i, j: (i + j) % 3 != 1, 7)),
    "sinks": dict(sinks=normal(51, 4)),
}


def compiled(f):
    """Record the whole function; the graph is then run by PyTorch's own operators, without a C compiler."""
    torch._dynamo.reset()
    return torch.compile(f, fullgraph=True, backend="aot_eager")


def jvp_of(f):
    def jvp(q, k, v, dq, dk, dv):
        return torch.func.jvp(f, (q, k, v), (dq, dk, dv))

    return jvp


def loss_gradients(jvp, at, along):
    """The six gradients of a loss of the output and of its tangent."""
    leaves = [t.clone().requires_grad_() for t in (*at, *along)]
    o, do = jvp(*leaves)
    return torch.autograd.grad(o.square().sum() + do.pow(3).sum(), leaves)


@pytest.fixture
def inputs():
    shapes = ((2, 4, 7, 3), (2, 2, 7, 3), (2, 2, 7, 5))
    return [normal(i, *shape) for i, shape in enumerate(shapes)], [normal(10 + i, *s) for i, s in enumerate(shapes)]


@pytest.mark.parametrize("options", PATTERNS.values(), ids=PATTERNS)
def test_the_compiled_function_and_its_derivatives_are_those_of_eager_mode(options, inputs):
    at, along = inputs

    def f(q, k, v):
        return attend(q, k, v, **options)

    assert_close(compiled(f)(*at), f(*at))
    leaves = [t.clone().requires_grad_() for t in at]
    cotangent = normal(20, 2, 4, 7, 5)
    for found, expected in zip(
        torch.autograd.grad(compiled(f)(*leaves), leaves, cotangent),
        torch.autograd.grad(f(*leaves), leaves, cotangent),
        strict=True,
    ):
        assert_close(found, expected)
    for found, expected in zip(compiled(jvp_of(f))(*at, *along), jvp_of(f)(*at, *along), strict=True):
        assert_close(found, expected)
    pairs = zip(loss_gradients(compiled(jvp_of(f)), at, along), loss_gradients(jvp_of(f), at, along), strict=True)
    for found, expected in pairs:
        assert_close(found, expected)


COTANGENT = normal(20, 2, 4, 7, 5)
REVERSE = {
    "grad": lambda f: torch.func.grad(lambda q: f(q).pow(3).sum()),
    "vjp": lambda f: lambda q: torch.func.vjp(f, q)[1](COTANGENT)[0],
    "forward over reverse": lambda f: (
        lambda q: torch.func.jvp(torch.func.grad(lambda q: f(q).pow(3).sum()), (q,), (q.sin(),))[1]
    ),
    "reverse over reverse": lambda f: torch.func.grad(
        lambda q: torch.func.grad(lambda q: f(q).pow(3).sum())(q).square().sum()
    ),
    "reverse over forward": lambda f: torch.func.grad(
        lambda q: torch.func.jvp(f, (q,), (torch.ones_like(q),))[1].pow(3).sum()
    ),
}


@pytest.mark.parametrize("transform", REVERSE.values(), ids=REVERSE)
def test_reverse_transforms_inside_the_compiled_function(transform, inputs):
    (q, k, v), _ = inputs
    f = transform(lambda q: attend(q, k, v, causal=True, softcap=2.0))
    assert_close(compiled(f)(q), f(q))


@pytest.mark.parametrize("options", PATTERNS.values(), ids=PATTERNS)
def test_forward_over_reverse_inside_the_compiled_function(options, inputs):
    at, along = inputs

    def f(q, k, v, *along):
        gradients = torch.func.grad(lambda *at: attend(*at, **options).pow(3).sum(), argnums=(0, 1, 2))
        return torch.func.jvp(gradients, (q, k, v), along)

    for mine, expected in zip(compiled(f)(*at, *along), f(*at, *along), strict=True):
        for found, wanted in zip(mine, expected, strict=True):
            assert_close(found, wanted)


def test_reverse_transforms_with_rows_that_see_no_key(inputs):
    (q, k, v), _ = inputs

    def f(q):
        o, lse = howsmooth.attention.attend_with_lse(q, k, v, causal=True, offset=-3)
        return o.pow(3).sum() + lse[..., 3:].square().sum()

    assert_close(compiled(torch.func.grad(f))(q), torch.func.grad(f)(q))
    half = compiled(torch.func.grad(lambda q: attend(q, k.half(), v.half()).float().square().sum()))(q.half())
    assert half.dtype == torch.float16


def test_a_tangent_of_the_values_alone(inputs):
    (q, k, v), (_, _, dv) = inputs

    def jvp(v, dv):
        return torch.func.jvp(lambda v: attend(q, k, v), (v,), (dv,))

    for found, expected in zip(compiled(jvp)(v, dv), jvp(v, dv), strict=True):
        assert_close(found, expected)


def test_the_gradients_of_a_table_and_of_sinks(inputs):
    at, along = inputs
    leaves = [t.requires_grad_() for t in (normal(50, 4, 7, 7), normal(51, 4))]

    def loss(q, k, v, dq, dk, dv, table, sinks):
        o, do = torch.func.jvp(lambda q, k, v: attend(q, k, v, score_bias=table, sinks=sinks), (q, k, v), (dq, dk, dv))
        return o.square().sum() + do.pow(3).sum()

    expected = torch.autograd.grad(loss(*at, *along, *leaves), leaves)
    for found, wanted in zip(torch.autograd.grad(compiled(loss)(*at, *along, *leaves), leaves), expected, strict=True):
        assert_close(found, wanted)


def test_a_dual_level(inputs):
    at, along = inputs

    def jvp(*tensors):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(attend(*map(forward_ad.make_dual, tensors[:3], tensors[3:])))

    for found, expected in zip(compiled(jvp)(*at, *along), jvp(*at, *along), strict=True):
        assert_close(found, expected)


def test_export(inputs):
    at, _ = inputs

    class Attention(torch.nn.Module):
        def forward(self, q, k, v):
            return attend(q, k, v, causal=True)

    program = torch.export.export(Attention(), tuple(at))
    assert "howsmooth.attention" in str(program.graph)
    assert_close(program.module()(*at), attend(*at, causal=True))


def test_a_layer():
    f = SelfAttention(*(normal(i, 6, 6) for i in range(4)), heads=2, causal=True)
    x, dx = normal(8, 5, 6), normal(9, 5, 6)
    assert_close(compiled(f)(x), f(x))
    jvp = compiled(lambda x, dx: torch.func.jvp(f, (x,), (dx,)))
    for found, expected in zip(jvp(x, dx), torch.func.jvp(f, (x,), (dx,)), strict=True):
        assert_close(found, expected)
    program = torch.export.export(f, (x,))
    assert_close(program.module()(x), f(x))


def test_the_operators_follow_the_rules_of_torch_library(inputs):
    from howsmooth.attention import library

    (q, k, v), (dq, dk, dv) = inputs
    mask = SparseMask.from_function(lambda i, j: (i + j) % 3 != 1, 7)
    for table, sparse in ((None, []), (normal(50, 1, 4, 7, 7), mask.tensors())):
        settings = (None, table, sparse, 0.5, True, None, None, 0)
        o, normaliser, lse = library.attention(q, k, v, *settings, True)
        do, mu = library.attention_jvp(q, k, v, o, normaliser, dq, dk, dv, table, *settings, False)
        calls = [
            (library.attention, (q, k, v), True),
            (library.attention_jvp, (q, k, v, o, normaliser, dq, dk, dv, table), False),
            (library.attention_vjp, (q, k, v, o, normaliser, o, lse), table is not None),
            (library.attention_hvp, (q, k, v, o, normaliser, dq, dk, dv, table, do, mu, o, lse), table is not None),
        ]
        for operator, tensors, flag in calls:
            checks = ("test_schema", "test_faketensor", "test_autograd_registration")
            torch.library.opcheck(operator, (*tensors, *settings, flag), test_utils=checks)


def test_vmap_of_the_operator(inputs):
    from howsmooth.attention import library

    (q, k, v), _ = inputs
    table, mask = normal(50, 1, 4, 7, 7), SparseMask.from_function(lambda i, j: (i + j) % 3 != 1, 7)

    def f(q, table):
        return library.attention(q, k, v, None, table, mask.tensors(), 0.5, True, None, None, 0, True)

    several, tables = torch.stack([q, q.sin()], 2), torch.stack([table, table.cos()])
    found = torch.vmap(f, in_dims=(2, 0))(several, tables)
    for index in range(2):
        for mine, expected in zip(found, f(several[:, :, index], tables[index]), strict=True):
            assert_close(mine[index], expected)

    def gradients(q):
        o, normaliser, lse = f(q, table)
        settings = (None, table, mask.tensors(), 0.5, True, None, None, 0)
        return library.attention_vjp(q, k, v, o, normaliser, o, lse, *settings, True)

    found = torch.vmap(gradients, in_dims=2)(several)
    for index in range(2):  # that of the table is one for each sample, though they share it
        for mine, expected in zip(found, gradients(several[:, :, index]), strict=True):
            assert_close(mine[index], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_of_the_operator(dtype):
    from howsmooth.attention import library

    q, k, v = (normal(i, 1, 2, 5, 4).float() for i in range(3))
    settings = (None, None, [], 0.5, False, None, None, 0, False)
    with torch.autocast("cpu", dtype=dtype):
        found = library.attention(q, k, v, *settings)[0]
        theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    assert found.dtype == theirs.dtype == dtype
    assert_close(found, library.attention(*(t.to(dtype) for t in (q, k, v)), *settings)[0])


def test_a_transformers_model():
    transformers = pytest.importorskip("transformers")
    howsmooth.register()
    config = transformers.LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attn_implementation="howsmooth",
    )
    torch.manual_seed(0)
    network = transformers.LlamaModel(config).double().eval()
    x = normal(1, 1, 6, 16)

    def f(x):
        return network(inputs_embeds=x, use_cache=False).last_hidden_state

    assert_close(compiled(f)(x), f(x))
    jvp = compiled(lambda x, dx: torch.func.jvp(f, (x,), (dx,)))
    dx = normal(2, 1, 6, 16)
    for found, expected in zip(jvp(x, dx), torch.func.jvp(f, (x,), (dx,)), strict=True):
        assert_close(found, expected)
