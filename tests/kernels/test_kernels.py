"""The kernels against the dense reference: every option, at sizes that no tile divides."""

import pytest
import torch

from tests import reasons

pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import kernels
from howsmooth.attention import blockwise
from howsmooth.attention.pattern import Pattern
from howsmooth.kernels import launch, tiles
from howsmooth.kernels.tiles import Tiles
from tests.kernels.cases import DEVICE, LAYOUTS, PATTERNS, TOLERANCE, assert_near, problem, second_truth, truth
from tests.tiers import other_pairs_are_slow, rest_is_slow
from tests.tolerances import at_most

HALVES = [
    torch.float16,
    pytest.param(torch.bfloat16, marks=pytest.mark.skipif(DEVICE == "cpu", reason=reasons.BFLOAT16)),
]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Fill new tensors with NaN, so that entries that a kernel does not write are noticed."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))


@pytest.fixture
def small(monkeypatch):
    """Tiles so small that a few dozen tokens have a head, an interior and a tail; rows and keys differ."""
    for key in list(tiles.TABLE):
        rows, tangents = 16 if key[0] in ("dkdv", "hvp keys") else 32, 4 if key[0].startswith("jvps") else 1
        monkeypatch.setitem(tiles.TABLE, key, Tiles(rows, 16, 4, 2, tangents))


def pattern_of(options: dict, width: int) -> dict:
    return dict(scale=width**-0.5, causal=False, window=None, softcap=None, offset=0) | options


def everything(at, directions, g, padding, **options):
    o, normaliser = kernels.forward(*at, padding=padding, **options)
    do, mu = kernels.jvp(*at, o, normaliser, *directions, padding=padding, **options)
    pulled = kernels.vjp(*at, o, normaliser, g, padding=padding, implementation="triton", **options)
    if do.dim() == 5:  # several tangents
        return o, do, pulled, ()
    return o, do, pulled, kernels.hvp(*at, o, normaliser, *directions, do, mu, g, padding=padding, **options)


def check(layout, pattern, dtype=torch.float32, padded=False, tangents=None, **more):
    at, directions, g, padding = problem(layout, dtype=dtype, padded=padded, tangents=tangents)
    options = pattern_of(pattern, layout[5])
    o, do, pulled, second = everything(at, directions, g, padding, **options, **more)
    o64, do64, pulled64 = truth(at, directions, g, padding, **options)
    for actual, expected in ((o, o64), (do, do64), *zip(pulled, pulled64, strict=True)):
        assert actual.dtype == more.get("out_dtype", dtype)
        assert_near(actual, expected, TOLERANCE[dtype])
    if second:
        for actual, expected in zip(second, second_truth(at, directions, g, padding, **options), strict=True):
            assert actual.dtype == more.get("out_dtype", dtype)
            assert_near(actual, expected, 2 * TOLERANCE[dtype])


@pytest.mark.parametrize(
    ("pattern", "layout"), other_pairs_are_slow(PATTERNS, [*((x, False) for x in LAYOUTS), (LAYOUTS[1], True)])
)
def test_value_derivative_and_transpose(pattern, layout):
    check(layout[0], PATTERNS[pattern], padded=layout[1])


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("pattern", "lengths"),
    other_pairs_are_slow(
        [
            {},
            dict(causal=True),
            dict(window=20),
            dict(causal=True, window=40),
            dict(causal=True, window=33, offset=5),
            dict(window=25, offset=-9),
            dict(causal=True, offset=-20),
            dict(causal=True, offset=16),
        ],
        [(64, 96), (101, 101)],
    ),
)
def test_head_interior_and_tail_of_the_key_loops(pattern, lengths):
    check((1, 2, 1, *lengths, 16, 16), pattern)


@pytest.mark.usefixtures("small")
def test_padding_in_a_window_over_several_blocks():
    check((2, 1, 1, 71, 71, 16, 16), dict(window=30), padded=True)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("tangents", [1, 7])
