"""float32 on a GPU, precise and as tf32. Each case in a process of its own: after an illegal access a process can do
nothing more on its GPU, and the tests after it would fail for no reason of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU, and PyTorch sees none", allow_module_level=True)
pytest.importorskip("triton", reason="the kernels need triton")

ROOT = Path(__file__).parents[2]
# What tf32 may be off by (it keeps ten bits), and what it must be: else it would not be tf32 that was asked for.
ALLOWED = {"precise": (0.0, 1e-5), "native": (1e-5, 1e-2)}

SCRIPT = """
import json, sys
import torch
from howsmooth import kernels
from tests.gpu.test_gpu import derivatives, draw, error

precision, width, causal, *lengths = json.loads(sys.argv[1])
for n in lengths:
    at, tangents, g = draw(n, 1, 3, 3, n, n, width, width, torch.float32)
    options = dict(scale=width**-0.5, causal=causal)
    o64, do64, *pulled64 = derivatives([t.double() for t in at], [t.double() for t in tangents], g.double(), **options)
    options["precision"] = precision

    def done(part, pairs):
        torch.cuda.synchronize()
        print(json.dumps([part, n, max(error(a, b) for a, b in pairs)]), flush=True)

    o, normaliser = kernels.forward(*at, **options)
    done("forward", [(o, o64)])
    done("jvp", [(kernels.jvp(*at, o, normaliser, *tangents, **options), do64)])
    several = [torch.stack([t, 2 * t, -t, t]) for t in tangents]
    done("four jvps", [(kernels.jvp(*at, o, normaliser, *several, **options),
                        torch.stack([do64, 2 * do64, -do64, do64]))])
    done("vjp", zip(kernels.vjp(*at, o, normaliser, g, **options), pulled64, strict=True))
"""


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("width", [20, 64, 128, 256])
@pytest.mark.parametrize("precision", ["precise", "native"])
def test_value_derivative_and_transpose(precision, width, causal):
    lengths = [1, 127, 1999, 2048] if precision == "precise" else [127, 1999, 2048]
    run = subprocess.run([sys.executable, "-c", SCRIPT, json.dumps([precision, width, causal, *lengths])], cwd=ROOT,
                         capture_output=True, text=True, env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"})
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert run.returncode == 0, f"after {found[-1:]}: {run.stderr.strip().splitlines()[-1:]}"
    low, high = ALLOWED[precision]
    assert [case for case in found if not low <= case[2] <= high] == []
    assert len(found) == 4 * len(lengths)
