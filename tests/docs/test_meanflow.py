"""`examples/meanflow.py` at a small size: both kinds of gradient train as with PyTorch's own attention."""

from __future__ import annotations

import importlib.util

import pytest

from tests.docs.comparison import ROOT
from tests.tolerances import at_most

SMALL = [
    "--steps",
    "12",
    "--tokens",
    "16",
    "--batch",
    "2",
    "--width",
    "16",
    "--depth",
    "1",
    "--heads",
    "2",
    "--lr",
    "0.01",
    "--device",
    "cpu",
    "--compare",
]


@pytest.fixture(scope="module")
def meanflow():
    spec = importlib.util.spec_from_file_location("meanflow", ROOT / "examples" / "meanflow.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_losses_are_those_of_pytorchs_attention(meanflow):
    found = {kind: meanflow.main([*SMALL, "--gradient", kind]) for kind in ("semi", "full")}
    for kind in found:
        assert at_most(found[kind]["difference"], 1e-4)
    semi, full = (found[kind]["howsmooth"]["losses"] for kind in ("semi", "full"))
    assert abs(semi[-1] - full[-1]) > 1e-3  # the two gradients differ
