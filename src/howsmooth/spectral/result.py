"""What a solver hands back: singular triplets that say how sure they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

CONVERGED = "converged"
RESIDUAL = "residual"
STEP_LIMIT = "step limit"
PRECISION_LIMIT = "precision limit"
CONTRADICTED = "contradicted"
LOOKS_ALIKE = "looks alike"
LOWER_ONLY = "lower bound only"
LOWER_AT_STEPS = "step limit, lower bound only"
LOWER_AT_PRECISION = "precision limit, lower bound only"
UNREACHED = (STEP_LIMIT, PRECISION_LIMIT, LOWER_AT_STEPS, LOWER_AT_PRECISION, CONTRADICTED)  # the tolerance was not met

REMEDY = {
    CONVERGED: "nothing to do: the interval is as narrow as asked",
    RESIDUAL: 'stopped on the residual, as asked; use stop="interval" for a narrow interval',
    STEP_LIMIT: "raise max_steps or tol",
    PRECISION_LIMIT: "rounding of this dtype, or of a coarser one inside of the function, is wider than tol: use "
    "float64 and no casts, or raise tol",
    LOWER_ONLY: "stopped on the residual of rounded products: only the lower end is certified; use unrounded ones",
    LOWER_AT_STEPS: "only the lower end is certified, and the residual is above tol; raise max_steps or tol, or use "
    "unrounded products",
    LOWER_AT_PRECISION: "only the lower end is certified, and rounding keeps the residual above tol; raise tol, or use "
    "unrounded products",
    CONTRADICTED: "the upper bound of every start was below a value that was attained, so none is given; raise "
    "confidence",
    LOOKS_ALIKE: "two iterates looked alike, which certifies nothing; use singular_values for an interval",
}


@dataclass(frozen=True)
class SingularTriplets:
    """Singular values in decreasing order, with their interval, vectors and provenance.

    With probability `confidence` over the solver's own random draws (for each batch member), all k true
    values lie in [lower, upper]. `residual` is ‖Jᵀu − value·v‖, while J v = value·u by construction.
    Where nothing is certified from above `upper` is ∞, a tensor having no None. `status` is one string, or a list
    of them in row-major order when the operator is a batch.
    `products` counts products with J and with Jᵀ, those of the float64 twin or the perturbed operator included.
    """

    value: Float[Tensor, "*batch k"]
    lower: Float[Tensor, "*batch k"]
    upper: Float[Tensor, "*batch k"]
    residual: Float[Tensor, "*batch k"]
    u: Float[Tensor, "*batch k rows"]
    v: Float[Tensor, "*batch k cols"]
    confidence: float
    status: str | list[str]
    steps: int
    products: int
    dtype: torch.dtype
    seed: int | None
    seconds: float

    @property
    def width(self) -> Float[Tensor, "*batch k"]:
        """(upper − lower) / value, and 0 where all three are 0."""
        gap = self.upper - self.lower
        return torch.where(gap == 0, gap, gap / self.value)

    @property
    def remedy(self) -> str:
        """What each status that occurs asks of the reader."""
        statuses = [self.status] if isinstance(self.status, str) else self.status
        return "; ".join(f"{status}: {REMEDY[status]}" for status in dict.fromkeys(statuses))
