"""Γ_μ at the centres of a grid, μ the masses of its cells; nothing of the size of all pairs of cells is kept in d = 2.

Weights that are exponentials of ⟨q(x), y⟩ factor over the axes of a grid, e^{q₁y₁} e^{q₂y₂}: sums over all cells y are
products of matrices (N², N) and (N, N), whose exponentials are computed once for the whole flow. So for softmax and L2
attention. Other kinds are asked for Γ_μ as they are, in blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.attention.fields import Field, L2Field, SoftmaxField
from howsmooth.dynamics.bilinear import heads_of
from howsmooth.dynamics.grid import Grid
from howsmooth.errors import InputError

_RANGE = 500.0  # of the scores on the grid: e^{−500} beside the largest is a number still
_ROWS = 256

GridVelocity = Callable[[Tensor], Tensor]  # masses (*cells) ↦ velocities (*cells, d)


def velocity_on(field: Field, grid: Grid) -> GridVelocity:
    """The map from masses (*cells) to Γ_μ at the centres (*cells, d)."""
    if not isinstance(field, Field):
        raise InputError(f"expected a Field, got {type(field).__name__}; for matrices, SoftmaxField.of(A, V)")
    if not field.d == field.d_out == grid.d:
        raise InputError(f"expected a field from R^{grid.d} to R^{grid.d}, where the grid lives (a square V), got "
                         f"R^{field.d} to R^{field.d_out}")
    x = grid.centres.reshape(-1, grid.d)
    if isinstance(field, SoftmaxField):
        heads, constant = heads_of(field.layer, "a flow on a grid")
        parts = [(_Exponentials.of(grid, x @ head.A.mT + head.c), head.V) for head in heads]
        if all(part is not None for part, _ in parts):
            return lambda mass: sum((part.mean(mass) @ v.mT for part, v in parts), constant).unflatten(0, grid.cells)
    if isinstance(field, L2Field):
        q, k, v = (t.double() for t in (field.q, field.k, field.v))
        part = _Exponentials.of(grid, 2 * x @ q.mT @ k)
        # −|Ky|² knows no x: it is one more factor of the mass.
        factor = (-(x @ k.mT).square().sum(-1)).reshape(grid.cells)
        factor = (factor - factor.max()).exp()
        if part is not None and float(factor.min()) > 0:
            return lambda mass: (part.mean(mass * factor) @ v.mT).unflatten(0, grid.cells)
    return lambda mass: _as_it_is(field, x, mass).unflatten(0, grid.cells)


def _as_it_is(field: Field, x: Tensor, mass: Tensor) -> Tensor:
    mass = mass.flatten()
    there = mass > 0  # atoms without mass have no logarithm
    return field(x, x[there], mass[there].log())


@dataclass(frozen=True, eq=False)
class _Exponentials:
    """e^{q_k(x) y_k − max} at all centres x and all y along axis k: (n, N_k) for each axis."""

    axes: tuple[Tensor, ...]
    factors: tuple[Tensor, ...]

    @classmethod
    def of(cls, grid: Grid, queries: Tensor) -> _Exponentials | None:
        """None where the scores have more range than exponentials can hold."""
        axes = tuple(grid.axis(index) for index in range(grid.d))
        scores = [queries[:, index, None] * axis for index, axis in enumerate(axes)]
        span = sum((s.amax(1) - s.amin(1) for s in scores), torch.zeros(len(queries), dtype=torch.float64))
        if float(span.max()) > _RANGE:
            return None
        return cls(axes, tuple((s - s.amax(1, keepdim=True)).exp() for s in scores))

    def mean(self, mass: Tensor) -> Tensor:
        """Σ_y w(x, y) y / Σ_y w(x, y), w = mass · exponential, (n, d)."""
        first = self.factors[0]
        if len(self.axes) == 1:
            weights = first @ torch.stack([mass, mass * self.axes[0]], 1)
            return weights[:, 1:] / weights[:, :1]
        second, (y1, y2) = self.factors[1], self.axes
        both, powers = torch.cat([mass, y1[:, None] * mass], 1), torch.stack([torch.ones_like(y2), y2], 1)
        sums = torch.empty(len(first), 3, dtype=torch.float64)
        for rows in torch.arange(len(first)).split(_ROWS):  # in pieces that stay in the processor's cache
            piece = slice(int(rows[0]), int(rows[-1]) + 1)
            # The sum over y₁ is a product with the first exponential; that over y₂ is with the second.
            along, along_y1 = (first[piece] @ both).chunk(2, 1)
            sums[piece, :2] = (along * second[piece]) @ powers
            sums[piece, 2] = (along_y1 * second[piece]).sum(1)
        return torch.stack([sums[:, 2], sums[:, 1]], 1) / sums[:, :1]
