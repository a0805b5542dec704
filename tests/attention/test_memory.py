"""`attend` allocates nothing of size n²: its peak memory is measured in a separate process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import reasons

MEASURE = """
import sys
from pathlib import Path
import torch
from howsmooth import attend

def peak():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])

part, op = sys.argv[1:]
if op == "dense":  # for comparison
    attend = lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v
q, k, v, g = (torch.randn(12, 4096, 16) for _ in range(4))

def run(q, k, v, g):
    if part == "forward":
        attend(q, k, v)
    elif part == "jvp":
        torch.func.jvp(attend, (q, k, v), (k, v, q))
    else:
        torch.func.vjp(attend, q, k, v)[1](g)

run(*(t[:, :8] for t in (q, k, v, g)))  # what torch loads at first use does not count
Path("/proc/self/clear_refs").write_text("5")
before = peak()
run(q, k, v, g)
print(peak() - before)
"""
PROBABILITIES = 12 * 4096**2 * 4  # 768 MiB


def peak_of(part: str, op: str) -> int:
    source = Path(__file__).parents[2] / "src"  # installed or not
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, part, op],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(source)},
    )
    return int(run.stdout)


needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason=reasons.LINUX_PROC)


@needs_proc
@pytest.mark.parametrize("part", ["forward", "jvp", "vjp"])
def test_peak_is_below_that_of_the_probabilities_alone(part):
    assert peak_of(part, "ours") < 0.4 * PROBABILITIES


@needs_proc
def test_the_measurement_detects_the_dense_probabilities():
    assert peak_of("forward", "dense") > PROBABILITIES
