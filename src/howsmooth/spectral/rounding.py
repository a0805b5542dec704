"""What floating point may have hidden, added to the interval on both sides.

Rounding is modelled as a fixed linear perturbation: the solver is taken to have run exactly on M + E, where
M = JᵀJ. That is the usual backward-error view, and a model: true rounding errors depend on the vector.

With a float64 twin E is measured. For m Gaussian vectors z_i, ‖E‖ ≤ a √(2/π) max ‖E z_i‖ except with
probability a^−m, whatever E is. Without a twin each product is allowed a relative error √(rows + cols) times
the unit of rounding of its dtype.

Reference: Halko, Martinsson and Tropp 2011, Lemma 4.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.spectral.bidiagonal import Products, scaled

if TYPE_CHECKING:
    from jaxtyping import Float
    from numpy.typing import NDArray
    from torch import Tensor

PROBE_SHARE = 0.1  # of the failure probability, when E is measured
MOST_PROBES = 4


def allowance(shape: tuple[int, int], dtype: torch.dtype) -> float:
    """The relative error granted to a product when nothing more precise is at hand to measure it."""
    return math.sqrt(sum(shape)) * torch.finfo(dtype).eps


def probe_plan(tol: float, dtype: torch.dtype, delta: float) -> tuple[int, float]:
    """How many probes m, and the factor a with a^−m = delta, so that a units of rounding are small beside tol."""
    for count in range(1, MOST_PROBES + 1):
        factor = delta ** (-1 / count)
        if factor * torch.finfo(dtype).eps <= tol / 20:
            break
    return count, factor


@dataclass(frozen=True)
class Rounding:
    """Widens an interval, in parts of the largest singular value and, where E was measured, by ‖E‖ (b,)."""

    above: float = 0.0
    below: float = 0.0
    perturbation: NDArray[np.float64] | float = 0.0

    def upper(self, eigenvalue: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float64]:
        """An upper bound on σ from one on the λ = σ² of the operator as it was applied."""
        return np.sqrt(eigenvalue + self.perturbation + 2 * self.above * largest**2)

    def lower(self, value: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float64]:
        """What ‖J v‖ surely was."""
        return np.maximum(value - self.below * largest, 0.0)


def measured(
    products: Products,
    precise: Products,
    start: Float[Tensor, "b cols"],
    start_norm: NDArray[np.float64],
    image: Float[Tensor, "b cols"],
    image_scale: NDArray[np.float64],
    count: int,
    factor: float,
    generator: torch.Generator,
) -> NDArray[np.float64]:
    """A bound (b,) on ‖E‖, E = M as applied − M in float64, from `count` Gaussian probes.

    The first probe is the Lanczos start itself: the Gaussian vector of norm `start_norm` that was normalised
    to `start`, of which M was applied already (image_scale · image). The probability of failure needs no
    independence from what the start is used for elsewhere.
    """
    largest = start_norm * _difference(precise, start, image, image_scale)
    for _ in range(count - 1):
        z = gaussian(products, generator)
        w = products.forward(z)
        norm = products.norm(w, "J v")
        image = products.adjoint(scaled(w, norm))
        largest = np.maximum(largest, _difference(precise, z, image, norm))
    return factor * math.sqrt(2 / math.pi) * largest


def _difference(precise: Products, z: Tensor, image: Tensor, image_scale: NDArray[np.float64]) -> NDArray[np.float64]:
    exact = precise.adjoint(precise.forward(z.double()))
    exact -= torch.from_numpy(image_scale).to(exact)[:, None] * image
    return precise.norm(exact, "JᵀJ v")


def gaussian(products: Products, generator: torch.Generator) -> Float[Tensor, "b cols"]:
    """Standard normal vectors, drawn where the generator lives."""
    operator = products.operator
    z = torch.randn(products.members, operator.shape[1], dtype=operator.dtype, device=generator.device,
                    generator=generator)
    return z.to(operator.device)
