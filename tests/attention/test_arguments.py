"""Arguments of `attend` and the drop-in: causal biases, subclasses of tensors, numbers, empty and meta tensors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left
from torch.nn.attention.flex_attention import create_block_mask

from howsmooth import InputError, SelfAttention, attend, replace_sdpa, scaled_dot_product_attention
from howsmooth.attention import implementation, reference
from tests.attention.cases import normal
from tests.tolerances import assert_close

SIZES = [(6, 6), (6, 10), (10, 6)]


def qkv(n, m, heads=(4, 4, 4)):
    h, of_k, of_v = heads
    return normal(1, 2, h, n, 5), normal(2, 2, of_k, m, 5), normal(3, 2, of_v, m, 7)


def causal_bias(make, n, m):
    with warnings.catch_warnings():  # PyTorch warns of rows without keys, whose output is 0 on a CPU
        warnings.simplefilter("ignore")
        return make(n, m)


def derivatives(f, at):
    """The output, its tangent, the gradients, and the gradients of those."""
    tangents = tuple(normal(20 + i, *t.shape) for i, t in enumerate(at))
    leaves = [t.clone().requires_grad_() for t in at]
    o = f(*leaves)
    first = torch.autograd.grad(o, leaves, normal(30, *o.shape), create_graph=True)
    # PyTorch's gradients of an empty output are constants, hence the second sum.
    second = torch.autograd.grad(sum((t * t).sum() for t in first) + sum(t.sum() for t in leaves), leaves)
    return *torch.func.jvp(f, tuple(at), tangents), *first, *second


def assert_all_close(found, expected):
    for mine, theirs in zip(found, expected, strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_a_causal_bias_of_pytorch_has_no_values_but_is_a_causal_mask(make, n, m):
    at, bias = qkv(n, m), causal_bias(make, n, m)
    pairs = torch.ones(n, m, dtype=torch.bool).tril(0 if make is causal_upper_left else m - n)
    expected = derivatives(lambda *t: F.scaled_dot_product_attention(*t, attn_mask=pairs), at)
    assert_close(expected[0], F.scaled_dot_product_attention(*at, attn_mask=bias))
    assert_all_close(derivatives(lambda *t: scaled_dot_product_attention(*t, attn_mask=bias), at), expected)
    assert_all_close(derivatives(lambda *t: attend(*t, score_bias=bias), at), expected)
    assert_all_close(derivatives(lambda *t: attend(*t, mask=bias, offset=3), at), expected)
    imported = F.scaled_dot_product_attention
    with replace_sdpa():
        assert_close(F.scaled_dot_product_attention(*at, attn_mask=bias), expected[0])
        assert_close(imported(*at, bias), expected[0])
        assert_close(imported(*at, attn_mask=bias), expected[0])
    assert implementation(*at, score_bias=bias) == implementation(*at)


def test_a_causal_bias_beside_other_masks():
    (q, k, v), bias = qkv(6, 10), causal_lower_right(6, 10)
    table = normal(9, 6, 10)
    pairs = torch.ones(6, 10, dtype=torch.bool)
    assert_close(attend(q, k, v, mask=bias, score_bias=table), attend(q, k, v, causal=True, score_bias=table))
    for offset in (0, 7):
        both = pairs.tril(min(offset, 4))
        assert_close(attend(q, k, v, score_bias=bias, causal=True, offset=offset), attend(q, k, v, mask=both))
    with pytest.raises(InputError, match="a CausalBias or a window, got both"):
        attend(q, k, v, score_bias=bias, window=3)
    with pytest.raises(InputError, match="a CausalBias of 6 queries and 10 keys, got one of 3 and 4"):
        scaled_dot_product_attention(q, k, v, attn_mask=causal_upper_left(3, 4))
    with pytest.raises(InputError, match="attn_mask or is_causal, got both"):
        scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=True)


def test_a_causal_bias_is_recorded_by_the_compiler():
    (q, k, v), bias = qkv(6, 10), causal_lower_right(6, 10)
    torch._dynamo.reset()
    compiled = torch.compile(lambda q, bias: attend(q, k, v, score_bias=bias), fullgraph=True, backend="aot_eager")
    assert_close(compiled(q, bias), attend(q, k, v, causal=True))


class Labelled(torch.Tensor):
    """A subclass that computes as tensors do."""


class Scaled(torch.Tensor):
    """A subclass whose entries in memory are not its values."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapped(torch.Tensor):
    """A subclass without memory of its own."""

    @staticmethod
    def __new__(cls, inside):
        return torch.Tensor._make_wrapper_subclass(cls, inside.shape, dtype=inside.dtype)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


