"""Checks of what the search for worst cases and the attacks are given, and the outcome of a verification."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.lipschitz.estimate import Estimate

# Tokens of magnitudes in this range can be multiplied, and the product squared, without overflow in float64.
MIN_MAGNITUDE, MAX_MAGNITUDE = 1e-100, 1e100
SEED_COUNT = 2**63


def check_size(caller: str, name: str, size: float) -> None:
    """Refuse a size that is not a finite positive number within the range of float64 products."""
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < math.inf:
        raise InputError(f"{caller}: expected a finite {name} above 0, got {size!r}")
    if not MIN_MAGNITUDE <= size <= MAX_MAGNITUDE:
        raise InputError(
            f"{caller}: expected {name} from {MIN_MAGNITUDE:g} to {MAX_MAGNITUDE:g}, got "
            f"{min(size, sys.float_info.max):.4g}; outside this range products of tokens overflow or underflow in "
            "float64: put the scale into the weights"
        )


def check_entries(caller: str, name: str, tensor: Tensor) -> None:
    """Refuse a tensor with entries so large that products overflow."""
    largest = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
    if largest > MAX_MAGNITUDE:
        raise InputError(
            f"{caller}: expected {name} with entries up to {MAX_MAGNITUDE:g}, got {largest:.4g}; beyond that, products "
            "of tokens overflow in float64: put the scale into the weights"
        )


def check_count(caller: str, name: str, number: int, least: int) -> None:
    """Refuse anything but an integer of at least `least` (0 or 1)."""
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        kind = "positive whole number" if least else "whole number from 0"
        raise InputError(f"{caller}: expected {name} as a {kind}, got {number!r}")


def check_seed(caller: str, seed: int) -> None:
    """Refuse a seed that `torch.Generator` does not take."""
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEED_COUNT:
        raise InputError(f"{caller}: expected seed as a whole number from 0 and below 2⁶³, got {seed!r}")


def shift_seed(seed: int, offset: int) -> int:
    """Return seed + offset, modulo the number of seeds."""
    return (seed + offset) % SEED_COUNT


def check_masses(caller: str, masses: Tensor, x: Tensor) -> None:
    """Refuse masses that are not one finite positive number per atom of x (…, n, d)."""
    if not isinstance(masses, Tensor) or masses.shape not in (x.shape[:-1], x.shape[-2:-1]):
        shapes = " or ".join(dict.fromkeys(str(tuple(shape)) for shape in (x.shape[-2:-1], x.shape[:-1])))
        raise InputError(
            f"{caller}: expected masses as a tensor of shape {shapes}, one for each atom, got {describe(masses)}"
        )
    for invalid, requirement in ((~torch.isfinite(masses), "finite"), (masses <= 0, "positive")):
        if invalid.any():
            raise InputError(
                f"{caller}: expected {requirement} masses, got {float(masses[invalid][0]):g}; "
                "leave out atoms without mass"
            )


def describe(value: object) -> str:
    """Return the dtype and shape of a tensor, or the type of anything else, for error messages."""
    return f"{value.dtype} of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def single_estimate(found: Estimate | list[Estimate]) -> Estimate:
    """Return the estimate of one input, which `local_lipschitz` returns for an unbatched x."""
    if isinstance(found, list):
        raise InputError(f"expected one input (n, d), got a batch of {len(found)}")
    return found


@dataclass(frozen=True)
class Verification:
    """The outcome of a verification.

    Attributes:
        holds: whether everything agrees with what was reported.
        wrong: what does not, in words.
        value: the value found now.
        reported: the value in the record.
    """

    holds: bool
    wrong: tuple[str, ...]
    value: float
    reported: float

    def as_record(self) -> dict[str, Any]:
        """Return all fields as plain Python values."""
        return {**asdict(self), "wrong": list(self.wrong)}
