"""float32 products of float16 pairs on a GPU, with the tiles that users get, against float64.

Only a GPU rounds sums as its tensor cores do: towards zero. Hence lengths at which that would show.
"""

from __future__ import annotations

import pytest
import torch

from tests import reasons

if not torch.cuda.is_available():
    pytest.skip(reasons.GPU, allow_module_level=True)
pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import SelfAttention, kernels, local_lipschitz
from howsmooth.attention import AttentionJacobian, blockwise
from howsmooth.attention.pattern import Pattern
from tests.tolerances import at_most

ALLOWED = 1e-6

CASES = {
    "causal": ((1, 4, 4, 4500, 4500, 64, 64), dict(causal=True)),
    "full": ((1, 2, 2, 4200, 4200, 64, 64), {}),
    "grouped, window": ((1, 4, 2, 5000, 5000, 64, 64), dict(causal=True, window=1000)),
    "padded": ((2, 2, 2, 4100, 4100, 64, 64), dict(padded=True)),
    "wide": ((1, 4, 2, 4500, 4500, 128, 128), dict(causal=True)),
    "rectangular": ((1, 2, 2, 4096, 6000, 64, 128), dict(causal=True, offset=1904)),
}


def relative(actual, expected):
    return float((actual.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize(("layout", "options"), CASES.values(), ids=CASES)
def test_errors(layout, options):
    b, h, hkv, n, m, width, w = layout
    generator = torch.Generator("cuda").manual_seed(0)
    shapes = [(b, h, n, width), (b, hkv, m, width), (b, hkv, m, w)] * 2 + [(b, h, n, w)]
    *at, g = (torch.randn(shape, device="cuda", generator=generator) for shape in shapes)
    settings = dict(options)
    padding = torch.rand(b, m, device="cuda", generator=generator) > 0.3 if settings.pop("padded", False) else None
    scale = width**-0.5
    o, normaliser = kernels.forward(*at[:3], scale=scale, padding=padding, **settings)
    derivative = kernels.split_derivative(*at[:3], o, normaliser, scale=scale, padding=padding, **settings)
    assert derivative is not None
    pattern, exact = Pattern(scale, **settings), [t.double() for t in at]
    truth = blockwise.Linearisation(*exact[:3], *blockwise.forward(*exact[:3], pattern, padding), pattern, padding)
    assert at_most(relative(derivative.jvp(*at[3:]), truth.jvp(*exact[3:])), ALLOWED)
    for mine, expected in zip(derivative.vjp(g), truth.vjp(g.double()), strict=True):
        assert at_most(relative(mine, expected), ALLOWED)


def test_a_certified_solve_uses_them_and_holds_the_float64_value():
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(256, 256, generator=generator) / 16 for _ in range(4)]
    layer = SelfAttention(*weights, heads=4, causal=True).converted(device="cuda")
    x = torch.randn(4096, 256, generator=generator).cuda()
    assert AttentionJacobian(layer, x, None, torch.float32).linearised.split is not None
    found = local_lipschitz(layer, x, product_dtype=torch.float32, tol=1e-2)
    exact = local_lipschitz(layer.converted(dtype=torch.float64), x.double(), tol=1e-4)
    assert at_most(found.lower, exact.upper) and at_most(exact.lower, found.upper)
    assert at_most(abs(found.value / exact.value - 1), 1e-3)