UNREADABLE = {
    "rules of its own": (lambda t: t.as_subclass(Scaled), "as a plain torch.Tensor, got a Scaled"),
    "no memory": (Wrapped, "as a plain torch.Tensor, got a Wrapped"),
    "masked": (
        lambda t: torch.masked.masked_tensor(t.detach(), t > 0),
        r"as a plain torch.Tensor, got a MaskedTensor.*get_data\(\)",
    ),
    "sparse": (lambda t: t.to_sparse(), r"got the layout torch.sparse_coo; use .to_dense\(\)"),
    "nested": (lambda t: torch.nested.nested_tensor([t, t]), "of one length for all sequences, got a nested tensor"),
    "jagged": (
        lambda t: torch.nested.nested_tensor([t, t], layout=torch.jagged),
        "of one length for all sequences, got a nested tensor",
    ),
    "numpy": (lambda t: t.numpy(), "as a torch.Tensor, got ndarray; convert it by torch.as_tensor"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of (MaskedTensors|nested tensors):UserWarning")
@pytest.mark.parametrize(("make", "message"), UNREADABLE.values(), ids=UNREADABLE)
def test_tensors_that_do_not_contain_their_values_are_refused(make, message):
    q, k, v = (t[0] for t in qkv(6, 6))
    odd = make(q)
    for name in ("q", "k", "v"):
        with pytest.raises(InputError, match=f"expected (a dense )?{name} ?.*{message}"):
            attend(**(dict(q=q, k=k, v=v) | {name: odd}))
    with pytest.raises(InputError, match=message):
        scaled_dot_product_attention(odd, k, v)
    with replace_sdpa(), pytest.raises(InputError, match=message):
        F.scaled_dot_product_attention(odd, k, v)
    odd = make(normal(5, 6, 6))
    if isinstance(odd, torch.Tensor):
        with pytest.raises(InputError, match=message):
            attend(q, k, v, score_bias=odd)
        with pytest.raises(InputError, match=message):
            scaled_dot_product_attention(q, k, v, attn_mask=odd)
        with pytest.raises(InputError, match=message):
            attend(q, k, v, padding=odd)
        with pytest.raises(InputError, match=message):
            attend(q, k, v, sinks=odd)
        with pytest.raises(InputError, match=message):
            attend(q, k, v, mask=odd)


TABLES_THAT_ARE_NONE = {
    "numpy": lambda: np.zeros((6, 6)),
    "list": lambda: [[0.0] * 6] * 6,
    "block mask": lambda: create_block_mask(lambda b, h, i, j: i >= j, None, None, 6, 6, device="cpu"),
}


@pytest.mark.parametrize("make", TABLES_THAT_ARE_NONE.values(), ids=TABLES_THAT_ARE_NONE)
def test_a_table_is_a_tensor(make):
    q, k, v = qkv(6, 6)
    table = make()
    kind = type(table).__name__
    with pytest.raises(InputError, match=f"score_bias as a table, a torch.Tensor, or a function .*, got {kind}"):
        attend(q, k, v, score_bias=table)
    with pytest.raises(InputError, match=f"attn_mask as a torch.Tensor, got {kind}"):
        scaled_dot_product_attention(q, k, v, attn_mask=table)
    with replace_sdpa(), pytest.raises(InputError, match=f"attn_mask as a torch.Tensor, got {kind}"):
        F.scaled_dot_product_attention(q, k, v, attn_mask=table)


def test_parameters_and_subclasses_that_only_add_names_are_read():
    q, k, v = qkv(6, 6)
    expected = attend(q, k, v)
    assert_close(attend(torch.nn.Parameter(q), k, v).detach(), expected)
    assert_close(torch.as_tensor(attend(q.as_subclass(Labelled), k, v)), expected)
    table = normal(5, 6, 6)
    assert_close(attend(q, k, v, score_bias=table.as_subclass(Labelled)), attend(q, k, v, score_bias=table))


def test_a_distributed_tensor_is_refused(tmp_path):
    import torch.distributed as dist
    from torch.distributed.tensor import distribute_tensor, init_device_mesh

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        q = distribute_tensor(normal(1, 2, 4, 6), init_device_mesh("cpu", (1,)))
        with pytest.raises(InputError, match=r"got a DTensor.*\.to_local\(\)"):
            attend(q, q, q)
    finally:
        dist.destroy_process_group()


def test_a_layer_has_a_table_with_values():
    weights = [normal(i, 4, 4) for i in range(3)]
    with pytest.raises(InputError, match=r"got a CausalBias.*use causal=True"):
        SelfAttention(*weights, heads=2, score_bias=causal_upper_left(5, 5))
    pairs = torch.ones(5, 5, dtype=torch.bool).tril()
    f, x = SelfAttention(*weights, heads=2, score_bias=pairs), normal(8, 5, 4)
    assert_close(f.converted(dtype=torch.float64)(x), SelfAttention(*weights, heads=2, causal=True)(x))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("window", 1.5, "window ≥ 1, a whole number, got 1.5"),
        ("window", True, "window ≥ 1, a whole number, got True"),
        ("window", np.float64(2), "window ≥ 1, a whole number"),
        ("window", "3", "window ≥ 1, a whole number, got '3'"),
        ("window", np.int64(0), "window ≥ 1"),
        ("window", 2**63, r"window ≥ 1, a whole number below 2⁶³, got 9223372036854775808"),
        ("offset", -(2**70), "offset, a whole number below 2⁶³"),
        ("offset", 0.5, "offset, a whole number, got 0.5"),
        ("offset", False, "offset, a whole number, got False"),
        ("softcap", float("inf"), "softcap > 0, a finite number, got inf"),
        ("softcap", "2", "softcap > 0"),
        ("softcap", True, "softcap > 0"),
        ("scale", "1", "a finite scale, got '1'"),
        ("scale", 1j, "a finite scale"),
        ("scale", torch.tensor(0.5, requires_grad=True), "a constant scale.*detach it"),
        ("causal", "no", "causal as True or False, got 'no'"),
        ("causal", 2, "causal as True or False, got 2"),
        ("score_bias", torch.ones(6, 6, dtype=torch.complex64), "a real score_bias"),
        ("padding", torch.ones(3, 6, dtype=torch.bool), r"broadcasts to \(2, 6\), got torch.bool of shape \(3, 6\)"),
        ("padding", torch.ones(6, dtype=torch.bool, device="meta"), "padding on cpu, got one on meta"),
    ],
)
def test_options_that_are_not_numbers_of_their_kind_are_refused(option, value, message):
    with pytest.raises(InputError, match=message):
        attend(*qkv(6, 6), **{option: value})


