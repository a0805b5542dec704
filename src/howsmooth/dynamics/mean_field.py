"""How fast particles come to their mean-field limit: the distance at depth t against the number n of tokens.

Three distances, each exact:

    coupled   (1/n Σ |x_i(t) − X_i(t)|²)^½, X_i the limit flow from the same start x_i(0), for Gaussian starts: an upper
              bound on W₂ between the tokens and the limit's image of their start. It is n^{−½} in every dimension.
    W₂        between the tokens and the density that the continuity equation gives. What it has of sampling alone, the
              distance at t = 0, goes like n^{−½} in d = 1 (n^{−½} up to a logarithm in d = 2) and stands beside it.
    d₂        the same for masked attention: W₂ slice by slice, in the mean square over times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsmooth.attention.fields import Field
from howsmooth.dynamics.continuity import density_flow
from howsmooth.dynamics.gaussian import GaussianState
from howsmooth.dynamics.gaussian_flow import gaussian_flow
from howsmooth.dynamics.grid import Density
from howsmooth.dynamics.integration import integrate
from howsmooth.errors import InputError
from howsmooth.transport import TimedMeasure, TokenMeasure, conditional_distance, wasserstein

_ATOMS = 8  # of the limit in each cell, d = 1: the cells themselves must not be seen


@dataclass(frozen=True)
class Rate:
    """distance ≈ constant · n^exponent, fitted in logarithms; the error is one standard error (NaN with two points)."""

    exponent: float
    constant: float
    exponent_error: float

    def at(self, n: float) -> float:
        return self.constant * n**self.exponent

    def as_record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, eq=False)
class MeanFieldConvergence:
    """One record per run, {"n", "repeat", "at_start", "distance"}, and the rate of the distances."""

    field: str
    distance: str  # "coupled", "W₂" or "d₂"
    d: int
    slices: int | None
    until: float
    seed: int
    records: tuple[dict[str, Any], ...]
    rate: Rate

    def as_record(self) -> dict[str, Any]:
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
    step: Callable[[dict[str, Any]], None] | None = None,
) -> MeanFieldConvergence:
    """Distances of n particles to their limit at time `until`, for each n in `counts`, `repeats` times each.

    A Gaussian start is compared with its Gaussian flow (coupled), a density with the continuity equation (W₂), a
    density with slices with the masked one (d₂); n must then be a multiple of the number of slices, which must have
    equal masses. `step` is called with each record the moment it is there.

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
        if step is not None:
            step(record)
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
) -> Iterator[dict[str, Any]]:
    """The runs of `mean_field_convergence`, one after the other."""
    _check(field, start, counts, repeats)
    compare = _gaussian(field, start, until) if isinstance(start, GaussianState) else _density(field, start, until)
    generator = torch.Generator().manual_seed(seed)
    return _runs(field, compare, until, counts, repeats, generator, rtol)


def summarise(
    field: Field, start: GaussianState | Density, until: float, seed: int, records: Sequence[dict[str, Any]]
) -> MeanFieldConvergence:
    """What the runs say together: the rate of their distances."""
    slices = len(start.mass) if isinstance(start, Density) and start.is_masked else None
    name = "coupled" if isinstance(start, GaussianState) else "W₂" if slices is None else "d₂"
    rate = fit_rate([r["n"] for r in records], [r["distance"] for r in records])
    return MeanFieldConvergence(field.name, name, field.d, slices, float(until), seed, tuple(records), rate)


def fit_rate(ns: Sequence[int], distances: Sequence[float]) -> Rate:
    """The least-squares line through (log n, log distance).

    >>> round(fit_rate([10, 1000], [1.0, 0.1]).exponent, 12)
    -0.5
    """
    if len(set(ns)) < 2 or not all(0 < x < math.inf for x in distances):
        raise InputError(
            f"expected positive distances at two different n or more, got {list(distances)[:4]} at {sorted(set(ns))}"
        )
    x, y = np.log(np.asarray(ns, float)), np.log(np.asarray(distances, float))
    u = x - x.mean()
    exponent = float(u @ y / (u @ u))
    rest = y - y.mean() - exponent * u
    error = math.sqrt(float(rest @ rest) / (len(x) - 2) / float(u @ u)) if len(x) > 2 else math.nan
    return Rate(exponent, float(np.exp(y.mean() - exponent * x.mean())), error)


@dataclass(frozen=True, eq=False)
class _Comparison:
    """How to draw n tokens with their times (or None), and the distances (at the start, at the end) of a run."""

    draw: Callable[[int, torch.Generator], tuple[Tensor, Tensor | None]]
    distances: Callable[[Tensor, Tensor, Tensor | None], tuple[float | None, float]]


def _runs(
    field: Field,
    compare: _Comparison,
    until: float,
    counts: Sequence[int],
    repeats: int,
    generator: torch.Generator,
    rtol: float,
) -> Iterator[dict[str, Any]]:
    for n in counts:
        for repeat in range(repeats):
            x, times = compare.draw(n, generator)
            velocity = [lambda y, t=times: field(y, y, times=t, source_times=t)]
            flow = integrate(velocity, x, until, rtol=rtol, atol=1e-3 * rtol, saves=2)
            if flow.status != "finished":
                raise InputError(
                    f"expected particles that can be followed to t = {until:g}, got a flow that "
                    f"{flow.ending}; {flow.remedy}"
                )
            before, after = compare.distances(x, flow.last, times)
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

    def distances(x: Tensor, y: Tensor, times: None) -> tuple[None, float]:
        return None, float((y - limit.push(x)).square().sum(-1).mean().sqrt())

    return _Comparison(lambda n, generator: (start.sample(n, generator), None), distances)


def _density(field: Field, start: Density, until: float) -> _Comparison:
    last = density_flow(field, start, until, frames=2).last
    split = _ATOMS if start.grid.d == 1 else 1
    if not start.is_masked:
        limits = start.atoms(split), last.atoms(split)
        return _Comparison(
            lambda n, generator: (start.sample(n, generator), None),
            lambda x, y, times: tuple(
                wasserstein(TokenMeasure(t), limit, certify=False).value
                for t, limit in zip((x, y), limits, strict=True)
            ),
        )
    count = len(start.mass)
    moments = torch.arange(1, count + 1, dtype=torch.float64) / count
    limits = tuple(_timed(moments, [one.slice(k).atoms(split) for k in range(count)]) for one in (start, last))

    def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        tokens = torch.cat([start.slice(k).sample(n // count, generator) for k in range(count)])
        return tokens, moments.repeat_interleave(n // count)

    return _Comparison(
        draw,
        lambda x, y, times: tuple(
            conditional_distance(TimedMeasure(times, t), limit).value for t, limit in zip((x, y), limits, strict=True)
        ),
    )


def _timed(moments: Tensor, parts: list[TokenMeasure]) -> TimedMeasure:
    times = torch.cat([t.expand(part.n) for t, part in zip(moments, parts, strict=True)])
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
