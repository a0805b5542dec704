"""float32 products composed of float16 ones, against the dense reference: masks, and numbers that float16 lacks."""

import pytest
import torch

from tests import reasons

pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import kernels
from howsmooth.attention import reference
from howsmooth.kernels import float32, launch, tiles
from howsmooth.kernels.tiles import Tiles
from tests.kernels.cases import PATTERNS, problem, truth
from tests.tiers import other_pairs_are_slow
from tests.tolerances import at_most

ALLOWED = 2e-6  # relative to the norm of each result, with scores up to 10; float16 alone has 5e-4
WITHOUT_CAP = {name: pattern for name, pattern in PATTERNS.items() if "softcap" not in pattern}
LAYOUTS = [(2, 2, 1, 37, 37, 64, 64), (1, 2, 2, 20, 53, 64, 128), (1, 1, 1, 41, 19, 128, 64)]


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Tiles so small that a few dozen tokens have a head, an interior and a tail; new tensors are filled with NaN."""
    for key in list(tiles.TABLE):
        monkeypatch.setitem(tiles.TABLE, key, Tiles(16 if "dkdv" in key[0] else 32, 16, 4, 2))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))


def size_of_terms(at, directions, g, padding, scale, **pattern):
    """The norms of (P∘ds) v, of scale (P∘gvᵀ) k, of scale (P∘gvᵀ)ᵀ q, and 0; and the size of the scores.

    The row sums are subtracted from these terms. Where a row sees one key they cancel, and only their rounding is left.
    Rounding errors of the scores are relative errors of P.
    """
    q, k, v, dq, dk, _, g = (t.double().cpu() for t in (*at, *directions, g))
    s, _ = reference.scores(q, k, scale=scale, padding=None if padding is None else padding.cpu(), **pattern)
    p = reference.probabilities(s)
    k, v, dk = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v, dk))
    ds, pulled = scale * (dq @ k.mT + q @ dk.mT), scale * p * (g @ v.mT)
    norms = [float(t.norm()) for t in ((p * ds) @ v, pulled @ k, pulled.mT @ q, torch.zeros(()))]
    return norms, float(s.masked_fill(s.isinf(), 0.0).abs().max())


def check(at, directions, g, padding=None, **options):
    pattern = dict(scale=at[0].shape[-1] ** -0.5, causal=False, window=None, softcap=None, offset=0) | options
    o, normaliser = kernels.forward(*at, padding=padding, **pattern)
    derivative = float32.SplitDerivative(*at, o, normaliser, launch.Options(padding=padding, **pattern))
    _, do, pulled = truth(at, directions, g, padding, **pattern)
    actual = derivative.jvp(*directions), *derivative.vjp(g)
    sizes, largest_score = size_of_terms(at, directions, g, padding, **pattern)
    relative = ALLOWED * max(1.0, largest_score / 10)
    for mine, expected, size in zip(actual, (do, *pulled), sizes, strict=True):
        assert mine.shape == expected.shape
        gap, allowed = float((mine.double().cpu() - expected).norm()), relative * max(float(expected.norm()), size)
        assert at_most(gap, allowed), f"error {gap:.2g}, allowed {allowed:.2g}"


@pytest.mark.parametrize(
    ("pattern", "layout"), other_pairs_are_slow(WITHOUT_CAP, [(x, padded) for x in LAYOUTS for padded in (False, True)])
)
def test_masks(pattern, layout):
    at, directions, g, padding = problem(layout[0], padded=layout[1])
    check(at, directions, g, padding, **WITHOUT_CAP[pattern])


@pytest.mark.parametrize("sizes", [(1e-30, 1e-30, 1e-30, 1e-30), (1e20, 1e20, 1e20, 1e20), (1e-6, 1.0, 1e6, 1e-8)])
def test_sizes_of_tangents_and_cotangents(sizes):
    at, directions, g, _ = problem((1, 2, 2, 37, 37, 64, 64))
    scaled = [t * size for t, size in zip((*directions, g), sizes, strict=True)]
    check(at, scaled[:3], scaled[3], causal=True)


@pytest.mark.parametrize("sizes", [(1e3, 1e-3, 1e5), (30.0, 1.0, 1e-6)])
def test_sizes_of_queries_keys_and_values(sizes):
    at, directions, g, _ = problem((1, 2, 2, 37, 37, 64, 64))
    at = [t * size for t, size in zip(at, sizes, strict=True)]
    directions = [t * size for t, size in zip(directions, sizes, strict=True)]
    check(at, directions, g)


def test_one_large_row_beside_small_ones():
    at, directions, g, _ = problem((1, 1, 1, 53, 53, 64, 64))
    for t in (*at[:2], *directions, g):
        t[..., 3, :] *= 2e3 if t.dim() == 4 and t is not at[0] and t is not at[1] else 4
    check(at, directions, g, causal=True)


def test_zero_tangents_give_zero():
    at, directions, g, _ = problem((1, 2, 1, 37, 37, 64, 64))
    check(at, [torch.zeros_like(t) for t in directions], torch.zeros_like(g))


def test_where_it_does_not_apply():
    at, *_ = problem((1, 1, 1, 37, 37, 64, 64))
    o, normaliser = kernels.forward(*at, scale=0.125)
    assert kernels.split_derivative(*at, o, normaliser, scale=0.125) is None  # too short
    assert float32.is_supported(at[0], at[2], launch.Options(0.125))
    assert not float32.is_supported(at[0], at[2], launch.Options(0.125, softcap=2.0))
    assert not float32.is_supported(at[0].half(), at[2].half(), launch.Options(0.125))
    assert not float32.is_supported(at[0][..., :20], at[2], launch.Options(0.125))
