"""Sparse masks, packed documents, sinks, tables with a gradient and the log-sum-exp, against dense formulas."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask

from howsmooth import InputError, SparseMask, attend
from howsmooth.attention import attend_with_lse
from tests.attention.cases import normal
from tests.tolerances import assert_close

N, M = 150, 300


def dense(q, k, v, table=None, mask=None, sinks=None):
    """Attention with all scores in memory; a sink is a column of scores without a value."""
    groups = q.shape[-3] // k.shape[-3]
    k, v = (t.repeat_interleave(groups, -3) for t in (k, v))
    s = q @ k.mT / q.shape[-1] ** 0.5
    s = s if table is None else s + table
    s = s if mask is None else s.masked_fill(~mask, -torch.inf)
    last = torch.full_like(s[..., :1], -torch.inf) if sinks is None else sinks[:, None, None].expand_as(s[..., :1])
    p = torch.softmax(torch.cat([s, last], -1), -1)[..., :-1]
    return torch.nan_to_num(p) @ v  # a row without keys and sinks gives 0


def derivatives(f, leaves, along):
    """The value, the tangent along `along` of the first three, and the gradients of a loss of both in all leaves."""
    leaves = [t.detach().clone().requires_grad_() for t in leaves]
    o, do = torch.func.jvp(lambda *at: f(*at, *leaves[3:]), tuple(leaves[:3]), tuple(along))
    return o, do, *torch.autograd.grad(o.square().sum() + do.pow(3).sum(), leaves)


def qkv(n=N, m=M, heads=4, key_heads=2, b=2):
    shapes = ((b, heads, n, 4), (b, key_heads, m, 4), (b, key_heads, m, 3))
    return [normal(i, *shape) for i, shape in enumerate(shapes)], [normal(9 + i, *s) for i, s in enumerate(shapes)]


def assert_all_close(found, expected):
    for mine, wanted in zip(found, expected, strict=True):
        assert_close(mine, wanted)


PREDICATES = {
    "blocks": lambda i, j: i // 40 == j // 80,
    "a few columns": lambda i, j: (j == 7) | (j == 280) | (j == i),
    "by head": lambda i, j: (i + j) // 70 % 4 == torch.arange(4)[:, None, None],
    "everything": lambda i, j: (i >= 0) & (j >= 0),
}


@pytest.mark.parametrize("visible", PREDICATES.values(), ids=PREDICATES)
def test_a_predicate(visible):
    at, along = qkv()
    i, j = torch.arange(N).unsqueeze(1), torch.arange(M).unsqueeze(0)
    mask = SparseMask.from_function(visible, N, M)
    assert torch.equal(mask.dense(), visible(i, j).reshape(1, -1, N, M))  # exact: booleans
    expected = derivatives(lambda q, k, v: dense(q, k, v, mask=visible(i, j)), at, along)
    assert_all_close(derivatives(lambda q, k, v: attend(q, k, v, mask=mask), at, along), expected)


def test_a_query_that_sees_nothing_has_the_output_zero():
    at, _ = qkv()
    mask = SparseMask.from_function(lambda i, j: (i > 130) & (j < 5), N, M)
    o = attend(*at, mask=mask)
    assert_close(o[:, :, :131], torch.zeros(2, 4, 131, 3).double())
    assert_close(o, dense(*at, mask=mask.dense()))


def test_a_sparse_mask_and_the_other_masks_are_intersected():
    at, along = qkv(n=M)
    mask = SparseMask.from_function(lambda i, j: i // 80 == j // 80, M)
    i, j = torch.arange(M).unsqueeze(1), torch.arange(M).unsqueeze(0)
    padding = torch.ones(M, dtype=torch.bool)
    padding[[5, 6, 100, 200, 299]] = False
    pairs = (i // 80 == j // 80) & (j <= i) & (i - j < 50) & padding
    expected = derivatives(lambda q, k, v: dense(q, k, v, mask=pairs), at, along)
    found = derivatives(lambda q, k, v: attend(q, k, v, mask=mask, causal=True, window=50, padding=padding), at, along)
    assert_all_close(found, expected)


@pytest.mark.parametrize("causal", [False, True])
def test_packed_documents_are_attended_one_by_one(causal):
    lengths = [100, 1, 60, 139]
    at, _ = qkv(n=M)
    ends = torch.tensor([0, *lengths]).cumsum(0)
    by_length = SparseMask.documents(cu_seqlens=ends, causal=causal)
    by_segment = SparseMask.documents(torch.repeat_interleave(torch.arange(4), torch.tensor(lengths)), causal=causal)
    assert torch.equal(by_length.dense(), by_segment.dense())  # exact: booleans
    parts = [attend(*(t[:, :, a:b] for t in at), causal=causal) for a, b in pairwise(ends)]
    assert_close(attend(*at, mask=by_length), torch.cat(parts, 2))


def test_documents_that_differ_between_sequences():
    at, _ = qkv(n=M)
    segments = torch.stack([torch.arange(M) // 100, torch.arange(M) // 170])
    expected = dense(*at, mask=(segments[:, :, None] == segments[:, None])[:, None])
    assert_close(attend(*at, mask=SparseMask.documents(segments)), expected)


@pytest.mark.parametrize("size", [128, 64])
def test_a_block_mask_of_flex_attention(size):
    at, _ = qkv(n=M)
    bias = torch.arange(4)

    def visible(b, h, i, j):
        return (i - j < 40 + 20 * bias[h]) & (j <= i + b)

    theirs = create_block_mask(visible, 2, 4, M, M, device="cpu", BLOCK_SIZE=size)
    i, j = torch.arange(M).unsqueeze(1), torch.arange(M).unsqueeze(0)
    pairs = torch.stack([torch.stack([visible(b, h, i, j) for h in range(4)]) for b in range(2)])
    assert torch.equal(SparseMask.from_block_mask(theirs).dense(), pairs)  # exact: booleans
    assert_close(attend(*at, mask=theirs), dense(*at, mask=pairs))


def test_vmap_repeats_a_mask_for_each_sequence():
    at, _ = qkv(n=M)
    segments = torch.stack([torch.arange(M) // 100, torch.arange(M) // 170])
    mask = SparseMask.documents(segments)
    several = [torch.stack([t, t.sin()]) for t in at]
    found = torch.vmap(lambda q, k, v: attend(q, k, v, mask=mask))(*several)
    assert_close(found, torch.stack([attend(*(t[i] for t in several), mask=mask) for i in range(2)]))


@pytest.mark.parametrize("shape", [(5, 6), (4, 5, 6), (2, 1, 5, 6), (2, 4, 5, 6)], ids=str)
def test_the_gradient_of_a_table_and_of_sinks(shape):
    at, along = qkv(5, 6)
    table, sinks = normal(40, *shape), normal(41, 4)
    table.view(-1)[3] = -torch.inf
    expected = derivatives(lambda q, k, v, t, s: dense(q, k, v, table=t, sinks=s), (*at, table, sinks), along)
    found = derivatives(lambda q, k, v, t, s: attend(q, k, v, score_bias=t, sinks=s), (*at, table, sinks), along)
    assert_all_close(found, expected)


def test_the_gradient_of_sinks_of_little_weight_keeps_its_digits():
    at, along = qkv()
    at[2] = at[2] + 3
    sinks = torch.full((4,), -8.0, dtype=torch.float64)  # a weight of about 10⁻⁶
    *_, wanted = derivatives(lambda q, k, v, t: dense(q, k, v, sinks=t), [*at, sinks], along)
    single = [t.float() for t in (*at, sinks)]
    *_, found = derivatives(lambda q, k, v, t: attend(q, k, v, sinks=t), single, [t.float() for t in along])
    assert_close(found.double() / wanted.norm(), wanted / wanted.norm(), 1e-5)


def test_every_mode_of_derivative_of_a_table_and_of_sinks():
    at = [t[:1].clone().requires_grad_() for t in qkv(4, 4)[0]]
    table, sinks = normal(40, 4, 4, 4).requires_grad_(), normal(41, 4).requires_grad_()

    def f(q, k, v, table, sinks):
        return attend(q, k, v, score_bias=table, sinks=sinks, softcap=2.0)

    assert torch.autograd.gradcheck(f, (*at, table, sinks), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(f, (*at, table, sinks), check_fwd_over_rev=True)


def test_gradients_of_a_shared_table_for_each_sample():
    at, _ = qkv(5, 6)
    table = normal(40, 4, 5, 6)
    several = [torch.stack([t, t.cos(), t.sin()]) for t in at]

    def gradient(q, k, v):
        return torch.func.grad(lambda t: attend(q, k, v, score_bias=t).square().sum())(table)

    found = torch.vmap(gradient)(*several)
    assert_close(found, torch.stack([gradient(*(t[i] for t in several)) for i in range(3)]))


def test_the_log_sum_exp():
    at = [t.requires_grad_() for t in qkv(4, 4)[0]]
    o, lse = attend_with_lse(*at, causal=True)
    s = at[0] @ at[1].repeat_interleave(2, 1).mT / 2
    s = s.masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -torch.inf)
    assert_close(lse, s.logsumexp(-1))
    assert_close(o, attend(*at, causal=True))
    assert torch.autograd.gradcheck(lambda *t: attend_with_lse(*t, causal=True), at, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(lambda *t: attend_with_lse(*t, causal=True), at, check_fwd_over_rev=True)


def test_the_log_sum_exp_of_a_query_that_sees_nothing():
    (q, k, v), _ = qkv(4, 4)
    assert torch.isneginf(attend_with_lse(q, k, v, padding=torch.zeros(4, dtype=torch.bool))[1]).all()


def test_attention_over_two_sets_of_keys_can_be_merged():
    (q, k, v), _ = qkv(4, 6)
    parts = [attend_with_lse(q, k[:, :, keys], v[:, :, keys]) for keys in (slice(0, 2), slice(2, 6))]
    total = torch.logaddexp(parts[0][1], parts[1][1])
    merged = sum(o * (lse - total).exp().unsqueeze(-1) for o, lse in parts)
    assert_close(merged, attend(q, k, v))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SparseMask.from_function(lambda i, j: i - j, 5), "returns booleans"),
        (lambda: SparseMask.from_function(lambda i, j: i > j, 0), "at least one query"),
        (lambda: SparseMask.documents(), "segments or cu_seqlens, got both or neither"),
        (lambda: SparseMask.documents(cu_seqlens=torch.tensor([0, 5, 3])), "begin with 0 and do not decrease"),
        (lambda: SparseMask.documents(torch.rand(5)), r"integers of shape \(n,\)"),
        (lambda: attend(*qkv()[0], mask=SparseMask.documents(torch.zeros(N, dtype=int))), "150 × 300 pairs for 1 or 2"),
        (lambda: attend(*qkv()[0], mask=lambda i, j: i > j), "a SparseMask, a BlockMask"),
        (lambda: attend(*qkv()[0], mask=torch.zeros(N, M)), "boolean mask"),
        (lambda: attend(*qkv()[0], sinks=torch.zeros(3)), r"sinks of shape \(4,\)"),
        (lambda: attend(*qkv()[0], score_bias=torch.zeros(N, M, device="meta")), "score_bias on cpu"),
    ],
)
def test_bad_masks_are_refused(make, message):
    with pytest.raises(InputError, match=message):
        make()
