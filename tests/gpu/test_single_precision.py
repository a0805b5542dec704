"""float32 on a GPU, precise and as tf32.

Each case runs in a process of its own: after an illegal access a process cannot use its GPU any more, and all tests
after it would fail.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests import reasons

if not torch.cuda.is_available():
    pytest.skip(reasons.GPU, allow_module_level=True)
pytest.importorskip("triton", reason=reasons.TRITON)

from howsmooth import kernels

ROOT = Path(__file__).parents[2]
# The range of the error. tf32 keeps ten bits; a smaller error would mean that the products were not in tf32.
ALLOWED = {"precise": (0.0, 1e-5), "native": (1e-5, 1e-2)}

SCRIPT = """
import json, sys
import torch
from howsmooth import kernels
from tests.gpu.test_gpu import cancelling, derivatives, draw, error

precision, layout, width, pattern, *lengths = json.loads(sys.argv[1])
for n in lengths:
    b, h, hkv = layout
    at, tangents, g = draw(n, b, h, hkv, n, n, width, width, torch.float32)
    options = dict(scale=width**-0.5) | pattern
    if options.pop("padded", False):
        options["padding"] = torch.rand(b, n, device="cuda") > 0.3
    at64, tangents64, g64 = [t.double() for t in at], [t.double() for t in tangents], g.double()
    o64, do64, *pulled64 = derivatives(at64, tangents64, g64, **options)[:5]
    terms = cancelling(*at64, g64, **options)
    options["precision"] = precision

    def done(part, cases):
        torch.cuda.synchronize()
        print(json.dumps([part, n, max(error(*case) for case in cases)]), flush=True)

    o, normaliser = kernels.forward(*at, **options)
    done("forward", [(o, o64)])
    done("jvp", [(kernels.jvp(*at, o, normaliser, *tangents, **options)[0], do64)])
    several = [torch.stack([t, 2 * t, -t, t]) for t in tangents]
    done("four jvps", [(kernels.jvp(*at, o, normaliser, *several, **options)[0],
                        torch.stack([do64, 2 * do64, -do64, do64]))])
    done("vjp", zip(kernels.vjp(*at, o, normaliser, g, **options), pulled64, terms, strict=True))
"""


def check(precision, layout, width, pattern, *lengths):
    case = json.dumps([precision, layout, width, pattern, *lengths])
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, case],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": f"{ROOT}/src:{ROOT}"},
    )
    found = [json.loads(line) for line in run.stdout.splitlines()]
    messages = [line for line in run.stderr.splitlines() if "Error" in line] or run.stderr.strip().splitlines()[-1:]
    assert run.returncode == 0, f"after {found[-1:]}: {messages[:1]}"
    low, high = ALLOWED[precision]
    wrong = [case for case in found if not low <= case[2] <= high]
    assert not wrong, f"not within [{low}, {high}]: {wrong}"
    assert len(found) == 4 * len(lengths)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("width", [20, 64, 128])
@pytest.mark.parametrize("precision", ["precise", "native"])
def test_value_derivative_and_transpose(precision, width, causal):
    lengths = [1, 127, 1999, 2048] if precision == "precise" else [127, 1999, 2048]
    check(precision, (1, 3, 3), width, dict(causal=causal), *lengths)


@pytest.mark.parametrize("width", [64, 128])
@pytest.mark.parametrize(
    "pattern",
    [
        dict(window=99),
        dict(causal=True, window=300, softcap=3.0),
        dict(padded=True),
        dict(causal=True, padded=True, softcap=30.0),
    ],
    ids=str,
)
def test_masks_caps_and_padding(pattern, width):
    check("precise", (2, 4, 2), width, pattern, 130, 515)


@pytest.mark.parametrize("precision", [None, "precise", "native"])
def test_wider_heads_are_not_supported(precision):
    x = torch.zeros(1, 1, 4, 192, device="cuda")
    assert "at most 128 wide" in kernels.unsupported(x, x, x, precision=precision)
