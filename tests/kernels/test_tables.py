"""Tables of scores in the kernels, additive and boolean, against the blockwise pass in float64."""

from __future__ import annotations

import pytest
import torch

from tests import reasons

pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import kernels
from howsmooth.attention import blockwise
from howsmooth.attention.pattern import Pattern
from howsmooth.kernels import tiles
from howsmooth.kernels.tiles import Tiles
from tests.attention.cases import normal
from tests.kernels.cases import DEVICE, TOLERANCE, assert_near, problem

LAYOUT = (2, 4, 2, 37, 45, 16, 16)  # sequences, query heads, key heads, queries, keys, widths


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Tiles so small that there are several blocks of rows and of keys."""
    for key in list(tiles.TABLE):
        monkeypatch.setitem(tiles.TABLE, key, Tiles(16, 16, 4, 2))


@pytest.mark.parametrize(
    ("shape", "kind", "options"),
    [
        ((2, 4), "additive", {}),
        ((1, 4), "additive", dict(causal=True, offset=8)),
        ((2, 1), "boolean", dict(window=9, softcap=1.5)),
        ((1, 1), "boolean", {}),
        ((2, 1), "with hidden pairs", dict(causal=True, offset=8)),
        ((1, 1), "with hidden pairs", dict(window=9, softcap=1.5)),
    ],
    ids=str,
)
def test_value_and_derivatives(shape, kind, options):
    at, directions, g, _ = problem(LAYOUT)
    table = normal(60, *shape, 37, 45).to(DEVICE, torch.float32)
    if kind == "boolean":
        table = table > -0.5
        table[..., 3, :] = False  # a row that sees nothing
    elif kind == "with hidden pairs":
        table = table.masked_fill(table > 1, -torch.inf)
    options = dict(scale=0.25, causal=False, window=None, softcap=None, offset=0) | options
    o, normaliser = kernels.forward(*at, bias=table, **options)
    do, mu = kernels.jvp(*at, o, normaliser, *directions, bias=table, **options)
    pulled = kernels.vjp(*at, o, normaliser, g, bias=table, **options)
    second = kernels.hvp(*at, o, normaliser, *directions, do, mu, g, bias=table, **options)
    at64, directions64, g64 = [t.double().cpu() for t in at], [t.double().cpu() for t in directions], g.double().cpu()
    pattern = Pattern(score_bias=table.cpu(), **options)
    o64, normaliser64 = blockwise.forward(*at64, pattern)
    truth = blockwise.Linearisation(*at64, o64, normaliser64, pattern)
    expected = (o64, truth.jvp(*directions64), *truth.vjp(g64), *truth.hvp(*directions64, g64))
    for found, wanted in zip((o, do, *pulled, *second), expected, strict=True):
        assert_near(found, wanted, 2 * TOLERANCE[torch.float32])
