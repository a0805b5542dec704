"""Convergence of particles to their mean-field limit: the distance at time t as a function of their number n.

Three distances, each exact:

    coupled   (1/n Σ |x_i(t) − X_i(t)|²)^½ for Gaussian starts, with X_i the limit flow from the same start x_i(0). It
              is an upper bound on W₂ between the particles and the image of their start under the limit flow, and
              decays like n^{−½} in every dimension.
    W₂        between the particles and the solution of the continuity equation. The part due to sampling, the distance
              at t = 0, decays like n^{−½} in d = 1 (up to a logarithm in d = 2) and is recorded as `at_start`.
    d₂        the same for masked attention: W₂ slice by slice, in the mean square over times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsmooth.attention.fields.field import Field
from howsmooth.dynamics.continuity import density_flow
from howsmooth.dynamics.gaussian import GaussianState
from howsmooth.dynamics.gaussian_flows import gaussian_flow
from howsmooth.dynamics.grid import Density
from howsmooth.dynamics.integration import integrate
from howsmooth.errors import InputError
from howsmooth.transport.conditional import conditional_distance
from howsmooth.transport.distances import wasserstein
from howsmooth.transport.measures import TimedMeasure, TokenMeasure

_ATOMS_PER_CELL = 8  # of the limit in d = 1, so that the discretisation does not affect the distance


@dataclass(frozen=True)
class ConvergenceRate:
    """The law distance ≈ constant · n^exponent, fitted in logarithms.

    Attributes:
        exponent: Slope of log distance over log n.
        constant: The factor.
        exponent_error: One standard error of the exponent; NaN with two points.
    """

    exponent: float
    constant: float
    exponent_error: float

    def at(self, n: float) -> float:
        """Return constant · n^exponent."""
        return self.constant * n**self.exponent

    def as_record(self) -> dict[str, Any]:
        """Return all attributes as plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, eq=False)
class MeanFieldConvergence:
    """Distances of particles to their mean-field limit, and the rate at which they decay with n.

    Attributes:
        field: Name of the attention field.
        distance: "coupled", "W₂" or "d₂".
        d: Dimension of the tokens.
        slices: Number of slices of a masked measure, or None.
        until: The time of the comparison.
        seed: Seed of the draws.
        records: One for each run, with `n`, `repeat`, `at_start` and `distance`.
        rate: The fitted rate.
    """

    field: str
    distance: str
    d: int
    slices: int | None
    until: float
    seed: int
    records: tuple[dict[str, Any], ...]
    rate: ConvergenceRate

    def as_record(self) -> dict[str, Any]:
        """Return all attributes as plain values."""
        return {
            "field": self.field,
            "distance": self.distance,
            "d": self.d,
            "slices": self.slices,
            "until": self.until,
            "seed": self.seed,
            "rate": self.rate.as_record(),
            "runs": list(self.records),
        }


def mean_field_convergence(
    field: Field,
    start: GaussianState | Density,
    until: float,
    counts: Sequence[int],
    *,
    repeats: int = 4,
    seed: int = 0,
    rtol: float = 1e-6,
    progress: Callable[[dict[str, Any]], None] | None = None,
) -> MeanFieldConvergence:
    """Measure the distances of n particles to their limit at time `until`, and fit their rate in n.

    Particles from a Gaussian are compared with its Gaussian flow (coupled), particles from a density with the
    continuity equation (W₂), and particles from a density with slices with the masked equation (d₂).

    Args:
        field: Attention as a field on R^d.
        start: The measure at time 0.
        until: The time of the comparison.
        counts: Numbers of particles, at least two different ones; with slices, of equal mass, multiples of their
            number.
        repeats: Number of draws for each count.
        seed: Seed of the draws.
        rtol: Relative tolerance of the particles' integration.
        progress: Called with each record as soon as it is computed.

    Returns:
        The distances of all runs, and the fitted rate.

    Raises:
        InputError: If an argument is not valid, or particles or limit blow up before `until`.

    Example:
        >>> from howsmooth.attention.fields import LinearField
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> found = mean_field_convergence(LinearField(-one, one), GaussianState.standard(1), 0.5, (100, 1000, 10000))
        >>> -0.7 < found.rate.exponent < -0.3
        True
    """
    records = []
    if len(set(counts)) < 2:
        raise InputError(f"expected at least two numbers of tokens, got {list(counts)}")
    for record in convergence_runs(field, start, until, counts, repeats=repeats, seed=seed, rtol=rtol):
        records.append(record)
        if progress is not None:
            progress(record)
    return summarise(field, start, until, seed, records)


