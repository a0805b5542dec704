"""Arguments that the kernels do not support, with their reasons, and the import without Triton."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from howsmooth import kernels
from tests import reasons

SOURCE = Path(__file__).parents[2] / "src"
X = torch.zeros(1, 2, 4, 8, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (dict(score_bias=lambda i, j: i - j), "take a score_bias as a table, got a function"),
        (dict(q=X[0]), "four axes"),
        (dict(q=X.double()), "take bfloat16, float16 or float32 in all of q, k, v, got torch.float64"),
        (dict(k=X.half()), "got torch.bfloat16, torch.float16"),
        (dict(q=X.float(), k=X.float(), v=X.float()), "written for NVIDIA GPUs"),
        (dict(q=X.half(), k=X.half(), v=X.half(), precision="precise"), "precise products are for float32"),
        (dict(precision="exact"), "native or precise, got exact"),
        (
            dict(v=torch.zeros(1, 2, 4, 300, dtype=X.dtype)),
            "bfloat16 are at most 256 wide in the kernels, got 8 and 300",
        ),
        (
            dict(q=X.float(), k=X.float(), v=torch.zeros(1, 2, 4, 129)),
            "float32 are at most 128 wide in the kernels, got 8",
        ),
        (
            dict(q=X.float(), k=X.float(), v=torch.zeros(1, 2, 4, 129), precision="native"),
            "float32 are at most 128 wide",
        ),
        (dict(q=X[:, :, :0]), "empty"),
        (dict(v=torch.zeros(1, 2, 8, 4, dtype=X.dtype).mT), "last stride of 4"),
        (dict(padding=torch.ones(1, 5, dtype=torch.bool)), r"padding is bool \(1, 4\), got torch.bool \(1, 5\)"),
        ({}, "written for NVIDIA GPUs, got tensors on cpu"),
    ],
)
def test_the_reason_is_given(change, reason):
    pytest.importorskip("triton", reason=reasons.TRITON)
    arguments = dict(q=X, k=X, v=X) | change
    tensors = [arguments.pop(name) for name in "qkv"]
    with pytest.raises(ValueError, match=reason):
        raise ValueError(kernels.unsupported(*tensors, **arguments))


@pytest.mark.skipif(not torch.cuda.is_available(), reason=reasons.GPU)
@pytest.mark.parametrize("dtype", kernels.DTYPES, ids=str)
def test_supported_on_a_gpu(dtype):
    assert kernels.unsupported(*(X.cuda().to(dtype) for _ in range(3))) is None


def test_the_package_imports_without_triton():
    script = (
        "import sys; sys.modules['triton'] = None\n"
        "import importlib.util, torch\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'triton' else find(name, *a)\n"
        "from howsmooth import kernels\n"
        "x = torch.zeros(1, 1, 2, 2)\n"
        "print(kernels.unsupported(x, x, x))\n"
        "torch.version.hip = None\n"
        "print(kernels._unsupported_device(torch.device('cuda', 0), False))"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(SOURCE), "PATH": ""},
    )
    # Without a GPU, Triton would not help.
    assert run.stdout.splitlines() == [
        "the kernels are written for NVIDIA GPUs, got tensors on cpu",
        "triton is not installed",
    ]
