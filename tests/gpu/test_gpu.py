"""On a GPU: random shapes against dense float64, with at most twice the error of PyTorch's own in the same dtype."""

import pytest
import torch

from tests import reasons

if not torch.cuda.is_available():
    pytest.skip(reasons.GPU, allow_module_level=True)
pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import kernels
from tests.tolerances import at_most

DTYPES = [torch.bfloat16, torch.float16]
# One unit of rounding of the dtype (half the distance from 1 to the next number) is always allowed: where a row sees a
# single key PyTorch may be exact, which is no measure for sums of rounded terms.
FLOOR = {dtype: torch.finfo(dtype).eps / 2 for dtype in DTYPES}
LENGTHS = [1, 2, 3, 17, 64, 127, 128, 257, 1000, 1021, 2000]


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Fill new tensors with NaN, so that entries that a kernel does not write are noticed."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: _poison(empty(*a, **k)))


def _poison(t):
    return t.fill_(torch.nan) if t.is_floating_point() else t


def hidden(n, m, causal=False, window=None, offset=0, padding=None, **_):
    """Return which pairs are masked, (b or 1, 1, n, m)."""
    ahead = torch.arange(m, device="cuda") - (torch.arange(n, device="cuda")[:, None] + offset)
    out = torch.zeros(n, m, dtype=torch.bool, device="cuda")
    if causal:
        out |= ahead > 0
    if window is not None:
        out |= (ahead <= -window) | (ahead >= window)
    out = out[None, None]
    return out if padding is None else out | ~padding[:, None, None, :]


