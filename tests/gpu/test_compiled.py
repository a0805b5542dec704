"""`torch.compile` with Inductor on a GPU: attend, its derivatives, a layer, and masks, without a graph break."""

from __future__ import annotations

import pytest
import torch

from tests import reasons

if not torch.cuda.is_available():
    pytest.skip(reasons.GPU, allow_module_level=True)
pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import SelfAttention, SparseMask, attend
from tests.tolerances import at_most

SHAPE = (2, 4, 200, 64)
PATTERNS = {
    "full": {},
    "causal window": dict(causal=True, window=40),
    "sparse": dict(mask=SparseMask.documents(torch.arange(200) // 70)),
    "table and sinks": dict(score_bias=torch.randn(4, 200, 200), sinks=torch.randn(4)),
}


def on_gpu(options):
    return {name: value.to("cuda") if hasattr(value, "to") else value for name, value in options.items()}


def draw(count):
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(SHAPE, device="cuda", generator=generator) for _ in range(count)]


@pytest.mark.parametrize("options", PATTERNS.values(), ids=PATTERNS)
def test_values_and_gradients_through_a_tangent(options):
    options = on_gpu(options)
    tensors = draw(6)

    def loss(q, k, v, dq, dk, dv):
        o, do = torch.func.jvp(lambda *at: attend(*at, **options), (q, k, v), (dq, dk, dv))
        return o.square().sum() + do.pow(3).mean(), o, do

    torch._dynamo.reset()
    compiled = torch.compile(loss, fullgraph=True)
    found, expected = [], []
    for f, results in ((compiled, found), (loss, expected)):
        leaves = [t.clone().requires_grad_() for t in tensors]
        value, o, do = f(*leaves)
        results += [o.detach(), do.detach(), *torch.autograd.grad(value, leaves)]
    for mine, wanted in zip(found, expected, strict=True):
        assert at_most(float((mine - wanted).norm()), 1e-5 * float(wanted.norm()))


def test_a_layer():
    generator = torch.Generator().manual_seed(0)
    f = SelfAttention(*(torch.randn(64, 64, generator=generator) / 8 for _ in range(4)), heads=4, causal=True).cuda()
    x, dx = (torch.randn(100, 64, generator=generator).cuda() for _ in range(2))
    torch._dynamo.reset()
    jvp = torch.compile(lambda x, dx: torch.func.jvp(f, (x,), (dx,)), fullgraph=True)
    for mine, wanted in zip(jvp(x, dx), torch.func.jvp(f, (x,), (dx,)), strict=True):
        assert at_most(float((mine - wanted).norm()), 1e-5 * float(wanted.norm()))
