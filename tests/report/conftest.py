"""Synthetic records with a known power law, and tokens that contain markup."""

from __future__ import annotations

import math
import random

import pytest

from howsmooth.fits import growth_laws
from howsmooth.records import SCHEMA


def record(layer: int, n: int, sample: int, *, model: str = "tiny<model>", head: int | None = None, **changes) -> dict:
    value = (1 + layer) * n**0.25 * (1 + 0.01 * sample)
    return {
        "kind": "measurement",
        "schema": SCHEMA,
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
    return [record(layer, n, sample) for n in (8, 16, 32, 64) for sample in (0, 1) for layer in (0, 1)]


@pytest.fixture
def growth(records) -> dict:
    return growth_laws(records)


@pytest.fixture
def make():
    return record


HOSTILE = "</script><img src=x onerror=alert(1)><!--"


def full_record(layer: int, head: int, n: int, sample: int) -> dict:
    """A synthetic record of a study with all fields, and numbers with all digits."""
    noise = random.Random(f"{layer} {head} {n} {sample}").random
    value = (1 + 0.37 * layer + 0.11 * head) * n ** (0.1 + 0.02 * layer) * (1 + 0.1 * noise())
    return record(
        layer,
        n,
        sample,
        head=head,
        model="openai-community/gpt2",
        value=value,
        lower=value * (1 - 1e-9 * noise()),
        upper=value * (1 + 1e-3 * noise()),
        residual=value * 1e-5 * noise(),
        relative=value / (1 + noise()),
        radius=11 + noise(),
        mean_radius=9 + noise(),
        seconds=noise(),
        task=f"{layer:08x}{head:08x}{n:08x}",
        tokens="all",
        quantity="lipschitz",
        start=n * sample,
        document=sample,
        mean_norm=9.4,
        batch=4,
        study="grid",
        series=None,
        checkpoint=None,
        cutting="prefixes",
        simultaneous=None,
        model_dtype="float32",
        tol=1e-3,
        source={"origin": "hub", "revision": "e" * 40, "sha256": {"model.safetensors": "5" * 64}},
        commit="a" * 40,
        versions={"howsmooth": "0.1.0", "python": "3.11", "torch": "2.13.0", "transformers": "5.22", "numpy": "2.4"},
        top_tokens=[
            {"position": 3 * i + sample, "token": f" word{(n + 7 * i) % 97}", "share": noise() / (i + 1)}
            for i in range(3)
        ],
    )


@pytest.fixture(scope="session")
def many() -> list[dict]:
    """10,080 records: 12 layers × 12 heads × 7 lengths × 10 samples."""
    return [
        full_record(layer, head, n, sample)
        for n in (16, 32, 64, 128, 256, 512, 1024)
        for sample in range(10)
        for layer in range(12)
        for head in range(12)
    ]


@pytest.fixture(scope="session")
def large_page(many) -> str:
    """The report of these records, made once because it takes seconds."""
    from howsmooth.report.web_page import report_page

    return report_page(many)


def bound_record(layer: int, n: int, bound: str, side: str | None, factor: float | None, **changes) -> dict:
    measured = record(layer, n, 0)
    value = None if factor is None else measured["value"] * factor
    return {
        **{
            name: measured[name]
            for name in (
                "schema",
                "model",
                "layer",
                "head",
                "map",
                "n",
                "sample",
                "text",
                "text_sha256",
                "tokens",
                "device",
                "versions",
                "weights",
            )
        },
        "kind": "bound",
        "bound": bound,
        "side": side,
        "holds": side and ("at X" if bound.endswith("local") else "on B_R^n"),
        "value": value,
        "log_value": value and math.log(value),
        "ratio": factor,
        "log_ratio": factor and math.log(factor),
        "refused": None if factor else "expected one head, got 12 heads; take f.head(i)",
        "reference": "a proof",
        "conditions": ["a < b", "c"],
        "R": 4.5,
        "radius_from": "norm",
        "argmax_share": [0.0],
        "measured": {
            name: measured[name]
            for name in (
                "value",
                "lower",
                "upper",
                "confidence",
                "residual",
                "status",
                "steps",
                "seed",
                "dtype",
                "radius",
            )
        },
        "status": "converged",
        **changes,
    }


# Name, side, ratio to the measured constant; as on real models, the lower bound on the worst case is above it.
BOUNDS = (
    ("this_project.local", "upper", 3.5),
    ("this_project.two_point_lower", "lower", 20.0),
    ("this_project.upper", "upper", 400.0),
    ("castin2024.theorem1_upper", None, None),
)


@pytest.fixture
def bounds() -> list[dict]:
    return [bound_record(layer, n, *bound) for layer in (0, 1) for n in (8, 16, 32) for bound in BOUNDS]


@pytest.fixture
def directions() -> list[dict]:
    """Records of `measure` with the share of every token, in a text that contains markup."""
    words = ["[CLS]", HOSTILE, "<b>bold</b>", "&amp;", "\u202e", '"quoted", and more', "\n", "=1+1"]
    records = []
    for layer in (0, 1):
        shares = [0.5 / 2**i for i in range(8)]
        records.append(
            record(
                layer,
                8,
                0,
                model=HOSTILE,
                text=HOSTILE,
                weights=HOSTILE,
                shares=shares,
                words=words if layer == 0 else None,
                top_tokens=[{"position": 1, "token": HOSTILE, "share": 0.25}],
            )
        )
    return records
