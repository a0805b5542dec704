"""What a solve will need, said before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from howsmooth.errors import InputError
from howsmooth.spectral.certificate import sufficient_steps
from howsmooth.spectral.operator import LinearOperator

FEWEST_STORED = 3


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes: `total` = `fixed` + `workspace` + `stored` basis vectors of `bytes_per_vector`, at most."""

    bytes_per_vector: int
    stored: int
    max_steps: int
    fixed: int
    workspace: int

    @property
    def total(self) -> int:
        return self.fixed + self.workspace + self.stored * self.bytes_per_vector

    @property
    def passes(self) -> int:
        """Two when vectors beyond the stored ones may have to be made again."""
        return 1 if self.stored >= self.max_steps else 2

    def __str__(self) -> str:
        mib = 2**20
        return (f"{self.total / mib:.1f} MiB: up to {self.stored} basis vectors of {self.bytes_per_vector / mib:.1f} "
                f"MiB for at most {self.max_steps} steps, {self.fixed / mib:.1f} MiB of other vectors, "
                f"{self.workspace / mib:.1f} MiB inside a product")


def default_max_steps(shape: tuple[int, int], tol: float, confidence: float) -> int:
    """As many steps as certify tol on any spectrum in exact arithmetic, with a tenth to spare for rounding."""
    enough = sufficient_steps(shape[1], 0.9 * (1 - confidence), 0.9 * tol)
    return min(shape[0] + 1, shape[1], enough + enough // 10 + 1)


def plan(
    operator: LinearOperator,
    max_memory: int | None = None,
    max_steps: int | None = None,
    *,
    k: int = 1,
    tol: float = 1e-3,
    confidence: float = 0.999,
) -> MemoryPlan:
    """The memory that `singular_values` will keep to; refused when not even three basis vectors fit.

    Counted beside the basis: the Lanczos vectors in flight, the k triplets, and the float64 vectors of the
    final evaluation. The operator's own data are not counted, nor those of its float64 twin.

    >>> from howsmooth.spectral import MatrixOperator
    >>> plan(MatrixOperator(torch.ones(40, 50)), max_memory=10_000, max_steps=20).stored
    13
    """
    rows, cols = operator.shape
    members = torch.Size(operator.batch).numel()
    size = torch.finfo(operator.dtype).bits // 8
    steps = max_steps if max_steps is not None else default_max_steps(operator.shape, tol, confidence)
    per_vector = members * cols * size
    in_flight = members * (5 * cols * size + 4 * rows * size + 8 * max(rows, cols))
    evaluation = members * 8 * ((k + 2) * cols + (2 * k + 1) * rows)
    triplets = members * k * (cols + rows) * size
    workspace = operator.workspace * (8 // size)
    # Until the basis is dropped the evaluation of one vector in float64 may need to stand beside it.
    fixed = triplets + max(in_flight, evaluation)
    least = fixed + workspace + FEWEST_STORED * per_vector
    if max_memory is not None and max_memory < least:
        raise InputError(f"expected max_memory of at least {least} bytes for {FEWEST_STORED} basis vectors of "
                         f"{per_vector} bytes, {fixed} bytes of other vectors and {workspace} bytes inside a "
                         f"product, got {max_memory}; allow more, or take fewer batch members or a lower k")
    stored = steps if max_memory is None else min(steps, (max_memory - fixed - workspace) // per_vector)
    return MemoryPlan(per_vector, max(1, stored), steps, fixed, workspace)