def convergence_runs(
    field: Field,
    start: GaussianState | Density,
    until: float,
    counts: Sequence[int],
    *,
    repeats: int = 4,
    seed: int = 0,
    rtol: float = 1e-6,
    only: Container[int] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the records of `mean_field_convergence`, one for each run, or for the runs with a number in `only`."""
    _check(field, start, counts, repeats)
    compare = _gaussian(field, start, until) if isinstance(start, GaussianState) else _density(field, start, until)
    generator = torch.Generator().manual_seed(seed)
    return _runs(field, compare, until, counts, repeats, generator, rtol, only)


def summarise(
    field: Field, start: GaussianState | Density, until: float, seed: int, records: Sequence[dict[str, Any]]
) -> MeanFieldConvergence:
    """Fit the rate to the records of `convergence_runs`."""
    slices = len(start.mass) if isinstance(start, Density) and start.is_masked else None
    name = "coupled" if isinstance(start, GaussianState) else "W₂" if slices is None else "d₂"
    rate = fit_convergence_rate([r["n"] for r in records], [r["distance"] for r in records])
    return MeanFieldConvergence(field.name, name, field.d, slices, float(until), seed, tuple(records), rate)


def fit_convergence_rate(ns: Sequence[int], distances: Sequence[float]) -> ConvergenceRate:
    """Fit a line through (log n, log distance) by least squares.

    Example:
        >>> round(fit_convergence_rate([10, 1000], [1.0, 0.1]).exponent, 12)
        -0.5
    """
    if len(set(ns)) < 2 or not all(0 < x < math.inf for x in distances):
        raise InputError(
            f"expected positive distances at two different n or more, got {list(distances)[:4]} at {sorted(set(ns))}"
        )
    # Not `howsmooth.fits.fit_law`: that is a robust fit (Student's t) that compares several laws and needs four
    # different n. Rates here come from as few as two n, theory gives the law, and a standard error is wanted.
    x, y = np.log(np.asarray(ns, float)), np.log(np.asarray(distances, float))
    u = x - x.mean()
    exponent = float(u @ y / (u @ u))
    misfit = y - y.mean() - exponent * u
    error = math.sqrt(float(misfit @ misfit) / (len(x) - 2) / float(u @ u)) if len(x) > 2 else math.nan
    return ConvergenceRate(exponent, float(np.exp(y.mean() - exponent * x.mean())), error)


@dataclass(frozen=True, eq=False)
class _Comparison:
    """How to draw n tokens with their times (or None), and the distances of a run at the start and at the end."""

    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor | None]]
    distances: Callable[[Tensor, Tensor], tuple[float | None, float]]


def _runs(
    field: Field,
    compare: _Comparison,
    until: float,
    counts: Sequence[int],
    repeats: int,
    generator: torch.Generator,
    rtol: float,
    only: Container[int] | None,
) -> Iterator[dict[str, Any]]:
    for number, (n, repeat) in enumerate(product(counts, range(repeats))):
        x, times = compare.draw(n, generator)  # also where no run is wanted: the draws share a generator
        if only is not None and number not in only:
            continue
        velocity = [lambda y, t=times: field(y, y, times=t, source_times=t)]
        flow = integrate(velocity, x, until, rtol=rtol, atol=1e-3 * rtol, frames=2)
        if flow.status != "finished":
            raise InputError(
                f"expected particles that reach t = {until:g}, got a flow that {flow.ending}; {flow.remedy}"
            )
        before, after = compare.distances(x, flow.last)
        yield {
            "n": n,
            "repeat": repeat,
            "at_start": before,
            "distance": after,
            "steps": flow.steps,
            "seconds": flow.seconds,
        }


def _gaussian(field: Field, start: GaussianState, until: float) -> _Comparison:
    limit = gaussian_flow(field, start, until, frames=2)
    if limit.status != "finished":
        raise InputError(f"expected a Gaussian flow up to t = {until:g}, got one that {limit.ending}; {limit.remedy}")

    def distances(x: Tensor, y: Tensor) -> tuple[None, float]:
        return None, float((y - limit.push(x)).square().sum(-1).mean().sqrt())

    return _Comparison(lambda n, generator: (start.sample(n, generator), None), distances)


def _density(field: Field, start: Density, until: float) -> _Comparison:
    last = density_flow(field, start, until, frames=2).last
    split = _ATOMS_PER_CELL if start.grid.d == 1 else 1
    if start.is_masked:
        return _masked(start, last, split)
    first_atoms, last_atoms = start.atoms(split), last.atoms(split)

    def distances(x: Tensor, y: Tensor) -> tuple[float, float]:
        return (
            wasserstein(TokenMeasure(x), first_atoms, certify=False).value,
            wasserstein(TokenMeasure(y), last_atoms, certify=False).value,
        )

    return _Comparison(lambda n, generator: (start.sample(n, generator), None), distances)


def _masked(start: Density, last: Density, split: int) -> _Comparison:
    count = len(start.mass)
    slice_times = torch.arange(1, count + 1, dtype=torch.float64) / count
    first_atoms, last_atoms = (
        _timed(slice_times, [one.slice(k).atoms(split) for k in range(count)]) for one in (start, last)
    )

    def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.cat([start.slice(k).sample(n // count, generator) for k in range(count)])
        return tokens, slice_times.repeat_interleave(n // count)

    def distances(x: Tensor, y: Tensor) -> tuple[float, float]:
        times = slice_times.repeat_interleave(len(x) // count)
        return (
            conditional_distance(TimedMeasure(times, x), first_atoms).value,
            conditional_distance(TimedMeasure(times, y), last_atoms).value,
        )

    return _Comparison(draw, distances)


def _timed(slice_times: Tensor, parts: list[TokenMeasure]) -> TimedMeasure:
    times = torch.cat([t.expand(part.n) for t, part in zip(slice_times, parts, strict=True)])
    logs = torch.cat([part.log_weights - math.log(len(parts)) for part in parts])
    return TimedMeasure(times, torch.cat([part.points for part in parts]), log_weights=logs)


def _check(field: Field, start: GaussianState | Density, counts: Sequence[int], repeats: int) -> None:
    if not isinstance(start, (GaussianState, Density)):
        raise InputError(f"expected a GaussianState or a Density to start from, got {type(start).__name__}")
    if not counts or min(counts) < 1:
        raise InputError(f"expected numbers of tokens of at least 1, got {list(counts)}")
    if isinstance(repeats, bool) or not isinstance(repeats, int) or repeats < 1:
        raise InputError(f"expected repeats as a whole number of at least 1, got {repeats!r}")
    if not isinstance(field, Field):
        raise InputError(f"expected a Field, got {type(field).__name__}")
    if isinstance(start, GaussianState) or not start.is_masked:
        return
    slices, shares = len(start.mass), start.mass.flatten(1).sum(1)
    if float(shares.max() - shares.min()) > 1e-9:
        raise InputError(f"expected slices of equal masses, got {shares.tolist()}")
    for n in counts:
        if n % slices:
            raise InputError(f"expected numbers of tokens that are multiples of the {slices} slices, got {n}")
