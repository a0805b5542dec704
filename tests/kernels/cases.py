"""Small attention problems with a dense float64 reference, on the device where the kernels run."""

from __future__ import annotations

import torch

from howsmooth.attention import blockwise, reference
from howsmooth.attention.pattern import Pattern
from tests.attention.cases import normal
from tests.tolerances import at_most

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Relative to the norm of the truth. Sums of a few dozen roundings in float32; half precision rounds each probability.
# tf32 keeps ten bits of a float32 operand (the interpreter keeps all).
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}

PATTERNS = {
    "full": {},
    "causal": dict(causal=True),
    "window": dict(window=5),
    "causal window": dict(causal=True, window=7),
    "causal window of one": dict(causal=True, window=1),
    "softcap": dict(softcap=1.5),
    "causal softcap window": dict(causal=True, softcap=0.7, window=9),
    "power of two": dict(scale=0.25),
    "negative scale": dict(scale=-0.8, causal=True),
    "rows that see nothing": dict(causal=True, offset=-6),
    "late queries": dict(causal=True, offset=9),
    "late queries in a window": dict(window=4, offset=11),
}

# (sequences, query heads, key heads, queries, keys, key width, value width)
LAYOUTS = [(1, 1, 1, 1, 1, 1, 1), (2, 2, 1, 37, 37, 20, 12), (1, 2, 2, 16, 53, 16, 32), (1, 3, 1, 41, 19, 7, 40)]


def problem(layout, *, dtype=torch.float32, tangents: int | None = None, padded: bool = False, seed: int = 0):
    """Return (q, k, v), tangents (with a leading axis if their number is given), a cotangent and a padding mask."""
    b, h, hkv, n, m, k, w = layout
    shapes = ((b, h, n, k), (b, hkv, m, k), (b, hkv, m, w))
    at = [normal(seed + i, *shape).to(DEVICE, dtype) for i, shape in enumerate(shapes)]
    lead = () if tangents is None else (tangents,)
    directions = [normal(seed + 10 + i, *lead, *shape).to(DEVICE, dtype) for i, shape in enumerate(shapes)]
    g = normal(seed + 20, b, h, n, w).to(DEVICE, dtype)
    padding = None
    if padded:
        padding = normal(seed + 21, b, m).to(DEVICE) > -0.5
        padding[0, 0] = False
        padding[-1] &= b == 1  # of several sequences, the last has no key at all
    return at, directions, g, padding


def truth(at, directions, g, padding, **pattern):
    """Return o, do and the cotangents of q, k, v by the dense reference in float64, sequence by sequence."""
    pattern = dict(offset=0) | pattern
    out = []
    for i in range(at[0].shape[0]):
        one = [t[i].double().cpu() for t in at]
        options = pattern | dict(padding=None if padding is None else padding[i].cpu())
        some = [t.double().cpu() for t in directions]
        if some[0].dim() == 4:
            do = reference.jvp(*one, *(t[i] for t in some), **options)
        else:
            do = torch.stack([reference.jvp(*one, *(t[j, i] for t in some), **options) for j in range(len(some[0]))])
        out.append((reference.forward(*one, **options), do, *reference.vjp(*one, g[i].double().cpu(), **options)))
    o, do, *pulled = zip(*out, strict=True)
    return torch.stack(o), torch.stack(do, -4), tuple(torch.stack(t) for t in pulled)


def second_truth(at, directions, g, padding, **pattern):
    """The gradients of ⟨g, do⟩ in float64, by the blockwise pass, which has tests of its own against dense matrices."""
    pattern = Pattern(**dict(causal=False, window=None, softcap=None, offset=0) | pattern)
    at, directions = ([t.double().cpu() for t in some] for some in (at, directions))
    padding = None if padding is None else padding.cpu()
    o, normaliser = blockwise.forward(*at, pattern, padding)
    return blockwise.Linearisation(*at, o, normaliser, pattern, padding).hvp(*directions, g.double().cpu())


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tol: float) -> None:
    """Assert ‖actual − expected‖ ≤ tol max(1, ‖expected‖), equal shapes and no NaN: terms of size 1 may cancel."""
    assert actual.shape == expected.shape, f"shapes {tuple(actual.shape)} and {tuple(expected.shape)}"
    gap = float((actual.double().cpu() - expected).norm())
    allowed = tol * max(1.0, float(expected.norm()))
    assert at_most(gap, allowed), f"error {gap:.3g}, allowed {allowed:.3g}"