@pytest.mark.parametrize("pattern", [dict(causal=True), dict(softcap=1.5, window=6)], ids=str)
def test_several_tangents_in_one_pass(pattern, tangents):
    check(LAYOUTS[1], pattern, tangents=tangents)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("pattern", rest_is_slow([dict(causal=True, window=7), {}, dict(softcap=1.5)]), ids=str)
@pytest.mark.parametrize("tangents", [None, 4])
def test_half_precision(pattern, dtype, tangents):
    check(LAYOUTS[1], pattern, dtype, tangents=tangents)


@pytest.mark.parametrize("dtype", HALVES)
def test_float32_out_of_half_precision_in(dtype):
    check(LAYOUTS[1], dict(causal=True), dtype, out_dtype=torch.float32)


@pytest.mark.parametrize(("width", "dtype"), [(33, torch.float32), (80, torch.float32), (256, torch.float16)], ids=str)
def test_wide_heads(width, dtype):
    check((1, 1, 1, 19, 23, width, width), dict(causal=True, offset=4), dtype)


@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
def test_exactly_the_supported_widths_have_tiles(dtype):
    mine = [(kernel, width) for kernel, itemsize, width in tiles.TABLE if itemsize == dtype.itemsize]
    widths = {width for _, width in mine}
    assert max(widths) == kernels.MAX_WIDTH[dtype.itemsize]
    for kernel in ("forward", "jvp", "jvps", "dq", "dkdv", "hvp queries", "hvp keys"):
        assert widths == {width for name, width in mine if name == kernel}


def test_tangents_and_outputs_in_float32_beside_half_precision():
    layout = LAYOUTS[1]
    at, _, _, _ = problem(layout, dtype=torch.float16)
    _, directions, g, _ = problem(layout)
    options = pattern_of(dict(causal=True), layout[5])
    o, normaliser = kernels.forward(*at, out_dtype=torch.float32, **options)
    do = kernels.jvp(*at, o, normaliser, *directions, out_dtype=torch.float32, **options)[0]
    pulled = kernels.vjp(*at, o, normaliser, g, out_dtype=torch.float32, **options)
    _, do64, pulled64 = truth(at, directions, g, None, **options)
    for actual, expected in ((do, do64), *zip(pulled, pulled64, strict=True)):
        assert_near(actual, expected, TOLERANCE[torch.float16])


