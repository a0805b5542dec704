"""Measures on a grid: masses of the cells of an interval or a rectangle, in one slice or several.

A masked measure on [0, 1] × R^d with finitely many times has one array of masses, a slice, for each time. All slices
share the grid, so the measure that a time attends to, its own slice and those before it, is a cumulative sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from howsmooth.dynamics.gaussian import GaussianState
from howsmooth.errors import InputError
from howsmooth.transport.measures import TokenMeasure

_ROUNDING = 1e-12  # per cell: how far the total mass may be from 1


@dataclass(frozen=True)
class Grid:
    """Equal cells of a box in one or two dimensions.

    Attributes:
        low: Lower end along each axis.
        high: Upper end along each axis.
        cells: Number of cells along each axis, at least 4.

    Example:
        >>> grid = Grid((-1.0,), (1.0,), (4,))
        >>> grid.centres.flatten().tolist()
        [-0.75, -0.25, 0.25, 0.75]
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    cells: tuple[int, ...]

    def __post_init__(self) -> None:
        """Check the ends and the numbers of cells."""
        if not len(self.low) == len(self.high) == len(self.cells) or len(self.cells) not in (1, 2):
            raise InputError(
                f"expected low, high and cells of one axis or two, got {self.low}, {self.high} and "
                f"{self.cells}; in more dimensions use particles"
            )
        for low, high, cells in zip(self.low, self.high, self.cells, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high):
                raise InputError(f"expected low < high, both finite, got {low} and {high}")
            if isinstance(cells, bool) or not isinstance(cells, int) or cells < 4:
                raise InputError(f"expected at least 4 cells along each axis, got {cells!r}; 64 is a good start")

    @classmethod
    def square(cls, d: int, radius: float, cells: int) -> Grid:
        """Return the grid on [−radius, radius]^d with `cells` cells along each axis."""
        return cls((-float(radius),) * d, (float(radius),) * d, (cells,) * d)

    @property
    def d(self) -> int:
        """The number of axes."""
        return len(self.cells)

    @property
    def widths(self) -> tuple[float, ...]:
        """The width of a cell along each axis."""
        return tuple((b - a) / n for a, b, n in zip(self.low, self.high, self.cells, strict=True))

    def axis(self, index: int) -> Tensor:
        """Return the centres of the cells along one axis."""
        low, h, n = self.low[index], self.widths[index], self.cells[index]
        return low + h * (torch.arange(n, dtype=torch.float64) + 0.5)

    def edges(self, index: int) -> Tensor:
        """Return the edges of the cells along one axis."""
        low, h, n = self.low[index], self.widths[index], self.cells[index]
        return low + h * torch.arange(n + 1, dtype=torch.float64)

    @cached_property
    def centres(self) -> Tensor:
        """The centres of all cells, `(*cells, d)`."""
        axes = [self.axis(index) for index in range(self.d)]
        return torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)

    def __str__(self) -> str:
        """Describe box and cells in one line."""
        box = " × ".join(f"[{a:g}, {b:g}]" for a, b in zip(self.low, self.high, strict=True))
        return f"{box} with {' × '.join(map(str, self.cells))} cells"