def test_numbers_of_numpy_are_numbers():
    at = qkv(6, 6)
    options = dict(window=np.int64(3), offset=np.int32(1), scale=np.float32(0.5), softcap=np.float64(2.0))
    plain = dict(window=3, offset=1, scale=0.5, softcap=2.0)
    assert_close(attend(*at, causal=np.bool_(True), **options), attend(*at, causal=True, **plain))


def test_sequences_that_do_not_broadcast_are_refused():
    q, k, v = qkv(6, 6)
    with pytest.raises(InputError, match="sequences that broadcast"):
        attend(q, k.expand(3, 2, 4, 6, 5)[:, 0], v)
    with pytest.raises(InputError, match=r"dtype bool or of a floating dtype, got torch\.int64"):
        scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(6, 6, dtype=torch.int64))


@pytest.mark.parametrize("heads", [(4, 4, 1), (4, 1, 4), (1, 4, 4), (1, 1, 4), (1, 4, 1), (4, 1, 1)], ids=str)
def test_heads_broadcast_as_in_pytorch(heads):
    at = qkv(6, 10, heads)
    assert_all_close(derivatives(scaled_dot_product_attention, at), derivatives(F.scaled_dot_product_attention, at))
    assert_close(scaled_dot_product_attention(*at, is_causal=True), F.scaled_dot_product_attention(*at, is_causal=True))


@pytest.mark.parametrize("heads", [(4, 4, 1), (4, 2, 1), (4, 2, 4), (4, 1, 2), (6, 3, 2), (4, 2, 2)], ids=str)
def test_keys_and_values_shared_by_different_numbers_of_queries(heads):
    at = qkv(6, 10, heads)
    expected = derivatives(lambda *t: F.scaled_dot_product_attention(*t, enable_gqa=True), at)
    assert_all_close(derivatives(lambda *t: scaled_dot_product_attention(*t, enable_gqa=True), at), expected)
    assert_all_close(derivatives(attend, at), expected)


# sequences, heads, queries, keys, width of the keys, width of the values
EMPTY = [(2, 4, 0, 10, 5, 7), (2, 4, 6, 0, 5, 7), (2, 4, 0, 0, 5, 7), (0, 4, 6, 10, 5, 7), (2, 0, 6, 10, 5, 7)]
EMPTY += [(2, 4, 6, 10, 0, 7), (2, 4, 6, 10, 5, 0)]


@pytest.mark.parametrize("options", [{}, dict(is_causal=True), "table"], ids=["plain", "causal", "table"])
@pytest.mark.parametrize("sizes", EMPTY, ids=str)
def test_empty_tensors_give_what_pytorch_gives(sizes, options):
    b, h, n, m, width, w = sizes
    at = normal(1, b, h, n, width), normal(2, b, h, m, width), normal(3, b, h, m, w)
    options = dict(attn_mask=normal(4, n, m)) if options == "table" else options
    ours, theirs = (
        derivatives(lambda *t, f=f: f(*t, **options), at)
        for f in (scaled_dot_product_attention, F.scaled_dot_product_attention)
    )
    assert_all_close(ours, theirs)
    five = [t.unsqueeze(0) for t in at]
    assert_close(attend(*five), F.scaled_dot_product_attention(*at).unsqueeze(0))
    assert_close(torch.func.vmap(attend)(*five), F.scaled_dot_product_attention(*at).unsqueeze(0))


