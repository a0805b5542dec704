"""What a solve will need, said before anything is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from howsmooth.errors import InputError
from howsmooth.spectral.bidiagonal import LARGEST_CHUNK
from howsmooth.spectral.certificate import sufficient_steps
from howsmooth.spectral.operator import LinearOperator

FEWEST_STORED = 3


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes: `total` = `fixed` + `workspace` + `held` + `stored` basis vectors of `bytes_per_vector`, at most."""

    bytes_per_vector: int
    stored: int
    max_steps: int
    fixed: int
    workspace: int
    held: int

    @property
    def total(self) -> int:
        return self.fixed + self.workspace + self.held + self.stored * self.bytes_per_vector

    @property
    def passes(self) -> int:
        """Two when vectors beyond the stored ones may have to be made again."""
        return 1 if self.stored >= self.max_steps else 2

    def __str__(self) -> str:
        mib = 2**20
        return (
            f"{self.total / mib:.1f} MiB: up to {self.stored} basis vectors of "
            f"{self.bytes_per_vector / mib:.1f} MiB for at most {self.max_steps} steps, "
            f"{self.fixed / mib:.1f} MiB of other vectors, "
            f"{self.workspace / mib:.1f} MiB inside a product, {self.held / mib:.1f} MiB held by the operator"
        )


def stored_after(steps: int) -> int:
    """Basis vectors that there is room for after so many steps: room is made in chunks that grow.

    >>> [stored_after(steps) for steps in (3, 4, 9, 40)]
    [4, 8, 16, 48]
    """
    room = 0
    while room < steps + 1:
        room += min(LARGEST_CHUNK, max(4, room))
    return room


def default_max_steps(shape: tuple[int, int], tol: float, confidence: float) -> int:
    """Steps that certify tol on any spectrum in exact arithmetic, with a tenth to spare for rounding."""
    enough = sufficient_steps(shape[1], 0.9 * (1 - confidence), 0.9 * tol)
    return min(shape[1], enough + enough // 10 + 1)


def plan(
    operator: LinearOperator,
    max_memory: int | None = None,
    max_steps: int | None = None,
    *,
    k: int = 1,
    tol: float = 1e-3,
    confidence: float = 0.999,
    stop: str = "interval",
) -> MemoryPlan:
    """The memory that `singular_values` will keep to; refused when not even three basis vectors fit.

    Counted beside the basis: the Lanczos vectors in flight, the k triplets, the vectors of the final evaluation, in
    float64 where it has a twin for that, and what the operator and its twin say they hold.

    >>> from howsmooth.spectral import MatrixOperator
    >>> plan(MatrixOperator(torch.ones(40, 50)), max_memory=10_000, max_steps=40).stored
    28
    """
    rows, cols = operator.shape
    members = torch.Size(operator.batch).numel()
    size = torch.finfo(operator.dtype).bits // 8
    steps = max_steps if max_steps is not None else default_max_steps(operator.shape, tol, confidence)
    per_vector = members * cols * size
    # The recurrence and the float64 probes stand beside the basis; the evaluation comes when it is gone.
    probed = operator.reference_itemsize > 0 and stop == "interval"
    in_flight = members * (size * (7 * cols + 5 * rows) + (8 * (3 * cols + 2 * rows) if probed else 0))
    widest = max(size, operator.reference_itemsize)
    evaluation = members * widest * (4 * cols + 3 * rows if k == 1 else (4 * k + 2) * cols + (5 * k + 2) * rows)
    found = members * size * (2 * k * cols if k > 1 else cols)
    workspace = operator.workspace * widest // size
    held = operator.held + operator.reference_bytes
    fixed = found + max(in_flight, evaluation)
    least = fixed + workspace + held + FEWEST_STORED * per_vector
    if max_memory is not None and max_memory < least:
        raise InputError(
            f"expected max_memory of at least {least} bytes ({FEWEST_STORED} basis vectors of "
            f"{per_vector} bytes, {fixed} bytes of other vectors, {workspace} bytes inside a "
            f"product, {held} bytes held by the operator), got {max_memory}; allow more, or take "
            "fewer batch members or a lower k"
        )
    stored = steps if max_memory is None else min(steps, (max_memory - fixed - workspace - held) // per_vector)
    return MemoryPlan(per_vector, max(1, stored), steps, fixed, workspace, held)
