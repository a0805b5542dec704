"""What this room refuses, by name: sizes, counts, seeds and tensors that cannot be meant."""

from __future__ import annotations

import math
import sys

import torch
from torch import Tensor

from howsmooth.errors import InputError

SMALLEST, LARGEST = 1e-100, 1e100  # of tokens: what can be multiplied, and the product squared
SEEDS = 2**63


def check_size(of: str, name: str, size: float) -> None:
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size < math.inf:
        raise InputError(f"{of}: expected a finite {name} above 0, got {size!r}")
    if not SMALLEST <= size <= LARGEST:
        raise InputError(f"{of}: expected {name} from {SMALLEST:g} to {LARGEST:g}, got "
                         f"{min(size, sys.float_info.max):.4g}; beyond, products of tokens leave float64: "
                         "put the scale into the weights")


def check_entries(of: str, name: str, tensor: Tensor) -> None:
    most = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
    if most > LARGEST:
        raise InputError(f"{of}: expected {name} with entries up to {LARGEST:g}, got {most:.4g}; beyond, products of "
                         "tokens leave float64: put the scale into the weights")


def check_count(of: str, name: str, number: int, least: int) -> None:
    if isinstance(number, bool) or not isinstance(number, int) or number < least:
        raise InputError(f"{of}: expected {name} as a {'positive whole number' if least else 'whole number from 0'}, "
                         f"got {number!r}")


def check_seed(of: str, seed: int) -> None:
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise InputError(f"{of}: expected seed as a whole number from 0 and below 2⁶³, got {seed!r}")


def another_seed(seed: int, by: int) -> int:
    """The seed `by` places further on; after the last comes the first."""
    return (seed + by) % SEEDS


def check_masses(of: str, masses: Tensor, x: Tensor) -> None:
    if not isinstance(masses, Tensor) or masses.shape not in (x.shape[:-1], x.shape[-2:-1]):
        shapes = " or ".join(dict.fromkeys(str(tuple(shape)) for shape in (x.shape[-2:-1], x.shape[:-1])))
        raise InputError(f"{of}: expected masses as a tensor of shape {shapes}, one for each atom, got "
                         f"{described(masses)}")
    for wrong, name in ((~torch.isfinite(masses), "finite"), (masses <= 0, "positive")):
        if wrong.any():
            raise InputError(f"{of}: expected {name} masses, got {float(masses[wrong][0]):g}; leave out atoms without "
                             "mass")


def described(what) -> str:
    """The shape of a tensor, or the type of anything else, for messages."""
    return f"{what.dtype} of shape {tuple(what.shape)}" if isinstance(what, Tensor) else type(what).__name__
