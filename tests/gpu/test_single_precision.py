"""float32 on a GPU. In a file of its own, and last: an illegal access would take every later test with it."""

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU, and PyTorch sees none", allow_module_level=True)
pytest.importorskip("triton", reason="the kernels need triton")

from howsmooth import kernels  # noqa: E402
from tests.gpu.test_gpu import check, derivatives, draw, error  # noqa: E402


@pytest.mark.parametrize("n", [1, 127, 1021])
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_square(causal, n):
    check(*draw(n, 2, 3, 3, n, n, 64, 64, torch.float32), scale=0.125, causal=causal)


@pytest.mark.parametrize("width", [32, 64, 128])
def test_precise_float32(width):
    at, tangents, g = draw(3, 1, 2, 2, 777, 777, width, width, torch.float32)
    options = dict(scale=width**-0.5, causal=True)
    truth = derivatives([t.double() for t in at], [t.double() for t in tangents], g.double(), **options)
    o, normaliser = kernels.forward(*at, precision="precise", **options)
    do = kernels.jvp(*at, o, normaliser, *tangents, precision="precise", **options)
    pulled = kernels.vjp(*at, o, normaliser, g, precision="precise", **options)
    for mine, wanted in zip((o, do, *pulled), truth, strict=True):
        assert error(mine, wanted) <= 1e-5


def test_tf32_is_near_and_is_not_precise():
    at, tangents, g = draw(3, 1, 2, 2, 777, 777, 64, 64, torch.float32)
    truth = derivatives([t.double() for t in at], [t.double() for t in tangents], g.double(), scale=0.125)
    o, normaliser = kernels.forward(*at, precision="native", scale=0.125)
    do = kernels.jvp(*at, o, normaliser, *tangents, precision="native", scale=0.125)
    assert 1e-5 < error(do, truth[1]) < 3e-3
