"""The memory that a solve needs, computed before it starts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Unpack

import torch

from howsmooth.errors import InputError
from howsmooth.spectral.bidiagonal import MAX_CHUNK_VECTORS
from howsmooth.spectral.certificate import sufficient_steps
from howsmooth.spectral.operator import LinearOperator, is_rounded_further
from howsmooth.spectral.solver import Solver, SolverOptions

MIN_STORED_VECTORS = 3
MAX_EXTRA_VECTORS = 2  # deflated beyond the k that are asked for, where products are rounded (`deflation`)


@dataclass(frozen=True)
class MemoryPlan:
    """Memory of a solve in bytes.

    Attributes:
        bytes_per_vector: Bytes of one basis vector, for the whole batch.
        stored: Largest number of basis vectors that are stored.
        max_steps: Largest number of Lanczos steps.
        fixed: Bytes of all other vectors.
        workspace: Bytes that one product needs beyond its input and output.
        held: Bytes that the operator and its float64 reference keep between products.
    """

    bytes_per_vector: int
    stored: int
    max_steps: int
    fixed: int
    workspace: int
    held: int

    @property
    def total(self) -> int:
        """Largest number of bytes in use at any time."""
        return self.fixed + self.workspace + self.held + self.stored * self.bytes_per_vector

    @property
    def passes(self) -> int:
        """Two if a second pass may have to recompute vectors that were not stored, else one."""
        return 1 if self.stored >= self.max_steps else 2

    def __str__(self) -> str:
        """Show the total and its parts in MiB."""
        mib = 2**20
        return (
            f"{self.total / mib:.1f} MiB: up to {self.stored} basis vectors of "
            f"{self.bytes_per_vector / mib:.1f} MiB for at most {self.max_steps} steps, "
            f"{self.fixed / mib:.1f} MiB of other vectors, "
            f"{self.workspace / mib:.1f} MiB inside a product, {self.held / mib:.1f} MiB held by the operator"
        )


def stored_after(steps: int) -> int:
    """Return the number of basis vectors that are allocated after so many steps, in chunks that grow.

    Example:
        >>> [stored_after(steps) for steps in (3, 4, 9, 40)]
        [4, 8, 16, 48]
    """
    allocated = 0
    while allocated < steps + 1:
        allocated += min(MAX_CHUNK_VECTORS, max(4, allocated))
    return allocated


def step_limit(shape: tuple[int, int], solver: Solver) -> int:
    """Return `max_steps`; without it the steps that certify tol on any spectrum, plus a tenth for rounding."""
    if solver.max_steps is not None:
        return solver.max_steps
    enough = sufficient_steps(shape[1], 0.9 * (1 - solver.confidence), 0.9 * solver.tol)
    return min(shape[1], enough + enough // 10 + 1)


def plan(
    operator: LinearOperator, *, k: int = 1, solver: Solver = Solver(), **options: Unpack[SolverOptions]
) -> MemoryPlan:
    """Compute the memory that `singular_values` will use with the same arguments.

    It counts the basis, the other Lanczos vectors, the k triplets, the vectors of the final evaluation (in float64 if
    the operator has a float64 reference), and the bytes that the operator and its reference report.

    Args:
        operator: The operator, or a batch of them.
        k: Number of singular values.
        solver: The options of the solve; without `max_memory` every basis vector is stored.
        **options: Fields of the solver to replace.

    Returns:
        The plan. Fewer vectors are stored where `max_memory` requires it.

    Raises:
        InputError: If not even three basis vectors fit into `max_memory`.

    Example:
        >>> from howsmooth.spectral import MatrixOperator
        >>> plan(MatrixOperator(torch.ones(40, 50)), max_memory=10_000, max_steps=40).stored
        28
    """
    solver = replace(solver, **options)
    rows, cols = operator.shape
    members = torch.Size(operator.batch).numel()
    size = torch.finfo(operator.dtype).bits // 8
    steps, max_memory = step_limit(operator.shape, solver), solver.max_memory
    per_vector = members * cols * size
    # The recurrence and the float64 probes coexist with the basis.
    is_probed = operator.reference_itemsize > 0 and solver.stop == "interval"
    # By products JᵀJ v no vectors J v are formed, and v and the vector before it are in the basis.
    vectors = 5 * cols if operator.has_gram and k == 1 else 7 * cols + 5 * rows
    in_flight = members * (size * vectors + (8 * (3 * cols + 2 * rows) if is_probed else 0))
    widest = max(size, operator.reference_itemsize)
    is_deflated = is_probed and is_rounded_further(operator)
    evaluated = k + MAX_EXTRA_VECTORS if is_deflated else k
    evaluation = (4 * cols + 3 * rows) if evaluated == 1 else (4 * evaluated + 2) * cols + (5 * evaluated + 2) * rows
    evaluation *= members * widest
    found = members * size * (evaluated * (cols + rows) if is_deflated else 2 * k * cols if k > 1 else cols)
    workspace = operator.workspace * widest // size
    held = operator.held + operator.reference_bytes
    # The evaluation starts after the basis is freed, which has at least so many vectors.
    fixed = found + max(in_flight, evaluation - min(MIN_STORED_VECTORS, steps) * per_vector)
    least = fixed + workspace + held + MIN_STORED_VECTORS * per_vector
    if max_memory is not None and max_memory < least:
        raise InputError(
            f"expected max_memory of at least {least} bytes ({MIN_STORED_VECTORS} basis vectors of "
            f"{per_vector} bytes, {fixed} bytes of other vectors, {workspace} bytes inside a "
            f"product, {held} bytes held by the operator), got {max_memory}; allow more, or take "
            "fewer batch members or a lower k"
        )
    stored = steps if max_memory is None else min(steps, (max_memory - fixed - workspace - held) // per_vector)
    return MemoryPlan(per_vector, max(1, stored), steps, fixed, workspace, held)
