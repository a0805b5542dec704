"""Records made by hand: a power law known beforehand, with awkward tokens in it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest


def record(
    layer: int, n: int, sample: int, *, model: str = "tiny<model>", head: int | None = None, **changes
) -> dict:
    value = (1 + layer) * n**0.25 * (1 + 0.01 * sample)
    return {
        "model": model,
        "layer": layer,
        "head": head,
        "map": "attention" if head is None else "head",
        "n": n,
        "sample": sample,
        "value": value,
        "lower": value * 0.9998,
        "upper": value * 1.0002,
        "confidence": 0.999,
        "relative": 2.0,
        "residual": 1e-5,
        "status": "converged",
        "radius": 4.5,
        "mean_radius": 4.0,
        "steps": 12,
        "products": 25,
        "seconds": 0.01,
        "dtype": "float32",
        "device": "cpu",
        "seed": 0,
        "tokens": "all",
        "special_tokens": "add",
        "weights": "safetensors & more",
        "text": "river.txt",
        "text_sha256": "0" * 64,
        "versions": {"howsmooth": "0.1.0", "torch": "2", "transformers": "5"},
        "top_tokens": [
            {"position": 3, "token": "<script>alert(1)</script>", "share": 0.7},
            {"position": 1, "token": "[bold]\n", "share": 0.2},
        ],
        **changes,
    }


@pytest.fixture
def records() -> list[dict]:
    return [record(layer, n, sample) for n in (8, 16, 32) for sample in (0, 1) for layer in (0, 1)]


@pytest.fixture
def growth() -> dict:
    return {
        ("tiny<model>", layer, None): SimpleNamespace(
            exponent=0.25, constant=1.0 + layer, exponent_error=0.003
        )
        for layer in (0, 1)
    }


@pytest.fixture
def make():
    return record
