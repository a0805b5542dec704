"""The effect of floating point, added to the interval on both sides.

Rounding is modelled as a fixed linear perturbation: the solver is assumed to have run exactly on M + E, with
M = JᵀJ. This is the usual backward-error view, and a model: true rounding errors depend on the vector.

With a float64 reference E is measured. (Where products are rounded to half precision the reference may be in float32;
it is then allowed the error of a product without a reference.) For m Gaussian vectors z_i,
‖E‖ ≤ a √(2/π) max ‖E z_i‖ except with probability a^−m, for every E. E is measured for M rather than for J because
‖E z‖ scales with the Frobenius norm of the operator that is applied, and the spectrum of M decays faster.

Without a reference a product is allowed a relative error of √(rows + cols) units of rounding of its dtype. If J and
Jᵀ are each off by e, then σ² − 2eσ − e² ≤ λ, the largest eigenvalue of the operator as applied, so
σ ≤ e + √(λ + 2e²). This allowance does not depend on how J was computed. For an ill-conditioned map one unit of
rounding in the input may move J by much more, and so may rounding inside the computation of J. An operator with a
`perturbed` method shows this: the same probes then measure E as the difference between the operator and the perturbed
one, in addition to the allowance. This is a model, too: it assumes that rounding moved M by no more than one unit of
rounding in the input does. As ‖J v‖ itself was evaluated in that dtype, the lower end moves as well:
σ² ≥ ‖J v‖² − ‖E‖.

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
from howsmooth.spectral.products import Products, column, gaussian_vectors

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

PROBE_SHARE = 0.1  # part of the failure probability that is spent on measuring E
MAX_PROBES = 6


def allowance(operator: LinearOperator) -> float:
    """Return the relative error allowed to a product where no reference measures it."""
    return math.sqrt(sum(operator.shape)) * operator.roundoff + operator.own_error


def moved(x: Tensor, unit: float) -> Tensor:
    """Return an input with each entry moved by `unit` times itself, up or down at random."""
    generator = torch.Generator(x.device).manual_seed(0)
    return x * (1 + unit * torch.randn(x.shape, generator=generator, device=x.device, dtype=x.dtype).sign())


def perturbation_norm(operator: LinearOperator, dense: Tensor) -> float:
    """Return the largest spectral norm, over the batch, of the change of `dense` in the perturbed operator; or 0."""
    perturbed = operator.perturbed()
    if perturbed is None:
        return 0.0
    return float(torch.linalg.matrix_norm(perturbed.dense().double() - dense.double(), ord=2).max())


def probe_count(tol: float, roundoff: float, delta: float) -> int:
    """Return the fewest probes m for which a units of rounding, a^−m = delta, are small compared with tol."""
    sufficient = (m for m in range(1, MAX_PROBES) if delta ** (-1 / m) * roundoff <= tol / 20)
    return next(sufficient, MAX_PROBES)


@dataclass(frozen=True)
class Rounding:
    """Widens an interval relative to the largest singular value and, where E was measured, by its norm.

    Attributes:
        above: Relative error by which the upper end is raised.
        below: Relative error by which the lower end is reduced.
        perturbation: Bound on ‖E‖ for the current Lanczos process, a number or (b,).
        value_perturbation: Bound on ‖E‖ for values attained in the operator's own dtype; 0 if they are attained in
            float64.
        size: Norm (b,) of the operator of which this one is a part: rounding is relative to the larger of the two.
    """

    above: float = 0.0
    below: float = 0.0
    size: NDArray[np.float64] | float = 0.0
    perturbation: NDArray[np.float64] | float = 0.0
    value_perturbation: NDArray[np.float64] | float = 0.0

    def upper(self, eigenvalue: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return an upper bound on σ from one on the λ = σ² of the operator as it was applied."""
        e = self.above * np.maximum(largest, self.size)
        bound: NDArray[np.float64] = e + np.sqrt(eigenvalue + self.perturbation + 2 * e**2)
        return bound

    def lower(self, value: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a lower bound on σ from the computed ‖J v‖."""
        squared = np.maximum(value**2 - self.value_perturbation, 0.0)
        return np.maximum(np.sqrt(squared) - self.below * np.maximum(largest, self.size), 0.0)


class Perturbation:
    """Gaussian probes of E, the difference between M as a process applied it and M of a reference.

    The first probe is the start of the process, to which M was already applied: a Gaussian vector of norm
    `start_norm`, normalised. The failure probability does not require that it is independent of the start's other use.

    Args:
        process: A Lanczos process after at least one step.
        reference: Products of the float64 reference or of the perturbed operator.
    """

    def __init__(self, process: Bidiagonalisation, reference: Products) -> None:
        """Evaluate the first probe."""
        if process.first_product is None:
            raise RuntimeError("expected a process after its first step, got one before")
        self.process, self.reference, self.count = process, reference, 1
        self.largest = process.start_norm * self._difference(process.start, *process.first_product)

    def extend(self, count: int, generator: torch.Generator) -> None:
        """Draw further probes until there are `count` of them."""
        products = self.process.products
        while self.count < count:
            z = gaussian_vectors(products, generator)
            self.process.deflate(z)
            applied = products.gram(z, fused=self.process.is_gram_fused)
            self.largest = np.maximum(self.largest, self._difference(z, *applied))
            self.count += 1

    def bound(self, delta: float, count: int | None = None) -> NDArray[np.float64]:
        """Return a bound (b,) on ‖E‖ that fails with probability at most delta.

        With a larger `count` than the probes drawn, it is what the bound would be if further ones show no more.
        """
        factor = delta ** (-1 / (count or self.count)) * math.sqrt(2 / math.pi)
        return np.asarray(factor * self.largest)

    def _difference(self, z: Tensor, image: Tensor, factor: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ‖E z‖ for each member, where M z was applied as factor · image."""
        dtype = self.reference.operator.dtype
        suffix = " in float64" if dtype == torch.float64 else " by the reference"
        reference_image, reference_factor = self.reference.gram(
            z.to(dtype), fused=self.reference.operator.has_gram, suffix=suffix
        )
        difference = reference_image.to(torch.float64)
        difference = difference * column(reference_factor, difference)
        difference.addcmul_(image.double(), -column(factor, difference))
        self.process.deflate(difference)
        return self.reference.norm(difference, "JᵀJ v" + suffix)
