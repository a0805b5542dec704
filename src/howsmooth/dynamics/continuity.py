"""The continuity equation ∂_t μ + div(μ Γ_μ) = 0 on a grid, by a conservative and positive finite-volume scheme.

Mass flows through the faces of cells. What leaves a cell enters the adjacent one, so the total mass changes only by
rounding. Time steps are short enough that no cell loses more than its mass, so masses stay ≥ 0. With order 2 the
density is linear in each cell, with limited slopes (monotonised central differences), and time is integrated by Heun's
method, an average of two Euler steps that both keep masses positive. With order 1 it is constant in each cell, and time
is integrated by Euler's method.

A masked measure has a slice of masses for each time; slice s moves in the field of all slices up to s.

The velocity is Γ_μ at the centres of the cells, with their masses as μ. For softmax and L2 attention the weights are
exponentials of ⟨q(x), y⟩ and factor over the axes of the grid, e^{q₁y₁} e^{q₂y₂}: sums over all cells y are products of
matrices (N², N) and (N, N), whose exponentials are computed once for the whole flow, and no array over all pairs of
cells is needed in d = 2. For other kinds of attention Γ_μ is evaluated directly, in blocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.fields.field import Field
from howsmooth.attention.fields.softmax import L2Field, SoftmaxField
from howsmooth.dynamics.grid import Density, Grid
from howsmooth.dynamics.velocity import heads_of
from howsmooth.errors import InputError, NotConverged

_MAX_SCORE_RANGE = 500.0  # of the scores on the grid: e^{−500} is still a normal number
_BLOCK_ROWS = 256
_MIN_MASS = 1e-290  # smaller masses are set to 0 in the fields: their products would underflow

GridVelocity = Callable[[Tensor], Tensor]  # masses (*cells) ↦ velocities (*cells, d)


def velocity_on(field: Field, grid: Grid) -> GridVelocity:
    """Return the map from masses `(*cells)` to Γ_μ at the centres, `(*cells, d)`.

    Raises:
        InputError: If the field does not map R^d to itself, with d the dimension of the grid.
    """
    if not isinstance(field, Field):
        raise InputError(f"expected a Field, got {type(field).__name__}; for matrices, SoftmaxField.of(A, V)")
    if not field.d == field.d_out == grid.d:
        raise InputError(
            f"expected a field from R^{grid.d} to R^{grid.d}, the dimension of the grid (a square V), got "
            f"R^{field.d} to R^{field.d_out}"
        )
    x = grid.centres.reshape(-1, grid.d)
    if isinstance(field, SoftmaxField):
        heads, constant = heads_of(field.layer, "a flow on a grid")
        found = [(_Exponentials.of(grid, x @ head.A.mT + head.c), head.V) for head in heads]
        parts = [(part, v) for part, v in found if part is not None]
        if len(parts) == len(heads):

            def softmax(mass: Tensor) -> Tensor:
                total: Tensor = sum((part.mean(mass) @ v.mT for part, v in parts), constant)
                return total.unflatten(0, grid.cells)

            return softmax
    if isinstance(field, L2Field):
        q, k, v = (t.double() for t in (field.q, field.k, field.v))
        part = _Exponentials.of(grid, 2 * x @ q.mT @ k)
        # −|Ky|² does not depend on x: it becomes a factor of the mass.
        factor = (-(x @ k.mT).square().sum(-1)).reshape(grid.cells)
        factor = (factor - factor.max()).exp()
        if part is not None and float(factor.min()) > 0:
            return lambda mass: (part.mean(mass * factor) @ v.mT).unflatten(0, grid.cells)
    return lambda mass: _direct_velocity(field, x, mass).unflatten(0, grid.cells)


def _direct_velocity(field: Field, x: Tensor, mass: Tensor) -> Tensor:
    mass = mass.flatten()
    positive = mass > 0  # the field takes logarithms of masses
    return field(x, x[positive], mass[positive].log())


@dataclass(frozen=True, eq=False)
class _Exponentials:
    """The factors e^{q_k(x) y_k − max} at all centres x and all y along axis k, (n, N_k) for each axis."""

    axes: tuple[Tensor, ...]
    factors: tuple[Tensor, ...]

    @classmethod
    def of(cls, grid: Grid, queries: Tensor) -> _Exponentials | None:
        """Return the factors, or None if the range of the scores is too large for exponentials in float64."""
        axes = tuple(grid.axis(index) for index in range(grid.d))
        scores = [queries[:, index, None] * axis for index, axis in enumerate(axes)]
        span = sum((s.amax(1) - s.amin(1) for s in scores), torch.zeros(len(queries), dtype=torch.float64))
        if float(span.max()) > _MAX_SCORE_RANGE:
            return None
        return cls(axes, tuple((s - s.amax(1, keepdim=True)).exp() for s in scores))

    def mean(self, mass: Tensor) -> Tensor:
        """Return Σ_y w(x, y) y / Σ_y w(x, y) with w = mass · exponential, (n, d)."""
        first = self.factors[0]
        if len(self.axes) == 1:
            weights = first @ torch.stack([mass, mass * self.axes[0]], 1)
            return weights[:, 1:] / weights[:, :1]
        second, (y1, y2) = self.factors[1], self.axes
        both, powers = torch.cat([mass, y1[:, None] * mass], 1), torch.stack([torch.ones_like(y2), y2], 1)
        sums = torch.empty(len(first), 3, dtype=torch.float64)
        for rows in torch.arange(len(first)).split(_BLOCK_ROWS):  # blocks that fit into the cache
            piece = slice(int(rows[0]), int(rows[-1]) + 1)
            # Sum over y₁ with the first factor, then over y₂ with the second.
            along, along_y1 = (first[piece] @ both).chunk(2, 1)
            sums[piece, :2] = (along * second[piece]) @ powers
            sums[piece, 2] = (along_y1 * second[piece]).sum(1)
        return torch.stack([sums[:, 2], sums[:, 1]], 1) / sums[:, :1]


@dataclass(frozen=True, eq=False)
class DensityFlow:
    """A density along time.

    Attributes:
        field: Name of the attention field.
        grid: The grid.
        times: The saved times, (T,).
        masses: Masses of the cells, `(T, *cells)`, or `(T, slices, *cells)` for a masked measure.
        status: "finished" or, in the `partial` of a `NotConverged`, "left the grid" or "step limit".
        until: The time that was requested.
        order: Order of the scheme, 1 or 2.
        steps: Number of time steps.
        mass_error: The largest `|1 − Σ mass|` of all steps.
        leaked: The mass that would have left the grid through its boundary.
        seconds: Wall-clock time.
    """

    field: str
    grid: Grid
    times: Tensor
    masses: Tensor
    status: str
    until: float
    order: int
    steps: int
    mass_error: float
    leaked: float
    seconds: float

    @property
    def last(self) -> Density:
        """The measure at the last saved time."""
        return self.density(-1)

    def density(self, index: int) -> Density:
        """Return the measure at times[index]."""
        return Density(self.grid, self.masses[index])

    @property
    def densities(self) -> Tensor:
        """Mass per unit of volume, `(T, *cells)`, summed over slices."""
        masses = self.masses.sum(1) if self.last.is_masked else self.masses
        return masses / math.prod(self.grid.widths)

    def as_record(self) -> dict[str, Any]:
        """Return settings, status and moments as plain values, without the masses."""
        densities = [self.density(index) for index in range(len(self.times))]
        names = ("field", "status", "until", "order", "steps", "mass_error", "leaked", "seconds")
        return {
            **{name: getattr(self, name) for name in names},
            "d": self.grid.d,
            "low": list(self.grid.low),
            "high": list(self.grid.high),
            "cells": list(self.grid.cells),
            "dtype": "float64",
            "slices": len(self.masses[0]) if densities[0].is_masked else None,
            "times": self.times.tolist(),
            "means": [one.mean.tolist() for one in densities],
            "covariances": [one.covariance.tolist() for one in densities],
        }


def density_flow(
    field: Field,
    start: Density,
    until: float,
    *,
    order: int = 2,
    frames: int = 21,
    cfl: float = 0.9,
    leak: float = 1e-6,
    max_steps: int = 100_000,
    progress: Callable[[float], None] | None = None,
) -> DensityFlow:
    """Solve ∂_t μ + div(μ Γ_μ) = 0 on a grid up to time `until`.

    Args:
        field: Attention as a field on R^d, d = 1 or 2.
        start: The measure at time 0; with slices it is masked.
        until: The time to reach.
        order: 2, or 1 for the plain upwind scheme.
        frames: Number of saved times, evenly spaced.
        cfl: Time step as a fraction of the largest one that keeps masses positive.
        leak: No mass crosses the boundary of the grid. Once this fraction of the mass would have crossed it, the
            grid is too small, and `NotConverged` is raised.
        max_steps: Maximal number of time steps.
        progress: Called with the time after every step.

    Returns:
        The masses at the saved times.

    Raises:
        InputError: If a setting is not valid.
        NotConverged: If mass reaches the boundary or `max_steps` is exceeded; `partial` is the flow up to then.

    Example:
        >>> import torch
        >>> from howsmooth.attention.fields import SoftmaxField
        >>> from howsmooth.dynamics.gaussian import GaussianState
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> start = Density.gaussian(GaussianState.standard(1), Grid.square(1, 6.0, 120))
        >>> flow = density_flow(SoftmaxField.of(-one, one), start, 1.0)
        >>> round(flow.last.covariance.item(), 2), flow.mass_error < 1e-12     # exactly 1/(1 + 2t) = 1/3
        (0.33, True)
    """
    _check(start, until, order, frames, cfl, leak, max_steps)
    began, grid = time.perf_counter(), start.grid
    velocity_of = velocity_on(field, grid)
    mass = (start.mass if start.is_masked else start.mass[None]).clone()
    now, steps, leaked, worst, status = 0.0, 0, 0.0, 0.0, "finished"
    frame_times = torch.linspace(0, until, frames, dtype=torch.float64).tolist()
    kept, next_frame = [(0.0, mass)], 1

    def rates(mass: Tensor) -> _Rates:
        velocity = torch.stack([velocity_of(_drop_tiny_masses(visible)) for visible in mass.cumsum(0)])
        return _rates(mass, velocity, grid, order)

    while now < until:
        if steps >= max_steps:
            status = "step limit"
            break
        first = rates(mass)
        dt = min(cfl / max(first.outflow, 1e-300), frame_times[next_frame] - now)
        moved = mass + dt * first.change
        lost = dt * first.leak
        if order == 2:
            second = rates(moved)
            while dt * second.outflow > 1:  # the field has grown within the step: keep masses positive
                dt /= 2
                moved = mass + dt * first.change
                second = rates(moved)
            moved = (mass + moved + dt * second.change) / 2
            lost = dt * (first.leak + second.leak) / 2
        leaked += float(lost.sum())
        if leaked > leak:
            status = "left the grid"
            break
        now = frame_times[next_frame] if frame_times[next_frame] - now - dt <= 1e-14 * until else now + dt
        mass, steps = moved, steps + 1
        worst = max(worst, abs(1 - float(mass.sum())))
        if now == frame_times[next_frame]:
            kept.append((now, mass))
            next_frame += 1
        if progress is not None:
            progress(now)
    if kept[-1][0] < now:
        kept.append((now, mass))
    masses = torch.stack([one for _, one in kept])
    flow = DensityFlow(
        field.name,
        grid,
        torch.tensor([t for t, _ in kept], dtype=torch.float64),
        masses if start.is_masked else masses.squeeze(1),
        status,
        float(until),
        order,
        steps,
        worst,
        leaked,
        time.perf_counter() - began,
    )
    if status == "left the grid":
        raise NotConverged(
            f"expected the mass to stay inside {grid}, got {leaked:.2g} of it at the boundary "
            f"{_leak_position(lost, grid)} at t = {now:.4g}; take a wider grid, or stop before",
            flow,
        )
    if status == "step limit":
        raise NotConverged(
            f"expected to reach t = {until:g} in {max_steps} steps, got to t = {now:.4g}; raise "
            "max_steps, take fewer cells, or stop earlier",
            flow,
        )
    return flow


@dataclass(frozen=True, eq=False)
class _Rates:
    """The right-hand side of the scheme."""

    change: Tensor  # d mass/dt, like mass
    outflow: float  # the largest fraction of a cell's mass that could leave it per unit of time
    leak: Tensor  # (d, 2): mass per unit of time that moves towards the boundary, at both ends of each axis


def _rates(mass: Tensor, velocity: Tensor, grid: Grid, order: int) -> _Rates:
    change, outflow = torch.zeros_like(mass), torch.zeros_like(mass)
    leak = torch.zeros(grid.d, 2, dtype=torch.float64)
    for axis, width in enumerate(grid.widths):
        m, v = mass.movedim(axis + 1, -1), velocity[..., axis].movedim(axis + 1, -1)
        face = (v[..., 1:] + v[..., :-1]) / (2 * width)  # cells per unit of time, through inner faces
        half = _half_slopes(m) if order == 2 else torch.zeros_like(m)
        flux = torch.where(face > 0, face * (m + half)[..., :-1], face * (m - half)[..., 1:])
        gain = torch.nn.functional.pad(flux, (1, 0)) - torch.nn.functional.pad(flux, (0, 1))
        change += gain.movedim(-1, axis + 1)
        right, left = (
            torch.nn.functional.pad(face.clamp(min=0), (0, 1)),
            torch.nn.functional.pad((-face).clamp(min=0), (1, 0)),
        )
        # With slopes the density at a face is at most twice the mean of its cell.
        outflow += (order * (right + left)).movedim(-1, axis + 1)
        leak[axis, 0] = (m[..., 0] * (-v[..., 0]).clamp(min=0)).sum() / width
        leak[axis, 1] = (m[..., -1] * v[..., -1].clamp(min=0)).sum() / width
    return _Rates(change, float(outflow.max()), leak)


def _half_slopes(m: Tensor) -> Tensor:
    """Return half the limited difference across each cell: at most its mean, so that no end value is negative."""
    steps = m.diff(dim=-1)
    left, right = torch.nn.functional.pad(steps, (1, 0)), torch.nn.functional.pad(steps, (0, 1))
    size = torch.minimum(torch.minimum(left.abs(), right.abs()), (left + right).abs() / 4)
    return torch.where(left * right > 0, left.sign() * size, 0.0)


def _drop_tiny_masses(mass: Tensor) -> Tensor:
    return torch.where(mass > _MIN_MASS, mass, 0.0)


def _leak_position(lost: Tensor, grid: Grid) -> str:
    """Name the side of the grid that loses most mass."""
    axis, side = divmod(int(lost.argmax()), 2)
    return f"{'xy'[axis]} = {(grid.low, grid.high)[side][axis]:g}"


def _check(start: Density, until: float, order: int, frames: int, cfl: float, leak: float, max_steps: int) -> None:
    if not isinstance(start, Density):
        raise InputError(f"expected a Density to start from, got {type(start).__name__}; Density.gaussian(state, grid)")
    if not 0 < until < math.inf:
        raise InputError(f"expected a positive finite time until, got {until}")
    if order not in (1, 2):
        raise InputError(f"expected order 1 or 2, got {order!r}")
    if not 0 < cfl <= 1 or not 0 < leak <= 1:
        raise InputError(f"expected cfl and leak above 0 and up to 1, got {cfl} and {leak}")
    for name, value, least in (("frames", frames, 2), ("max_steps", max_steps, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"expected {name} as a whole number of at least {least}, got {value!r}")