def test_a_query_without_keys_leaves_all_weight_to_the_sink():
    q, k, v = qkv(6, 0)
    assert_close(attend(q, k, v, sinks=normal(5, 4)), torch.zeros(2, 4, 6, 7))
    assert_close(attend(q, k, v, padding=torch.ones(0, dtype=torch.bool)), torch.zeros(2, 4, 6, 7))


@pytest.mark.parametrize("options", [{}, dict(is_causal=True), "table", "boolean"], ids=str)
def test_meta_tensors_have_the_shapes_of_all_derivatives(options):
    at = [t.to("meta") for t in qkv(6, 10)]
    if isinstance(options, str):
        table = torch.zeros(6, 10, device="meta", dtype=torch.bool if options == "boolean" else torch.float64)
        options = dict(attn_mask=table)

    def shapes(f):
        leaves = [t.clone().requires_grad_() for t in at]
        o = f(*leaves, **options)
        first = torch.autograd.grad(o.sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum((t * t).sum() for t in first), leaves)
        pushed = torch.func.jvp(lambda *t: f(*t, **options), tuple(at), tuple(at))
        pulled = torch.func.grad(lambda q: f(q, *at[1:], **options).sum())(at[0])
        return [(t.shape, t.dtype, t.device.type) for t in (o, *first, *second, *pushed, pulled)]

    assert shapes(scaled_dot_product_attention) == shapes(F.scaled_dot_product_attention)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attend(*at).device.type == "meta"
    with pytest.raises(InputError, match="on one device, got meta, cpu, cpu"):
        attend(at[0], *qkv(6, 10)[1:])


class Attention(torch.nn.Module):
    def forward(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def test_a_trace_is_exact_and_holds_for_other_lengths_and_derivatives():
    """The scale used to be rounded to float32, and the number of blocks of queries was fixed."""
    at, longer = qkv(6, 10), qkv(300, 140)
    with replace_sdpa(), warnings.catch_warnings():
        warnings.simplefilter("error", torch.jit.TracerWarning)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        traced = torch.jit.trace(Attention(), at)
    for tensors in (at, longer):
        leaves = [t.clone().requires_grad_() for t in tensors]
        expected = reference.forward(*leaves, causal=True, offset=0)
        found = traced(*leaves)
        assert_close(found, expected)
        g = normal(9, *found.shape)
        assert_all_close(torch.autograd.grad(found, leaves, g), torch.autograd.grad(expected, leaves, g))


TRACED = {
    "plain": lambda q, k, v, table, row: scaled_dot_product_attention(q, k, v),
    "bottom right": lambda q, k, v, table, row: attend(q, k, v, window=3),
    "table": lambda q, k, v, table, row: scaled_dot_product_attention(q, k, v, attn_mask=table),
    "a row": lambda q, k, v, table, row: scaled_dot_product_attention(q, k, v, attn_mask=row[None]),
    "padding": lambda q, k, v, table, row: attend(q, k, v, padding=row),
    "shared": lambda q, k, v, table, row: attend(q, k[..., :2, :, :], v[..., :1, :, :]),
    "broadcast": lambda q, k, v, table, row: scaled_dot_product_attention(q[..., :1, :, :], k, v),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize("lead", [(), (2,), (3, 2)], ids=str)
@pytest.mark.parametrize("f", TRACED.values(), ids=TRACED)
def test_traces_of_every_shape_hold_for_other_lengths(f, lead):
    def arguments(n, m):
        shapes = (*lead, 4, n, 5), (*lead, 4, m, 5), (*lead, 4, m, 7), (n, m), (m,)
        *tensors, row = (normal(i, *shape) for i, shape in enumerate(shapes))
        return *tensors, row > -0.5

    traced, longer = torch.jit.trace(f, arguments(6, 5)), arguments(12, 11)
    assert_close(traced(*longer), f(*longer))


class Selected(torch.nn.Module):
    def forward(self, q, k, v, keep):
        index = keep.nonzero().squeeze(1)
        k, v = k.index_select(2, index), v.index_select(2, index)
        pairs = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(2)
        return scaled_dot_product_attention(q, k, v, attn_mask=pairs)


@pytest.mark.parametrize("strict", [True, False])
def test_export_with_a_mask_whose_size_depends_on_data(strict):
    at = qkv(6, 10)
    keep, less = torch.arange(10) < 7, torch.arange(10) % 2 == 0
    program = torch.export.export(Selected(), (*at, keep), strict=strict)
    for some in (keep, less):
        assert_close(program.module()(*at, some), Selected()(*at, some))
