"""What a measurement hands back: a number that never travels alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from howsmooth.spectral.result import REMEDY, SingularTriplets


@dataclass(frozen=True, eq=False)
class Estimate:
    """The local Lipschitz constant ‖D_X f‖₂ at one input, with its interval and where it comes from.

    With probability `confidence` over the solver's random draws the constant lies in [lower, upper]; `lower` is
    attained by `direction`. `upper` is None where only the lower end is certified, and the status says so. `residual`
    is ‖Jᵀu − value·v‖ for the singular vectors (direction v, response u).
    With k > 1, `triplets` holds all k singular values; the fields here are those of the largest.
    """

    value: float
    lower: float
    upper: float | None
    confidence: float
    residual: float
    status: str
    direction: Tensor = field(repr=False)  # shape of x, unit norm: the input change that matters most
    response: Tensor = field(repr=False)  # shape of f(x), unit norm: what it does
    steps: int
    products: int
    dtype: torch.dtype
    seed: int | None
    seconds: float
    relative: float  # value·‖X‖/‖f(X)‖: scale-free, comparable across models
    radius: float  # max_i |x_i|
    mean_radius: float  # √mean_i |x_i|²
    triplets: SingularTriplets = field(repr=False)
    finite_difference: Callable[[float], float] = field(repr=False)

    @property
    def width(self) -> float | None:
        """(upper − lower) / value, the relative width that was reached; None without an upper end."""
        if self.upper is None:
            return None
        return (self.upper - self.lower) / self.value if self.upper > self.lower else 0.0

    @property
    def shares(self) -> Tensor:
        """The share of each token in the direction, (n,), adding up to 1."""
        return self.direction.double().square().sum(-1)

    @property
    def remedy(self) -> str:
        """What the status asks of the reader."""
        return REMEDY[self.status]

    def check(self, eta: float | None = None) -> float:
        """‖f(X + ηU) − f(X − ηU)‖ / 2η along the direction U: it tends to `value` as η → 0.

        η is 10⁻⁴ of the mean radius unless given. Evaluated in float64 where f can be had there.
        """
        return self.finite_difference(1e-4 * (self.mean_radius or 1.0) if eta is None else eta)

    def as_record(self) -> dict:
        """The numbers as plain Python values, under the names used everywhere."""
        names = (
            "value",
            "lower",
            "upper",
            "confidence",
            "residual",
            "status",
            "steps",
            "products",
            "seed",
            "seconds",
            "relative",
            "radius",
            "mean_radius",
        )
        return {name: getattr(self, name) for name in names} | {"dtype": str(self.dtype).removeprefix("torch.")}
