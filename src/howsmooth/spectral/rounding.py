"""What floating point may have hidden, added to the interval on both sides.

Rounding is modelled as a fixed linear perturbation: the solver is taken to have run exactly on M + E, with
M = JᵀJ. That is the usual backward-error view, and a model: true rounding errors depend on the vector.

With a float64 twin E is measured (or with a float32 one, where products are rounded to half precision: then the twin
is granted what a product without a twin is). For m Gaussian vectors z_i, ‖E‖ ≤ a √(2/π) max ‖E z_i‖ except with
probability a^−m, whatever E is. (It is measured for M rather than for J because ‖E z‖ goes with the Frobenius
norm of what is applied, and the spectrum of M falls faster.)

Without a twin a product is allowed a relative error of √(rows + cols) units of rounding of its dtype; J and Jᵀ
then being off by e each, σ² − 2eσ − e² ≤ λ, the largest eigenvalue of what was applied, so σ ≤ e + √(λ + 2e²).
That allowance knows nothing of how J came about: where a unit of rounding in the input of an ill-conditioned map
moves J by much more, so may the rounding on the way to J. An operator that can be `perturbed` shows it. The same
probes then measure E as the difference between the operator and the perturbed one, and the allowance is kept beside
it. This is a model, too: that rounding moved M by no more than one unit of it in the input does. As ‖J v‖
itself was evaluated in that dtype, the lower end gives way as well: σ² ≥ ‖J v‖² − ‖E‖.

Reference: Halko, Martinsson and Tropp 2011, Lemma 4.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from howsmooth.spectral.bidiagonal import Bidiagonalisation
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.products import Products, gaussian, scaled

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

PROBE_SHARE = 0.1  # of the failure probability, when E is measured
MOST_PROBES = 6


def allowance(operator: LinearOperator) -> float:
    """The relative error granted to a product when nothing more precise is at hand to measure it."""
    return math.sqrt(sum(operator.shape)) * operator.roundoff + operator.hidden


def perturbation_norm(operator: LinearOperator, dense: Tensor) -> float:
    """How far its matrices, `dense`, move when the operator is perturbed, the farthest in the spectral norm; else 0."""
    perturbed = operator.perturbed()
    if perturbed is None:
        return 0.0
    return float(torch.linalg.matrix_norm(perturbed.dense().double() - dense.double(), ord=2).max())


def probe_count(tol: float, roundoff: float, delta: float) -> int:
    """The fewest probes m for which a units of rounding, a^−m = delta, are small beside tol."""
    fits = (m for m in range(1, MOST_PROBES) if delta ** (-1 / m) * roundoff <= tol / 20)
    return next(fits, MOST_PROBES)


@dataclass(frozen=True)
class Rounding:
    """Widens an interval, in parts of the largest singular value and, where E was measured, by its norm.

    `perturbation` is the bound on ‖E‖ of the process at hand. `doubt` is the one that values attained in the
    operator's own dtype are subject to, and zero where they are attained in float64.
    """

    above: float = 0.0
    below: float = 0.0
    perturbation: NDArray[np.float64] | float = 0.0
    doubt: NDArray[np.float64] | float = 0.0

    def upper(self, eigenvalue: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float64]:
        """An upper bound on σ from one on the λ = σ² of the operator as it was applied."""
        e = self.above * largest
        return e + np.sqrt(eigenvalue + self.perturbation + 2 * e**2)

    def lower(self, value: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float64]:
        """What ‖J v‖ surely was."""
        return np.maximum(np.sqrt(np.maximum(value**2 - self.doubt, 0.0)) - self.below * largest, 0.0)


class Perturbation:
    """Gaussian probes of E, what a process applied minus M of a reference: the float64 twin or the perturbed operator.

    The first probe is the start of the process, to which M was applied already: a Gaussian vector of norm
    `start_norm`, normalised. The probability of failure needs no independence from the start's other use.
    """

    def __init__(self, process: Bidiagonalisation, reference: Products):
        self.process, self.reference, self.count = process, reference, 1
        first = self._difference(process.start, process.first_image, process.alphas[0])
        self.largest = process.start_norm * first

    def extend(self, count: int, generator: torch.Generator) -> None:
        """Draw further probes until there are `count` of them."""
        products = self.process.products
        while self.count < count:
            z = gaussian(products, generator)
            self.process.deflate(z)
            found = self._difference(z, *_gram(products, z, ""))
            self.largest = np.maximum(self.largest, found)
            self.count += 1

    def bound(self, delta: float) -> NDArray[np.float64]:
        """A bound (b,) on ‖E‖ that fails with probability at most delta."""
        return delta ** (-1 / self.count) * math.sqrt(2 / math.pi) * self.largest

    def _difference(self, z: Tensor, image: Tensor, scale: NDArray[np.float64]) -> NDArray[np.float64]:
        """‖E z‖ for each member, M z having been applied as scale · image."""
        dtype = self.reference.operator.dtype
        how = " in float64" if dtype == torch.float64 else " by the reference"
        other, factor = _gram(self.reference, z.to(dtype), how)
        difference = other.double() * torch.from_numpy(factor).to(z.device)[:, None]
        difference -= torch.from_numpy(scale).to(z.device)[:, None] * image
        self.process.deflate(difference)
        return self.reference.norm(difference, "JᵀJ v" + how)


def _gram(products: Products, z: Tensor, how: str) -> tuple[Tensor, NDArray[np.float64]]:
    """M z as a vector and the factor (b,) to multiply it by, for M may leave the range of a dtype that J is in."""
    w = products.forward(z)
    norm = products.norm(w, "J v" + how)
    return products.adjoint(scaled(w, norm)), norm
