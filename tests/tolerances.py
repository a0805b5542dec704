"""How close is close, in one place; `test_tolerances.py` shows that the helpers can fail."""

from __future__ import annotations

import torch

FLOAT64 = 1e-11  # relative to the largest entry: a few hundred roundings in float64
FLOAT32 = 2e-5  # likewise in float32


def assert_close(actual: torch.Tensor, expected: torch.Tensor, tol: float = FLOAT64) -> None:
    """max |actual − expected| ≤ tol · max(1, max |expected|), of one shape, without NaN."""
    assert actual.shape == expected.shape, f"shapes {tuple(actual.shape)} and {tuple(expected.shape)}"
    if not actual.numel():
        return
    gap = float((actual.double() - expected.double()).abs().max())
    scale = max(1.0, float(expected.double().abs().max()))
    assert gap <= tol * scale, f"largest difference {gap:.3g}, allowed {tol * scale:.3g}"  # NaN is not ≤ either