@dataclass(frozen=True, eq=False)
class Density:
    """A probability measure on a grid.

    Attributes:
        grid: The grid.
        mass: Masses of the cells, `(*cells)`, or `(slices, *cells)` for a masked measure; they add up to 1.

    Example:
        >>> density = Density.gaussian(GaussianState.standard(1), Grid.square(1, 6.0, 100))
        >>> round(float(density.mass.sum()), 12), round(float(density.covariance[0, 0]), 2)
        (1.0, 1.0)
    """

    grid: Grid
    mass: Tensor

    def __post_init__(self) -> None:
        """Check the masses, and convert them to float64 on the CPU."""
        mass = self.mass
        if (
            not isinstance(mass, Tensor)
            or mass.shape[-self.grid.d :] != self.grid.cells
            or mass.dim() - self.grid.d not in (0, 1)
        ):
            got = f"shape {tuple(mass.shape)}" if isinstance(mass, Tensor) else type(mass).__name__
            raise InputError(f"expected masses of shape {self.grid.cells}, or (slices, *{self.grid.cells}), got {got}")
        if not torch.isfinite(mass).all() or (mass < 0).any():
            raise InputError(
                "expected finite masses that are not negative, got "
                + ("NaN or ∞" if not torch.isfinite(mass).all() else f"{float(mass.min()):.3g}")
            )
        if abs(float(mass.sum()) - 1) > _ROUNDING * mass.numel():
            raise InputError(f"expected masses that add up to 1, got {float(mass.sum()):.6g}; divide by the sum")
        object.__setattr__(self, "mass", mass.detach().double().cpu())

    @classmethod
    def gaussian(cls, state: GaussianState, grid: Grid) -> Density:
        """Return the masses of N(α, S): exact in one dimension, by 3 × 3 Gauss points per cell in two.

        Raises:
            InputError: If the covariance is singular, or more than 1e-6 of the mass lies outside the grid.
        """
        if state.d != grid.d:
            raise InputError(f"expected a Gaussian on R^{grid.d}, the dimension of the grid, got one on R^{state.d}")
        if state.rank < state.d:
            raise InputError("expected a Gaussian with a density, got a singular covariance; use Density.of_tokens")
        outside = _outside(state, grid)
        if outside > 1e-6:
            raise InputError(
                f"expected a grid with all but 1e-6 of the mass inside, got {outside:.2g} of it outside "
                f"{grid}; take a wider grid"
            )
        if grid.d == 1:
            spread = math.sqrt(2 * float(state.covariance[0, 0]))
            # Differences of erfc are taken on the side where erfc is small, so no digits cancel in the tails.
            z = (grid.edges(0) - state.mean) / spread
            left, right = z[:-1], z[1:]
            mass = (
                torch.where(
                    left + right > 0, torch.erfc(left) - torch.erfc(right), torch.erfc(-right) - torch.erfc(-left)
                )
                / 2
            )
        else:
            nodes = torch.tensor([-(0.6**0.5) / 2, 0.0, 0.6**0.5 / 2], dtype=torch.float64)
            weights = torch.tensor([5 / 18, 8 / 18, 5 / 18], dtype=torch.float64)
            x, y = (grid.axis(i)[:, None] + grid.widths[i] * nodes for i in (0, 1))
            points = torch.stack(torch.broadcast_tensors(x[:, None, :, None], y[None, :, None, :]), -1) - state.mean
            exponent = -(points @ torch.linalg.inv(state.covariance) * points).sum(-1) / 2
            mass = torch.einsum("xyij,i,j->xy", exponent.exp(), weights, weights)
        if not float(mass.sum()) > 0:
            raise InputError(f"expected a Gaussian as wide as a cell, got one so narrow that {grid} misses it")
        return cls(grid, mass / mass.sum())

    @classmethod
    def of_tokens(cls, tokens: Tensor, grid: Grid) -> Density:
        """Return the histogram of tokens (n, d)."""
        tokens = tokens.detach().double().cpu()
        if tokens.dim() != 2 or tokens.shape[1] != grid.d:
            raise InputError(f"expected tokens of shape (n, {grid.d}), got {tuple(tokens.shape)}")
        low, high, widths = (torch.tensor(t, dtype=torch.float64) for t in (grid.low, grid.high, grid.widths))
        if (tokens < low).any() or (tokens > high).any():
            raise InputError(f"expected tokens inside {grid}, got some outside; take a wider grid")
        cells = torch.tensor(grid.cells)
        index = torch.minimum(((tokens - low) / widths).long(), cells - 1)
        flat = index[:, 0] if grid.d == 1 else index[:, 0] * grid.cells[1] + index[:, 1]
        mass = torch.bincount(flat, minlength=math.prod(grid.cells)).double()
        return cls(grid, mass.reshape(grid.cells) / len(tokens))

    @classmethod
    def mixture(cls, parts: Sequence[Density], weights: Sequence[float] | None = None) -> Density:
        """Return Σ_k w_k μ_k of densities on one grid; equal weights by default."""
        return cls(parts[0].grid, cls.slices(parts, weights).mass.sum(0))

    @classmethod
    def slices(cls, parts: Sequence[Density], weights: Sequence[float] | None = None) -> Density:
        """Return the masked measure with these densities as slices, in order; equal weights by default."""
        if not parts or any(part.grid != parts[0].grid or part.is_masked for part in parts):
            raise InputError("expected at least one density, all unmasked on one grid")
        share = (
            torch.full((len(parts),), 1 / len(parts), dtype=torch.float64)
            if weights is None
            else torch.tensor(list(weights), dtype=torch.float64)
        )
        if len(share) != len(parts) or not (share > 0).all() or abs(float(share.sum()) - 1) > 1e-9:
            raise InputError(f"expected {len(parts)} positive weights that add up to 1, got {share.tolist()}")
        share = share / share.sum()
        return cls(parts[0].grid, torch.stack([w * part.mass for w, part in zip(share, parts, strict=True)]))

    @property
    def is_masked(self) -> bool:
        """Whether the measure has slices."""
        return self.mass.dim() > self.grid.d

    @property
    def values(self) -> Tensor:
        """The density: mass per unit of volume."""
        return self.mass / math.prod(self.grid.widths)

    @property
    def mean(self) -> Tensor:
        """The mean (d,), over all slices."""
        return self._flat() @ self.grid.centres.flatten(0, -2)

    @property
    def covariance(self) -> Tensor:
        """The covariance (d, d) of atoms at the centres: without the h²/12 of mass spread over a cell."""
        centred = self.grid.centres.flatten(0, -2) - self.mean
        return (self._flat()[:, None] * centred).mT @ centred

    def slice(self, index: int) -> Density:
        """Return one slice of a masked measure, normalised to a probability."""
        if not self.is_masked:
            raise InputError("expected a masked density, got one without slices")
        return Density(self.grid, self.mass[index] / self.mass[index].sum())

    def sample(self, n: int, generator: torch.Generator) -> Tensor:
        """Draw n tokens (n, d) from an unmasked density: a cell by its mass, a point in it uniformly."""
        self._refuse_slices()
        cells = torch.multinomial(self.mass.flatten(), n, replacement=True, generator=generator)
        widths = torch.tensor(self.grid.widths, dtype=torch.float64)
        within = torch.rand(n, self.grid.d, dtype=torch.float64, generator=generator) - 0.5
        return self.grid.centres.flatten(0, -2)[cells] + widths * within

    def atoms(self, split: int = 1, least: float = 1e-12) -> TokenMeasure:
        """Return the measure as atoms, split^d of them in each cell; cells with mass up to `least` are left out."""
        self._refuse_slices()
        kept = self.mass.flatten() > least
        steps = (torch.arange(split, dtype=torch.float64) + 0.5) / split - 0.5
        widths = torch.tensor(self.grid.widths, dtype=torch.float64)
        within = widths * torch.cartesian_prod(*([steps] * self.grid.d)).reshape(-1, self.grid.d)
        points = (self.grid.centres.flatten(0, -2)[kept][:, None] + within).flatten(0, 1)
        masses = self.mass.flatten()[kept].repeat_interleave(len(within)) / len(within)
        return TokenMeasure(points, masses, normalise=True)

    def _refuse_slices(self) -> None:
        if self.is_masked:
            raise InputError("expected an unmasked density, got one with slices; .slice(index) returns one of them")

    def _flat(self) -> Tensor:
        mass = self.mass.sum(0) if self.is_masked else self.mass
        return mass.flatten()


def _outside(state: GaussianState, grid: Grid) -> float:
    """Return an upper bound on the mass outside the box: the sum of the tails of the marginals."""
    total = 0.0
    for index in range(grid.d):
        mean, spread = float(state.mean[index]), math.sqrt(2 * float(state.covariance[index, index]))
        total += (math.erfc((mean - grid.low[index]) / spread) + math.erfc((grid.high[index] - mean) / spread)) / 2
    return total
