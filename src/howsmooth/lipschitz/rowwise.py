"""Norms of a batch of operators, and the Jacobian of a map that acts on each row of its input separately.

The main use is `∂₁G(x_i, μ)`: how output i changes with its own token x_i while the measure μ, that is all that it
attends to, is fixed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Unpack

import torch
from torch import Tensor

from howsmooth.attention.query_derivative import QueryDerivative
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.lipschitz.gains import TokenGains
from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.operator import FunctionOperator, LinearOperator
from howsmooth.spectral.rounding import allowance, perturbation_norm
from howsmooth.spectral.solver import Solver, SolverOptions

MAX_DENSE_SIZE = 96  # matrices up to this size are formed, and their singular values computed by LAPACK
OPERATORS_PER_BATCH = 64  # operators solved at once; their vectors fit into a cache
COARSE_TOL = 0.05  # relative width for operators that cannot have the largest norm


def spectral_norms(
    operator: LinearOperator, *, solver: Solver = Solver(), **options: Unpack[SolverOptions]
) -> TokenGains:
    """Compute the norms of a batch of n operators (d_out, d).

    Small matrices, and those of a single head, are formed, and their norms computed by LAPACK; the intervals then
    account for rounding only, and have confidence 1. Otherwise all norms are computed by Lanczos to a relative width
    of 5 %, and those that may be the largest to `tol`.

    Args:
        operator: A batch of n operators.
        solver: The options of the solves: `tol` is that of the largest norm, the confidence that of all n intervals.
        **options: Fields of the solver to replace.

    Returns:
        The norms and their intervals.

    Raises:
        InputError: If `operator` does not have one batch axis.

    Example:
        >>> from howsmooth.spectral import MatrixOperator
        >>> matrices = torch.tensor([[[3.0, 0.0], [0.0, 1.0]], [[0.0, 2.0], [0.0, 0.0]]], dtype=torch.float64)
        >>> spectral_norms(MatrixOperator(matrices)).value
        tensor([3., 2.], dtype=torch.float64)
    """
    solver = replace(solver, **options)
    if len(operator.batch) != 1:
        raise InputError(f"expected a batch of n operators, got batch {operator.batch}")
    matrices = _dense_if_small(operator)
    if matrices is not None:
        value = torch.linalg.matrix_norm(matrices.double(), ord=2)
        slack = (allowance(operator) + max(matrices.shape[-2:]) * torch.finfo(torch.float64).eps) * value.max()
        slack = slack + 4 * perturbation_norm(operator, matrices)
        return TokenGains("own", value, (value - slack).clamp_min(0), value + slack, 1.0, ["exact"] * len(value))
    n = operator.batch[0]
    single = solver.divided(2 * n)  # there are two passes over n operators
    coarse = replace(single, tol=max(solver.tol, COARSE_TOL))
    value, lower, upper, status = _norms(operator, torch.arange(n), coarse)
    candidates = (upper >= lower.max()).nonzero().flatten()
    if solver.tol < COARSE_TOL:
        if isinstance(solver.seed, int):  # a generator has gone on by itself
            single = replace(single, seed=solver.seed + 1)
        value[candidates], finer_lower, finer_upper, finer_status = _norms(operator, candidates, single)
        lower[candidates] = torch.maximum(lower[candidates], finer_lower)
        upper[candidates] = torch.minimum(upper[candidates], finer_upper)
        for i, finer in zip(candidates.tolist(), finer_status, strict=True):
            status[i] = finer
    return TokenGains("own", value, lower, upper, solver.confidence, status)


def rowwise_jacobian(g: Callable[[Tensor], Tensor], x: Tensor, *, check: bool = True) -> LinearOperator:
    """Return the Jacobian at x (n, d) of a map that acts on each row separately, as a batch of n operators (d_out, d).

    Args:
        g: A map from (n, d) to (n, d_out) whose output row i depends on input row i only.
        x: The rows at which to differentiate.
        check: Whether to check that g is deterministic and that its forward and reverse derivatives agree. The check
            fails if the derivatives vanish up to rounding.

    Raises:
        InputError: If g does not return one row per row of x, or if a row depends on another row.
    """

    def differentiable(z: Tensor) -> Tensor:
        y = g(z)
        if not isinstance(y, Tensor) or y.dim() != 2 or len(y) != len(x):
            got = tuple(y.shape) if isinstance(y, Tensor) else type(y).__name__
            raise InputError(f"expected one output for each of {len(x)} rows, got {got}")
        # AutodiffJacobian refuses an output that does not depend on its input; 0·z gives it the derivative zero.
        return y + 0 * z.sum(-1, keepdim=True)

    J = AutodiffJacobian(differentiable, x, check=check)
    n, d_out = J.image.shape
    # Rows are independent iff a perturbation of row i that is t_i times as large changes output i by t_i times as much.
    generator = torch.Generator().manual_seed(0)
    v, t = (torch.randn(n, width, generator=generator).to(x) for width in (x.shape[1], 1))
    jv, scaled = (J.matvec(w.flatten()).view(n, d_out) for w in (v, t * v))
    noise = 64 * J.roundoff * (1 + float(x.abs().max())) * float(J.image.abs().max())
    if float((scaled - t * jv).abs().max()) > 1e-3 * float(jv.abs().max()) + noise:
        raise InputError(
            "expected G(x, μ) to treat the rows of x one by one, got an output that depends on another row; hold the "
            "measure fixed"
        )

    def blocks(jacobian: LinearOperator, perturbed: Callable[[], LinearOperator] | None = None) -> LinearOperator:
        batch = FunctionOperator(
            lambda v: jacobian.matvec(v.flatten()).view(n, d_out),
            lambda u: jacobian.rmatvec(u.flatten()).view(n, -1),
            (d_out, x.shape[1]),
            dtype=x.dtype,
            device=x.device,
            batch=(n,),
            perturbed=perturbed,
        )
        batch.copy_rounding(jacobian)
        return batch

    return blocks(J, lambda: blocks(J.perturbed()))


def plus_identity(operator: LinearOperator) -> LinearOperator:
    """Return I + J, the Jacobian of a residual connection around a map with Jacobian J."""
    if operator.shape[0] != operator.shape[1]:
        raise InputError(f"expected an output as wide as the input for a residual, got {operator.shape}")

    def perturbed() -> LinearOperator | None:
        other = operator.perturbed()
        return None if other is None else plus_identity(other)

    result = FunctionOperator(
        lambda v: v + operator.matvec(v),
        lambda u: u + operator.rmatvec(u),
        operator.shape,
        dtype=operator.dtype,
        device=operator.device,
        batch=operator.batch,
        workspace=operator.workspace,
        held=operator.held,
        perturbed=perturbed,
    )
    # `own_error` is relative to ‖J‖. If J is small, it is small relative to ‖I + J‖; a random product estimates ‖J‖.
    signs = torch.randn(*operator.batch, operator.shape[1], generator=torch.Generator().manual_seed(0)).sign()
    size = float(operator.matvec(signs.to(operator.device, operator.dtype)).norm(dim=-1).max())
    result.copy_rounding(operator)
    result.own_error = operator.own_error * min(1.0, 2 * size)
    return result


def _dense_if_small(operator: LinearOperator) -> Tensor | None:
    """Return matrices with the singular values of the operators if they are small, else None."""
    if isinstance(operator, QueryDerivative):
        a = operator.attention
        value_width = a.heads * a.wv.shape[0] // a.kv_heads
        if min(a.d_out, value_width) <= MAX_DENSE_SIZE and min(a.d, a.wq.shape[0]) <= MAX_DENSE_SIZE:
            return operator.cores()
    return operator.dense() if max(operator.shape) <= MAX_DENSE_SIZE else None


def _norms(operator: LinearOperator, index: Tensor, solver: Solver) -> tuple[Tensor, Tensor, Tensor, list[str]]:
    """Return value, lower, upper and status of the norms of the operators `index` of a batch."""
    values, lowers, uppers = list[Tensor](), list[Tensor](), list[Tensor]()
    status = list[str]()
    for part in index.split(OPERATORS_PER_BATCH):
        found = singular_values(_select(operator, part.to(operator.device)), solver=solver, strict=False)
        for collected, column in ((values, found.value), (lowers, found.lower), (uppers, found.upper)):
            collected.append(column[:, 0])
        status += found.status
    return torch.cat(values), torch.cat(lowers), torch.cat(uppers), status


def _select(operator: LinearOperator, index: Tensor) -> LinearOperator:
    """Return the operators `index` of a batch."""
    if isinstance(operator, QueryDerivative):
        return operator.at(index)
    if len(index) == operator.batch[0]:
        return operator
    n, (rows, cols) = operator.batch[0], operator.shape

    def embed(part: Tensor, width: int) -> Tensor:
        return part.new_zeros(n, width).index_copy(0, index, part)

    def perturbed() -> LinearOperator | None:
        other = operator.perturbed()
        return None if other is None else _select(other, index)

    selected = FunctionOperator(
        lambda v: operator.matvec(embed(v, cols))[index],
        lambda u: operator.rmatvec(embed(u, rows))[index],
        operator.shape,
        dtype=operator.dtype,
        device=operator.device,
        batch=(len(index),),
        perturbed=perturbed,
    )
    selected.copy_rounding(operator)
    return selected
