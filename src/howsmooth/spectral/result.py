"""The result of a solver: singular triplets with an interval and a status.

A status is one of the strings below. They are written to records, so they do not change.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

CONVERGED = "converged"
"""The interval is as narrow as `tol` requires."""
STOPPED_ON_RESIDUAL = "residual"
"""The solve was called with `stop="residual"` and the residual ‖Jᵀu − σv‖ reached `tol`; the interval may be wide."""
STEP_LIMIT = "step limit"
"""`max_steps` was reached before `tol`."""
PRECISION_LIMIT = "precision limit"
"""Rounding keeps the interval, or the residual, wider than `tol`; more steps cannot help."""
CONTRADICTED = "contradicted"
"""Every upper bound was below a value that was attained, so `upper` is infinite."""
ITERATES_AGREE = "looks alike"
"""Two successive iterates of the power method differ by less than the threshold, which certifies nothing."""
LOWER_ONLY = "lower bound only"
"""As `STOPPED_ON_RESIDUAL`, but the rounding of the products was not measured, so `upper` is infinite."""
LOWER_ONLY_STEP_LIMIT = "step limit, lower bound only"
"""`max_steps` was reached before `tol`, and `upper` is infinite as in `LOWER_ONLY`."""
LOWER_ONLY_PRECISION_LIMIT = "precision limit, lower bound only"
"""Rounding keeps the residual above `tol`, and `upper` is infinite as in `LOWER_ONLY`."""
WARM_START = "warm start, lower bound only"
"""A few steps from given vectors reached the residual: the value is attained, and `upper` is infinite."""

TOLERANCE_NOT_REACHED = (STEP_LIMIT, PRECISION_LIMIT, LOWER_ONLY_STEP_LIMIT, LOWER_ONLY_PRECISION_LIMIT, CONTRADICTED)

REMEDY = {
    CONVERGED: "nothing to do: the interval is as narrow as requested",
    STOPPED_ON_RESIDUAL: 'stopped on the residual, as requested; use stop="interval" for a narrow interval',
    STEP_LIMIT: "raise max_steps or tol",
    PRECISION_LIMIT: "rounding of this dtype, or of a coarser one inside the function, is wider than tol: use "
    "float64 and no casts, or raise tol",
    LOWER_ONLY: "stopped on the residual of rounded products: only the lower end is certified; use unrounded ones",
    LOWER_ONLY_STEP_LIMIT: "only the lower end is certified, and the residual is above tol; raise max_steps or tol, "
    "or use unrounded products",
    LOWER_ONLY_PRECISION_LIMIT: "only the lower end is certified, and rounding keeps the residual above tol; raise "
    "tol, or use unrounded products",
    WARM_START: "a few steps from the last vectors bound the constant from below alone; measure a checkpoint for an "
    "interval (howsmooth measure)",
    CONTRADICTED: "the upper bound from every start was below a value that was attained, so none is given; raise "
    "confidence",
    ITERATES_AGREE: "two successive iterates agree, which certifies nothing; use singular_values for an interval",
}
"""What to do about each status of a solve."""

MAX_SHOWN = 6  # singular values in a repr


@dataclass(frozen=True)
class SingularTriplets:
    """Singular values in decreasing order, with their intervals, vectors and provenance.

    With probability `confidence` over the solver's own random draws, for each batch member, all k true singular
    values lie in [lower, upper].

    Attributes:
        value: The singular values, (*batch, k), float64.
        lower: Lower ends of the intervals.
        upper: Upper ends of the intervals; infinite where nothing is certified from above.
        residual: `‖Jᵀu − value·v‖`; `J v = value·u` holds by construction.
        u: Left singular vectors, (*batch, k, rows).
        v: Right singular vectors, (*batch, k, cols).
        confidence: Probability with which all intervals of one batch member hold together.
        status: How the solve ended; for a batch, a list in row-major order.
        steps: Lanczos steps, over all k values.
        products: Products with J and with Jᵀ, including those of the float64 reference or the perturbed operator.
        dtype: Dtype of the operator.
        seed: Seed of the random start.
        seconds: Wall-clock time of the solve.
        notes: What the solver did differently from what was asked for, such as products in another dtype.
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
    notes: tuple[str, ...] = ()

    @property
    def statuses(self) -> list[str]:
        """The status of each batch member, in row-major order."""
        return [self.status] if isinstance(self.status, str) else self.status

    @property
    def width(self) -> Float[Tensor, "*batch k"]:
        """Relative width (upper − lower) / value of each interval, and 0 where all three are 0."""
        gap = self.upper - self.lower
        return torch.where(gap == 0, gap, gap / self.value)

    @property
    def remedy(self) -> str:
        """What to do about each status that occurs."""
        return "; ".join(f"{status}: {REMEDY[status]}" for status in dict.fromkeys(self.statuses))

    def __repr__(self) -> str:
        """Show the first values with their intervals, the status and the cost; no vectors."""
        *batch, k = self.value.shape
        size = f"{self.u.shape[-1]} × {self.v.shape[-1]}"
        lines = [f"SingularTriplets(k={k}, batch={tuple(batch)}, {size}, {self.dtype}):"]
        for index in itertools.islice(itertools.product(*map(range, self.value.shape)), MAX_SHOWN):
            member = f"{list(index[:-1])} " if batch else ""
            lines.append(
                f"  {member}σ{index[-1] + 1} = {float(self.value[index]):.6g} in "
                f"[{float(self.lower[index]):.6g}, {float(self.upper[index]):.6g}], "
                f"residual {float(self.residual[index]):.2g}"
            )
        if self.value.numel() > MAX_SHOWN:
            lines.append(f"  and {self.value.numel() - MAX_SHOWN} more")
        counts = {status: self.statuses.count(status) for status in self.statuses}
        status = ", ".join(name if not batch else f"{name} ({count})" for name, count in counts.items())
        lines.append(
            f"  {status}; confidence {self.confidence:.6g}, {self.steps} steps, {self.products} products, "
            f"{self.seconds:.3g} s, seed {self.seed}"
        )
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)
