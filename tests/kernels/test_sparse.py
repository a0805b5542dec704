"""Sparse masks, cotangents of the log-sum-exp and gradients of tables in the kernels, against float64."""

from __future__ import annotations

import pytest
import torch

from tests import reasons

pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import kernels
from howsmooth.attention import blockwise
from howsmooth.attention.pattern import Pattern
from howsmooth.attention.sparse import SparseMask
from howsmooth.kernels import tiles
from howsmooth.kernels.tiles import Tiles
from tests.attention.cases import normal
from tests.kernels.cases import DEVICE, TOLERANCE, assert_near, problem
from tests.tiers import rest_is_slow

# Sequences, query heads, key heads, queries, keys, widths.
LAYOUT = (2, 4, 2, 150, 270, 16, 16)
SMALL = (2, 2, 1, 70, 130, 16, 16)  # where there are no blocks of a mask: several tiles of queries and of keys
PLAIN = dict(scale=0.25, causal=False, window=None, softcap=None, offset=0)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Tiles smaller than the blocks of a sparse mask, so that several of them are in one block."""
    for key in list(tiles.TABLE):
        monkeypatch.setitem(tiles.TABLE, key, Tiles(64, 64, 4, 2))


def by_kernels(at, directions, g, options, g_lse=None):
    o, normaliser = kernels.forward(*at, **options)
    do, mu = kernels.jvp(*at, o, normaliser, *directions, **options)
    pulled = kernels.vjp(*at, o, normaliser, g, g_lse=g_lse, **options)
    return o, do, *pulled, *kernels.hvp(*at, o, normaliser, *directions, do, mu, g, h_lse=g_lse, **options)


def by_blocks(at, directions, g, pattern, g_lse=None):
    at, directions, g = [t.double().cpu() for t in at], [t.double().cpu() for t in directions], g.double().cpu()
    g_lse = None if g_lse is None else g_lse.double().cpu()
    o, normaliser = blockwise.forward(*at, pattern)
    linearised = blockwise.Linearisation(*at, o, normaliser, pattern)
    return o, linearised.jvp(*directions), *linearised.vjp(g, g_lse), *linearised.hvp(*directions, g, g_lse=g_lse)


# Whether query i sees key j, given the numbers of heads and sequences; and a layout that is as small as shows it.
PREDICATES = {
    "shared": (lambda i, j, h, b: (i // 60 == j // 100) | (j % 97 == 3), (1, 2, 1)),
    "by head": (lambda i, j, h, b: (i + j) // 70 % 4 == h, (1, 4, 2)),
    "by sequence and head": (lambda i, j, h, b: (i * 0 + j // 128 + b) % 2 == h % 2, (2, 2, 1)),
    "with empty rows": (lambda i, j, h, b: (i > 127) & (j < 140), (1, 2, 1)),
}


@pytest.mark.parametrize("name", PREDICATES)
@pytest.mark.parametrize(
    "options",
    # Two sequences of two groups of heads take most of the time in Triton's interpreter.
    rest_is_slow(
        [{}, dict(whole=True), dict(whole=True, causal=True, offset=120), dict(whole=True, window=40, softcap=1.5)]
    ),
    ids=str,
)
def test_value_and_derivatives_under_a_sparse_mask(name, options):
    visible, smallest = PREDICATES[name]
    layout = LAYOUT if options.get("whole") else (*smallest, *LAYOUT[3:])
    options = {key: value for key, value in options.items() if key != "whole"}
    at, directions, g, _ = problem(layout)
    sequence, head = torch.arange(layout[0])[:, None, None, None], torch.arange(layout[1])[:, None, None]
    mask = SparseMask.from_function(lambda i, j: visible(i, j, head, sequence), 150, 270)
    options = PLAIN | options
    found = by_kernels(at, directions, g, options | dict(sparse=mask.to(DEVICE).kernel_arguments()))
    # The same pairs as a boolean table, which does not know blocks.
    truth = by_blocks(at, directions, g, Pattern(score_bias=mask.dense(), **options))
    for actual, expected in zip(found, truth, strict=True):
        assert_near(actual, expected, 2 * TOLERANCE[torch.float32])


@pytest.mark.parametrize("options", [{}, dict(causal=True, offset=60, softcap=1.5)], ids=str)
def test_a_cotangent_of_the_log_sum_exp(options):
    at, directions, g, _ = problem(SMALL)
    g_lse = normal(70, *g.shape[:-1]).to(DEVICE, torch.float32)
    found = by_kernels(at, directions, g, PLAIN | options, g_lse)
    for actual, expected in zip(found, by_blocks(at, directions, g, Pattern(**PLAIN | options), g_lse), strict=True):
        assert_near(actual, expected, 2 * TOLERANCE[torch.float32])


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 2), (2, 2)], ids=str)
@pytest.mark.parametrize(
    "options", rest_is_slow([{}, dict(causal=True, offset=60, softcap=1.5), dict(window=40)]), ids=str
)
def test_the_gradient_of_a_table(shape, options):
    at, directions, g, _ = problem(SMALL)
    table = normal(60, *shape, *SMALL[3:5]).to(DEVICE, torch.float32)
    g_lse = normal(70, *g.shape[:-1]).to(DEVICE, torch.float32)
    options = PLAIN | options
    o, normaliser = kernels.forward(*at, bias=table, **options)
    do, mu = kernels.jvp(*at, o, normaliser, *directions, bias=table, **options)
    first = kernels.table_gradient(*at, o, normaliser, g, g_lse=g_lse, bias=table, **options)
    second = kernels.table_gradient(
        *at, o, normaliser, g, g_lse=g_lse, along=(*directions, do, mu), bias=table, **options
    )
    at64, along64, g64 = [t.double().cpu() for t in at], [t.double().cpu() for t in directions], g.double().cpu()
    pattern = Pattern(score_bias=table.cpu(), **options)
    o64, normaliser64 = blockwise.forward(*at64, pattern)
    truth = blockwise.Linearisation(*at64, o64, normaliser64, pattern)
    assert_near(first, truth.table_gradient(g64, shape, g_lse.double().cpu()), 2 * TOLERANCE[torch.float32])
    expected = truth.table_gradient(g64, shape, g_lse.double().cpu(), (*along64, None))
    assert_near(second, expected, 2 * TOLERANCE[torch.float32])
