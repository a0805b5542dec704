"""The options of a solve, in one object."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypedDict, TypeGuard

import torch

from howsmooth.choices import STOPS
from howsmooth.errors import InputError


class SolverOptions(TypedDict, total=False):
    """The fields of `Solver` as keyword arguments: a function that takes a solver takes these too."""

    tol: float
    confidence: float
    stop: str
    max_steps: int | None
    max_memory: int | None
    seed: int | torch.Generator
    product_dtype: torch.dtype | None


@dataclass(frozen=True)
class Solver:
    """How a singular value is computed: the options of `singular_values`, `local_lipschitz` and what calls them.

    Attributes:
        tol: Relative width of the interval to reach.
        confidence: Probability that the interval holds; where a solve gives several, that they hold together.
        stop: "interval" stops when (upper − lower)/value ≤ tol, "residual" earlier, when ‖Jᵀu − σv‖ ≤ tol·σ. With
            "residual" the rounding of products in half precision is not measured: there is then no upper end, and the
            status is "lower bound only".
        max_steps: Largest number of Lanczos steps for each value; None takes enough for `tol` on any spectrum.
        max_memory: Limit in bytes (see `plan`); a second pass recomputes basis vectors that do not fit.
        seed: Seed of the random start, or a generator to draw it from.
        product_dtype: Dtype of the products with J and Jᵀ; for the Jacobian of a `SelfAttention` only. torch.float16 or
            bfloat16, on a GPU, is faster: the value and a few probes are evaluated in float32, and the gap to the next
            singular value absorbs the rounding of the other products. Where the gap is too small, or a product
            overflows, the solve is repeated in float32, and the `notes` of the result state this. torch.float32 omits
            the float64 reference, which dominates the time for long sequences; rounding is then measured by products at
            tokens moved by a unit of rounding.

    Raises:
        InputError: If a value is invalid; the message names all of them.

    Example:
        >>> from howsmooth.spectral import MatrixOperator, singular_values
        >>> quick = Solver(tol=0.1, seed=1)
        >>> singular_values(MatrixOperator(torch.eye(3)), solver=quick, confidence=0.99).confidence
        0.99
    """

    tol: float = 1e-3
    confidence: float = 0.999
    stop: str = "interval"
    max_steps: int | None = None
    max_memory: int | None = None
    seed: int | torch.Generator = 0
    product_dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        """Check the values."""
        wrong = []
        if not is_real(self.tol) or not 0 < self.tol < 1:
            wrong.append(f"tol between 0 and 1, got {self.tol!r}")
        if not is_real(self.confidence) or not 0 < self.confidence < 1:
            wrong.append(f"confidence between 0 and 1, got {self.confidence!r}")
        if self.stop not in STOPS:
            wrong.append(f"stop as one of {', '.join(STOPS)}, got {self.stop!r}")
        for name, number in (("max_steps", self.max_steps), ("max_memory", self.max_memory)):
            if number is not None and (not is_integer(number) or number < 1):
                wrong.append(f"{name} as a positive whole number or None, got {number!r}")
        if not isinstance(self.seed, torch.Generator) and (not is_integer(self.seed) or not 0 <= self.seed < 2**63):
            wrong.append(f"seed as a whole number from 0 or a torch.Generator, got {self.seed!r}")
        if wrong:
            raise InputError("expected " + "; expected ".join(wrong))

    def divided(self, count: int) -> Solver:
        """Return the solver of each of `count` intervals that hold together with the confidence of this one.

        The failure probability is divided among them (union bound).
        """
        return replace(self, confidence=1 - (1 - self.confidence) / count)


def is_integer(x: object) -> TypeGuard[int]:
    """Return whether x is a whole number, which True and False are not."""
    return isinstance(x, int) and not isinstance(x, bool)


def is_real(x: object) -> TypeGuard[int | float]:
    """Return whether x is a number, which True and False are not."""
    return isinstance(x, (int, float)) and not isinstance(x, bool)
