"""The gains from token to output, ‖J_ij‖₂ for every pair, and what follows for the largest token norm on both sides.

J_ij, (d_out, d), is the derivative of output i in token j. A block column J[:, j] is formed by d products, and the norm
of each of its blocks is exact up to rounding: n·d products and n² norms. Nothing else that is kept grows as n².

With ‖E‖ = max_i |ε_i| on both sides, the norm of J is NP-hard to compute in general: with d = 1 each of its block rows
is a matrix with n columns, and its norm the one from ∞ to 2. There are two sides:

    upper   max_i min( Σ_j ‖J_ij‖₂ , √n ‖J[i, :]‖₂ )
    lower   |(J E)_i| for an E with |ε_j| ≤ 1, found by Boyd's power method
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.token_columns import TokenColumns
from howsmooth.errors import InputError
from howsmooth.lipschitz.local import Map, jacobian, promote_half
from howsmooth.spectral.power import attained_p_norm
from howsmooth.spectral.rounding import allowance

BLOCK_BYTES = 2**27  # of the block columns that are formed at once


@dataclass(frozen=True, eq=False)
class GainMatrix:
    """The norms of the blocks of a Jacobian, and the norm of J for the largest token norm on both sides.

    Attributes:
        value: ‖J_ij‖₂, (outputs, tokens), in float64: exact up to `rounding`.
        rows: ‖J[i, :]‖₂ of each output, (outputs,).
        rounding: Relative error that is allowed to all of these.
        token_norm: (lower, upper) for the largest token norm on both sides.
        products: Products with J.
    """

    value: Tensor
    rows: Tensor
    rounding: float
    token_norm: tuple[float, float]
    products: int


def gain_matrix(f: Map, x: Tensor, *, steps: int = 30, seed: int = 0) -> GainMatrix:
    """Compute the norm of every block of the Jacobian of f at x, and a two-sided bound for the largest token norm.

    Args:
        f: A `SelfAttention` or another torch callable, from tokens (n, d) to tokens (m, d_out).
        x: Tokens (n, d).
        steps: Steps of the search for the lower side.
        seed: Seed of its starts.

    Raises:
        InputError: x is not (n, d), or f(x) is not (m, d_out).

    Example:
        >>> scale = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> found = gain_matrix(lambda x: scale * x, torch.zeros(2, 3, dtype=torch.float64))
        >>> found.value.tolist(), [round(end, 6) for end in found.token_norm]
        ([[1.0, 0.0], [0.0, 2.0]], [2.0, 2.0])
    """
    f, x = promote_half(f, x)
    if x.dim() != 2:
        raise InputError(f"expected tokens of shape (n, d), got {tuple(x.shape)}; pass one sequence")
    J = jacobian(f, x)
    if J.image.dim() != 2:
        raise InputError(f"expected an output of shape (m, width), a row per token, got {tuple(J.image.shape)}")
    exact: Any = J.precise() or J
    (n, d), (m, width) = x.shape, J.image.shape
    gains = torch.zeros(m, n, dtype=torch.float64)
    squares = torch.zeros(m, width, width, dtype=torch.float64, device=x.device)  # J[i, :] J[i, :]ᵀ
    for tokens, block in _block_columns(f, x, exact, m, width):
        blocks = block.double()  # (t, m, d_out, d)
        gains[:, tokens] = torch.linalg.matrix_norm(blocks, 2).T.cpu()
        squares += torch.einsum("tiab,ticb->iac", blocks, blocks)
    rows = torch.linalg.eigvalsh(squares)[:, -1].clamp(min=0).sqrt().cpu()
    rounding = allowance(exact)
    upper = float(torch.minimum(gains.sum(1), math.sqrt(n) * rows).max()) * (1 + rounding)
    lower = attained_p_norm(exact, math.inf, widths=(width, d), steps=steps, seed=seed) * (1 - rounding)
    return GainMatrix(gains, rows, rounding, (min(lower, upper), upper), n * d + 8 * steps)


def _block_columns(f: Map, x: Tensor, exact: Any, m: int, width: int) -> Iterator[tuple[list[int], Tensor]]:
    """Yield positions and their block columns (t, m, d_out, d)."""
    n, d = x.shape
    size = max(1, BLOCK_BYTES // (8 * m * width * d))
    columns = None
    if isinstance(f, SelfAttention):
        columns = TokenColumns(f.converted(dtype=exact.dtype), x.to(exact.dtype), torch.arange(1))
    for tokens in torch.arange(n, device=x.device).split(min(n, size) if columns is not None else 1):
        operator = None if columns is None else columns.at(tokens)
        images = []
        for i in range(d):
            if operator is not None:
                unit = torch.zeros(len(tokens), d, dtype=exact.dtype, device=x.device)
                unit[:, i] = 1
                images.append(operator.matvec(unit).view(len(tokens), m, width))
            else:
                whole = torch.zeros(n, d, dtype=exact.dtype, device=x.device)
                whole[tokens, i] = 1
                images.append(exact.matvec(whole.flatten()).view(1, m, width))
        yield tokens.tolist(), torch.stack(images, dim=-1)