def probabilities(q, k, scale, softcap=None, **pattern):
    s = scale * (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    mask = hidden(q.shape[2], k.shape[2], **pattern)
    p = torch.softmax(s.masked_fill(mask, -torch.inf), -1)
    return torch.where(mask.all(-1, keepdim=True), 0.0, p)


def dense(q, k, v, **pattern):
    return probabilities(q, k, **pattern) @ v.repeat_interleave(q.shape[1] // k.shape[1], 1)


def draw(seed, b, h, hkv, n, m, k, w, dtype):
    g = torch.Generator("cuda").manual_seed(seed)
    shapes = ((b, h, n, k), (b, hkv, m, k), (b, hkv, m, w))
    at = [torch.randn(s, device="cuda", generator=g).to(dtype) for s in shapes]
    tangents = [torch.randn(s, device="cuda", generator=g).to(dtype) for s in shapes]
    return at, tangents, torch.randn(b, h, n, w, device="cuda", generator=g).to(dtype)


def derivatives(at, tangents, g, **pattern):
    def f(*x):
        return dense(*x, **pattern)

    o, do = torch.func.jvp(f, tuple(at), tuple(tangents))
    second = torch.func.vjp(lambda *x: torch.func.jvp(f, x, tuple(tangents))[1], *at)[1](g)
    return o, do, *torch.func.vjp(f, *at)[1](g), *second


def cancelling(q, k, v, g, scale, **pattern):
    """Return the norms of scale (P∘gvᵀ) k, of the corresponding term of dk, and 0.

    In dq and dk the row sums are subtracted from these terms. Where a row sees one key they cancel, and only their
    rounding is left.
    """
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    t = probabilities(q, k, scale, **pattern) * (g @ v.mT)
    return float((scale * t @ k).norm()), float((scale * t.mT @ q).norm()), 0.0


def error(actual, truth, terms: float = 0.0) -> float:
    """Return the error relative to the norm of the truth, to that of terms that cancel in it, or to 0.05 per entry."""
    assert actual.shape == truth.shape
    gap = float((actual.double() - truth).norm())
    return gap / max(float(truth.norm()), terms, 0.05 * truth.numel() ** 0.5)


def check(at, tangents, g, *, implementation=None, **pattern):
    dtype = at[0].dtype
    truth = derivatives([t.double() for t in at], [t.double() for t in tangents], g.double(), **pattern)
    # PyTorch's own result in this dtype. In `dense` rows without keys are free of NaN, so it applies to all patterns.
    torch.backends.cuda.matmul.allow_tf32 = False
    peer = derivatives(at, tangents, g, **pattern)
    o, normaliser = kernels.forward(*at, **pattern)
    do, mu = kernels.jvp(*at, o, normaliser, *tangents, **pattern)
    pulled = kernels.vjp(*at, o, normaliser, g, implementation=implementation, **pattern)
    second = kernels.hvp(*at, o, normaliser, *tangents, do, mu, g, **pattern)
    names = ("o", "do", "dq", "dk", "dv", "second dq", "second dk", "second dv")
    for name, mine, theirs, wanted in zip(names, (o, do, *pulled, *second), peer, truth, strict=True):
        assert mine.dtype == dtype
        allowed = max(2 * error(theirs, wanted), FLOOR[dtype])
        assert at_most(error(mine, wanted), allowed), f"{name}: {error(mine, wanted):.2e}, allowed {allowed:.2e}"


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_square(dtype, causal, n):
    at, tangents, g = draw(n, 2, 3, 3, n, n, 64, 64, dtype)
    for implementation in ("triton", None):
        check(at, tangents, g, implementation=implementation, scale=0.125, causal=causal)


@pytest.mark.parametrize("seed", range(36))
def test_random_shapes(seed):
    pick = torch.Generator().manual_seed(seed)

    def one_of(*options):
        return options[int(torch.randint(len(options), (1,), generator=pick))]

    def number(low, high):
        return int(torch.randint(low, high, (1,), generator=pick))

    hkv, groups, b = one_of(1, 2, 3), one_of(1, 1, 2, 4), one_of(1, 2)
    n, m = number(1, 700), number(1, 700)
    k, w = one_of(1, 8, 20, 64, 80, 96, 128, 192, 256), one_of(3, 16, 64, 72, 128, 256)
    dtype = DTYPES[seed % 2]
    window = one_of(None, None, 1, 2, number(2, 300))
    at, tangents, g = draw(seed, b, hkv * groups, hkv, n, m, k, w, dtype)
    padding = None
    if one_of(True, False):
        padding = torch.rand(b, m, generator=pick).cuda() > 0.3
    check(
        at,
        tangents,
        g,
        scale=one_of(k**-0.5, 0.25, -0.3),
        causal=one_of(True, False),
        window=window,
        softcap=one_of(None, None, 2.0, 30.0),
        offset=one_of(0, m - n, number(-100, 100)),
        padding=padding,
    )


@pytest.mark.parametrize("pattern", [dict(causal=True), dict(window=5), dict(causal=True, window=1)], ids=str)
@pytest.mark.parametrize("widths", [(20, 3), (24, 8), (3, 3), (12, 40), (32, 24)], ids=str)
def test_narrow_heads_of_odd_widths(widths, pattern):
    """Tiles as narrow as these were compiled into reads past their end."""
    for dtype in DTYPES:
        at, tangents, g = draw(1, 1, 2, 2, 97, 97, *widths, dtype)
        check(at, tangents, g, scale=0.3, **pattern)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("pad", [1, 4, 8, 16])
def test_narrow_rows_with_gaps(pad, dtype):
    at, tangents, g = draw(2, 1, 2, 2, 97, 97, 32, 16, dtype)

    def padded(t):
        return torch.nn.functional.pad(t, (0, pad))[..., :-pad]

    check([padded(t) for t in at], [padded(t) for t in tangents], padded(g), scale=0.3, causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_narrow_rows_at_odd_addresses(dtype):
    at, tangents, g = draw(3, 1, 2, 2, 97, 97, 32, 16, dtype)

    def shifted(t):
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)

    check([shifted(t) for t in at], [shifted(t) for t in tangents], shifted(g), scale=0.3, causal=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("width", [64, 128, 256])
def test_tangents_in_one_pass_agree_with_one_by_one(width, count, dtype):
    at, _, _ = draw(0, 1, 2, 1, 333, 333, width, width, dtype)
    tangents = [
        torch.stack([draw(9 + j, 1, 2, 1, 333, 333, width, width, dtype)[1][i] for j in range(count)]) for i in range(3)
    ]
    options = dict(scale=width**-0.5, causal=True)
    o, normaliser = kernels.forward(*at, **options)
    together = kernels.jvp(*at, o, normaliser, *tangents, **options)[0]
    alone = torch.stack(
        [kernels.jvp(*at, o, normaliser, *(t[j] for t in tangents), **options)[0] for j in range(count)]
    )
    assert at_most(error(together, alone.double()), FLOOR[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_two_runs_are_equal(dtype):
    at, tangents, g = draw(5, 2, 4, 2, 1021, 1021, 64, 64, dtype)
    runs = []
    for _ in range(2):
        o, normaliser = kernels.forward(*at, scale=0.125, causal=True)
        do = kernels.jvp(*at, o, normaliser, *tangents, scale=0.125, causal=True)[0]
        runs.append(
            (o, normaliser, do, *kernels.vjp(*at, o, normaliser, g, scale=0.125, causal=True, implementation="triton"))
        )
    for a, b in zip(*runs, strict=True):
        assert torch.equal(a, b)  # exact: one kernel with the same tiles adds in the same order


def test_strides():
    at, tangents, g = draw(6, 2, 3, 3, 300, 300, 64, 64, torch.bfloat16)
    inside = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (*at, *tangents, g)]
    o, normaliser = kernels.forward(*at, scale=0.125)
    o2, normaliser2 = kernels.forward(*inside[:3], scale=0.125)
    assert o2.stride() == inside[0].stride()
    pairs = [
        (o, o2),
        (normaliser, normaliser2),
        (
            kernels.jvp(*at, o, normaliser, *tangents, scale=0.125)[0],
            kernels.jvp(*inside[:3], o2, normaliser2, *inside[3:6], scale=0.125)[0],
        ),
        *zip(
            kernels.vjp(*at, o, normaliser, g, scale=0.125, implementation="triton"),
            kernels.vjp(*inside[:3], o2, normaliser2, inside[6], scale=0.125, implementation="triton"),
            strict=True,
        ),
    ]
    for a, b in pairs:
        assert torch.equal(a, b)  # exact: one kernel with the same tiles adds in the same order


@pytest.mark.parametrize("implementation", ["cudnn", "flash"])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("width", [64, 128])
def test_pytorchs_backward_computes_the_same_function(width, causal, implementation):
    at, tangents, g = draw(7, 2, 3, 3, 515, 515, width, width, torch.bfloat16)
    check(at, tangents, g, implementation=implementation, scale=width**-0.5, causal=causal)


@pytest.mark.parametrize("n", [1, 2, 130])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_for_rows_that_see_one_key_the_derivative_is_that_of_its_value(dtype, n):
    at, tangents, g = draw(4, 2, 3, 3, n, n, 64, 64, dtype)
    options = dict(scale=0.125, causal=True, window=1)
    o, normaliser = kernels.forward(*at, **options)
    assert torch.equal(o, at[2])  # exact: one key of probability 1 copies its value
    do = kernels.jvp(*at, o, normaliser, *tangents, **options)[0]
    dq, dk, dv = kernels.vjp(*at, o, normaliser, g, **options)
    # Large terms cancel to float32's accuracy, not half precision's.
    for actual, wanted in ((do, tangents[2]), (dv, g), (dq, torch.zeros_like(dq)), (dk, torch.zeros_like(dk))):
        assert at_most(float((actual.double() - wanted.double()).abs().max()), 2e-5 * float(wanted.abs().max() + 1))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float32], ids=str)
def test_a_launch_can_be_captured_in_a_graph(dtype):
    at, tangents, g = draw(10, 1, 2, 2, 200, 200, 64, 64, dtype)

    def everything():
        o, normaliser = kernels.forward(*at, scale=0.125)
        do = kernels.jvp(*at, o, normaliser, *tangents, scale=0.125)[0]
        return o, do, *kernels.vjp(*at, o, normaliser, g, scale=0.125, implementation="triton")

    everything()  # compiled before it is captured
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = everything()
    for t in (*at, *tangents, g):
        t.copy_(torch.randn(t.shape, device="cuda"))
    graph.replay()
    torch.cuda.synchronize()
    for actual, wanted in zip(captured, everything(), strict=True):
        assert torch.equal(actual, wanted)  # exact: one kernel with the same tiles adds in the same order


def test_memory_is_linear():
    n = 16384
    at, tangents, g = draw(8, 1, 4, 4, n, n, 64, 64, torch.bfloat16)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    o, normaliser = kernels.forward(*at, scale=0.125)
    kernels.jvp(*at, o, normaliser, *tangents, scale=0.125)
    kernels.vjp(*at, o, normaliser, g, scale=0.125, implementation="triton")
    assert torch.cuda.max_memory_allocated() - before < 16 * at[0].numel() * 2  # one n × n matrix is 128 times that