@pytest.mark.parametrize("pattern", [{}, dict(causal=True, offset=-3), dict(softcap=2.0, window=3)], ids=str)
def test_the_normaliser_equals_that_of_the_blockwise_pass(pattern):
    at, _, _, padding = problem(LAYOUTS[1], padded=True)
    options = pattern_of(pattern, LAYOUTS[1][5])
    _, normaliser = kernels.forward(*at, padding=padding, **options)
    _, expected = blockwise.forward(*(t.double() for t in at), Pattern(**options), padding)
    empty = torch.isinf(expected[..., 1])
    assert torch.equal(torch.isposinf(normaliser[..., 1]), empty)
    assert bool((normaliser[..., 0][empty] == 0).all())
    torch.testing.assert_close(normaliser[~empty].double(), expected[~empty], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pattern", [dict(causal=True), dict(window=3), dict(padded=True)], ids=str)
def test_a_huge_score_on_a_hidden_key_changes_nothing(pattern):
    layout, pattern = (1, 1, 1, 12, 12, 4, 4), dict(pattern)
    at, directions, g, _ = problem(layout)
    padding = None
    if pattern.pop("padded", False):
        padding = torch.tensor([[True] * 11 + [False]], device=DEVICE)
    options = pattern_of(pattern, 4)
    changed = [t.clone() for t in at]
    changed[1][:, :, 11], changed[2][:, :, 11] = 1e4, 1e4
    hidden = 9 if "window" in pattern else 11 if "causal" in pattern else 12  # queries before it do not see key 11
    plain, other = (everything(x, directions, g, padding, **options) for x in (at, changed))
    for a, b in ((plain[0], other[0]), (plain[1], other[1]), (plain[2][0], other[2][0])):
        assert torch.equal(a[:, :, :hidden], b[:, :, :hidden])  # exact: a hidden key adds zero to each sum
    if padding is not None:
        assert bool((other[2][1][:, :, 11] == 0).all() and (other[2][2][:, :, 11] == 0).all())
        for a, b in zip(plain[2], other[2], strict=True):
            assert torch.equal(a, b)  # exact: a hidden key adds zero to each sum


@pytest.mark.skipif(DEVICE == "cpu", reason=reasons.FUSED_PRODUCTS)
@pytest.mark.parametrize("size", [1e4, 1e6])
def test_derivatives_survive_large_scores(size):
    # Scores that differ by 1 at a high level: a log-sum-exp in one number would round them away.
    q = torch.ones(1, 1, 1, 1, device=DEVICE)
    k = torch.tensor([size, size + 1, size + 2], device=DEVICE).view(1, 1, 3, 1)
    v = torch.tensor([1.0, 2.0, 4.0], device=DEVICE).view(1, 1, 3, 1)
    o, normaliser = kernels.forward(q, k, v, scale=1.0)
    *_, dv = kernels.vjp(q, k, v, o, normaliser, torch.ones_like(o), scale=1.0)
    p = torch.softmax(torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64), 0)
    assert_near(dv.flatten(), p, 1e-5)
    do = kernels.jvp(q, k, v, o, normaliser, torch.zeros_like(q), torch.zeros_like(k), v, scale=1.0)[0]
    assert_near(do.flatten(), (p * v.flatten().cpu()).sum().view(1), 1e-5)


def test_strides_are_respected():
    b, h, n, width = 2, 2, 21, 8
    at, directions, g, _ = problem((b, h, h, n, n, width, width), tangents=2)
    options = pattern_of(dict(causal=True), width)
    inside = [t.transpose(-3, -2).contiguous().transpose(-3, -2) for t in (*at, *directions, g)]
    packed = torch.stack(at, -2).flatten(-2).unflatten(-1, (3, width)).unbind(-2)  # as slices of one tensor
    expected = everything(at, directions, g, None, **options)
    for x in (inside[:3], packed):
        assert not x[0].is_contiguous()
        o, do, pulled, _ = everything(x, inside[3:6], inside[6], None, **options)
        for actual, wanted in ((o, expected[0]), (do, expected[1]), *zip(pulled, expected[2], strict=True)):
            assert torch.equal(actual, wanted)  # exact: one kernel with the same tiles adds in the same order
    shared = [t[:, :1].expand(b, h, n, width) for t in at]  # a stride of 0
    assert_near(kernels.forward(*shared, **options)[0], truth(shared, directions, g, None, **options)[0], 1e-5)


def test_the_derivative_and_its_transpose_are_adjoint():
    at, directions, g, padding = problem(LAYOUTS[1], padded=True, seed=40)
    _, do, pulled, _ = everything(at, directions, g, padding, **pattern_of(dict(causal=True), LAYOUTS[1][5]))
    left = float((g.double() * do).sum())
    right = sum(float((a.double() * b).sum()) for a, b in zip(pulled, directions, strict=True))
    assert at_most(abs(left - right), 1e-5 * float(g.norm() * do.norm()))


def test_an_unequal_number_of_tangents_is_refused():
    at, directions, _, _ = problem(LAYOUTS[1], tangents=2)
    o, normaliser = kernels.forward(*at, scale=1.0)
    with pytest.raises(ValueError, match="as many dk and dv as dq, got 2, 1 and 2"):
        kernels.jvp(*at, o, normaliser, directions[0], directions[1][:1], directions[2], scale=1.0)


def test_without_a_gpu_the_interpreter_runs():
    assert (DEVICE == "cpu") == launch.INTERPRETED
