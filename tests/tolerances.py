"""Comparisons of floats with a tolerance, tested in `test_tolerances.py`.

Rounding depends on the machine: on its instructions, its threads and the order of its sums. Tests therefore compare
computed floats by these functions and never by `==` or `<=`; `tests/exactness.py` checks that.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import torch

FLOAT64 = 1e-11  # relative to the largest entry: a few hundred roundings in float64
FLOAT32 = 2e-5  # likewise in float32
ORDER = 1e-12  # relative to the two numbers: rounding in float64 may change their order by this much


def assert_close(actual, expected, tol: float = FLOAT64) -> None:
    """Assert that shapes agree and `max |actual − expected| ≤ tol · max(1, max |expected|)`; NaN fails."""
    actual, expected = _tensor(actual), _tensor(expected)
    assert actual.shape == expected.shape, f"shapes {tuple(actual.shape)} and {tuple(expected.shape)}"
    if not actual.numel():
        return
    gap = float((actual - expected).abs().max())
    scale = max(1.0, float(expected.abs().max()))
    assert gap <= tol * scale, f"largest difference {gap:.3g}, allowed {tol * scale:.3g}"  # NaN is not ≤ either


def close(actual, expected, tol: float = FLOAT64) -> bool:
    """Return whether `assert_close` passes, for use in conditions."""
    try:
        assert_close(actual, expected, tol)
    except AssertionError:
        return False
    return True


def at_most(*numbers, tol: float = ORDER) -> bool:
    """Return whether each number (or entry) is at most the next one: `a ≤ b + tol · max(|a|, |b|)`."""
    return all(bool((gap >= -slack).all()) for gap, slack in _gaps(numbers, tol))


def less(*numbers, tol: float = ORDER) -> bool:
    """Return whether each number (or entry) is less than the next one by more than rounding."""
    return all(bool((gap > slack).all()) for gap, slack in _gaps(numbers, tol))


def same_record(one, other, tol: float = FLOAT64, but: tuple[str, ...] = ()) -> bool:
    """Return whether two records agree: floats to a relative `tol`, all else exactly; keys in `but` are ignored."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = [key for key in one if key not in but]
        return set(keys) == {key for key in other if key not in but} and all(
            same_record(one[key], other[key], tol, but) for key in keys
        )
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(same_record(a, b, tol, but) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return one == other or abs(one - other) <= tol * max(abs(one), abs(other))
    return type(one) is type(other) and one == other


def _tensor(numbers) -> torch.Tensor:
    return torch.as_tensor(numbers, dtype=torch.float64, device="cpu").detach()


def _gaps(numbers, tol: float):
    """Yield b − a and its tolerance for consecutive a, b; for infinite numbers the tolerance is zero."""
    assert len(numbers) > 1, "one number has no order"
    for a, b in pairwise(map(_tensor, numbers)):
        a, b = torch.broadcast_tensors(a, b)
        gap = torch.where(a == b, 0.0, b - a)  # inf − inf
        slack = tol * torch.maximum(a.abs(), b.abs())
        yield gap, torch.where(slack.isinf(), 0.0, slack)
