"""Runs of declared flows with their records: particles, a Gaussian, or a density on a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention import Field
from howsmooth.dynamics.continuity import DensityFlow, density_flow
from howsmooth.dynamics.declaration import Attention, Example
from howsmooth.dynamics.example import attention_of, field_of, integrate_example, matrix, unmet_expectations
from howsmooth.dynamics.gaussian import GaussianState, blow_up_time
from howsmooth.dynamics.gaussian_flows import GaussianFlow, ParticleComparison, compare_particles, gaussian_flow
from howsmooth.dynamics.gaussian_rank import LimitingRank, limiting_rank
from howsmooth.dynamics.grid import Density, Grid
from howsmooth.dynamics.growth import perturbation_growth
from howsmooth.dynamics.instruments.records import trajectory_records
from howsmooth.dynamics.integration import integrate
from howsmooth.dynamics.mean_field import convergence_runs, summarise
from howsmooth.dynamics.trajectory import INTERRUPTED, Interrupted, Trajectory
from howsmooth.dynamics.velocity import Layer, Velocity
from howsmooth.errors import InputError, NotConverged


@dataclass(frozen=True, eq=False)
class ParticleRun:
    """A flow of particles.

    Attributes:
        declared: The declared flow.
        trajectory: The tokens along depth.
        field: The attention that moves them: one for all depths, or a list of layers.
    """

    declared: Example
    trajectory: Trajectory
    field: Field | Layer | list[Layer] = field(repr=False)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended the run."""
        return self.trajectory.status == INTERRUPTED

    @property
    def title(self) -> str:
        """Title of tables and figures."""
        return self.declared.title or self.declared.name

    @property
    def renormalised(self) -> bool:
        """Whether the trajectory is in renormalised coordinates."""
        return self.declared.flow.coordinates == "renormalised"

    @property
    def facts(self) -> dict[str, Any]:
        """The fields that all records of the run share."""
        declared = self.declared
        return {
            "example": declared.name,
            "kind": declared.attention.kind,
            "coordinates": declared.flow.coordinates,
            "sphere": declared.flow.sphere,
            "tol": declared.watch.tol,
            **self.trajectory.as_record(),
            "seed": declared.tokens.seed,
        }

    def depths(self) -> Iterator[dict[str, Any]]:
        """Yield what the instruments measure at each saved depth."""
        return trajectory_records(
            self.trajectory,
            self.field,
            tol=self.declared.watch.tol,
            renormalised=self.renormalised,
            lipschitz=self.declared.watch.lipschitz,
        )

    def growth(self, depths: int, layers: int) -> list[dict[str, Any]]:
        """Return the growth of a perturbation through `layers` residual layers, at `depths` depths."""
        if isinstance(self.field, list):  # no step may cross from one layer to the next
            layers = -(-layers // len(self.field)) * len(self.field)
        grown = perturbation_growth(
            Velocity(self.field, sphere=self.declared.flow.sphere),
            self.trajectory.tokens[0],
            self.trajectory.reached,
            steps=layers,
            depths=min(depths, layers),
        )
        return [growth.as_record() for growth in grown]

    def records(self, growth: int | None, layers: int) -> Iterator[dict[str, Any]]:
        """Yield a record for each depth, then one for each of `growth` depths at which growth is computed.

        Raises:
            KeyboardInterrupt: After the records of depths, if Ctrl-C ended the run.
        """
        facts = self.facts
        for measured in self.depths():
            yield {"record": "depth", **facts, **measured}
        if self.interrupted:
            raise KeyboardInterrupt
        for grown in [] if growth is None else self.growth(growth, layers):
            yield {"record": "growth", "example": self.declared.name, **grown}

    def caveats(self, records: Sequence[dict[str, Any]]) -> list[str]:
        """Return warnings: why the flow ended early, and which expectations it does not meet."""
        last, facts = [record for record in records if record["record"] == "depth"][-1], self.facts
        measured = {key: value for key, value in last.items() if key not in facts and key != "record"}
        ended_early = (
            [] if self.trajectory.status == "finished" else [f"{self.trajectory.ending}; {self.trajectory.remedy}"]
        )
        return [
            f"warning: {line}"
            for line in [
                *ended_early,
                *(
                    f"{line} (stated in {self.declared.name})"
                    for line in unmet_expectations(self.declared.expect, measured)
                ),
            ]
        ]

    def save(self, path: str | Path) -> None:
        """Write depths and tokens as safetensors."""
        from safetensors.torch import save_file

        facts = {key: str(value) for key, value in self.trajectory.as_record().items()} | {
            "example": self.declared.name,
            "coordinates": self.declared.flow.coordinates,
        }
        save_file({"times": self.trajectory.times, "tokens": self.trajectory.tokens.contiguous()}, path, metadata=facts)


def run_particles(
    declared: Example,
    progress: Callable[[float], None] | None = None,
    *,
    layers: Sequence[Layer] | None = None,
    x: Tensor | None = None,
) -> ParticleRun:
    """Integrate a declared flow of particles; after Ctrl-C the run has the trajectory up to then."""
    try:
        return ParticleRun(declared, *integrate_example(declared, progress=progress, layers=layers, x=x))
    except Interrupted as stopped:
        partial = stopped.partial
        return ParticleRun(declared, partial, attention_of(declared, partial.last.shape[1], layers))


@dataclass(frozen=True, eq=False)
class GaussianRun:
    """A Gaussian under a declared attention.

    Attributes:
        declared: The declared flow.
        field: Its attention.
        flow: The Gaussian along time.
        rank: The limiting rank of its covariance.
        closed_form: The blow-up time by a formula, ∞ if there is no blow-up; None where no formula is known.
        comparison: Particles compared with the flow, or None.
        seed: Seed of the particles.
    """

    declared: Example
    field: Field = field(repr=False)
    flow: GaussianFlow
    rank: LimitingRank
    closed_form: float | None
    comparison: ParticleComparison | None
    seed: int

    @property
    def title(self) -> str:
        """Title of tables and figures."""
        declared = self.declared
        return f"{declared.title or 'A Gaussian flow'}: {self.field.name} attention in dimension {declared.tokens.dim}"

    @property
    def tokens(self) -> Any:
        """The particles as an array (T, n, d), or None."""
        return None if self.comparison is None else self.comparison.tokens.numpy()

    def caveats(self) -> list[str]:
        """Return a warning if the flow ended early."""
        return [] if self.flow.status == "finished" else [f"{self.flow.ending}; {self.flow.remedy}"]

    def as_record(self) -> dict[str, Any]:
        """Return the run as plain values."""
        attention, d = self.declared.attention, self.declared.tokens.dim
        return {
            "record": "gaussian flow",
            "example": self.declared.name,
            "kind": attention.kind,
            "A": matrix(attention.A, d, "A").tolist(),
            "V": matrix(attention.V, d, "V").tolist(),
            "heads": len(attention.heads) or 1,
            "seed": self.seed,
            **self.flow.as_record(),
            "closed_form_blow_up": self.closed_form,
            "limiting_rank": self.rank.as_record(),
            "particles": None if self.comparison is None else self.comparison.as_record(),
        }


def run_gaussian(
    declared: Example,
    mean: Sequence[float] | None,
    covariance: Any,
    *,
    frames: int,
    rtol: float,
    max_steps: int,
    particles: int | None,
    seed: int,
    progress: Callable[[float, int], None] | None = None,
) -> GaussianRun:
    """Integrate N(mean, covariance) under a declared attention; the mean is 0 by default."""
    d = declared.tokens.dim
    start = GaussianState.of(mean or [0.0] * d, matrix(covariance, d, "--covariance"))
    gamma = field_of(declared.attention, d)
    flow = gaussian_flow(
        gamma, start, declared.flow.until, frames=frames, rtol=rtol, max_steps=max_steps, progress=progress
    )
    comparison = None if particles is None else compare_particles(flow, gamma, particles, seed=seed)
    exact = _closed_form(declared.attention, start)
    return GaussianRun(declared, gamma, flow, limiting_rank(flow), exact, comparison, seed)


def _closed_form(attention: Attention, start: GaussianState) -> float | None:
    """Return the blow-up time for softmax attention of one head with V = I; None for other attention."""
    eye = torch.eye(start.d, dtype=torch.float64)
    if attention.kind != "softmax" or attention.heads or not torch.equal(matrix(attention.V, start.d, "V"), eye):
        return None
    return blow_up_time(matrix(attention.A, start.d, "A"), start)


@dataclass(frozen=True, eq=False)
class DensityRun:
    """A density under a declared attention on a grid.

    Attributes:
        declared: The declared flow.
        field: Its attention.
        first: The density at time 0.
        flow: The density along time.
        start: "gaussian" or "bumps".
        seed: Seed of the bumps and of the particles.
        failure: Why the flow ended early, or None.
    """

    declared: Example
    field: Field
    first: Density
    flow: DensityFlow
    start: str
    seed: int
    failure: NotConverged | None

    @property
    def title(self) -> str:
        """Title of tables and figures."""
        times = f", {len(self.first.mass)} times" if self.first.is_masked else ""
        return f"{self.declared.title or 'A density'}: {self.field.name} attention{times}"

    def as_record(self) -> dict[str, Any]:
        """Return the run as plain values."""
        return {
            "record": "density flow",
            "example": self.declared.name,
            "kind": self.declared.attention.kind,
            "seed": self.seed,
            "start": self.start,
            **self.flow.as_record(),
        }

    def records(self, particles: Sequence[int] | None, repeats: int) -> Iterator[dict[str, Any]]:
        """Yield the record of the flow, one for each run of particles, and with two numbers of particles the rate.

        Raises:
            InputError: After the record of a flow that ended early.
        """
        yield self.as_record()
        if self.failure is not None:
            raise InputError(str(self.failure))
        if particles is None:
            return
        until, runs = self.declared.flow.until, []
        for run in convergence_runs(self.field, self.first, until, particles, repeats=repeats, seed=self.seed):
            runs.append(run)
            yield {"record": "particles", **run}
        if len(particles) > 1:
            found = summarise(self.field, self.first, until, self.seed, runs).as_record()
            yield {"record": "rate", **{key: value for key, value in found.items() if key != "runs"}}

    def particle_tokens(self, particles: Sequence[int] | None) -> Any:
        """Return particles[-1] particles at the times of the flow as an array (T, n, d), or None."""
        if particles is None or self.failure is not None or self.first.is_masked:
            return None
        x = self.first.sample(particles[-1], torch.Generator().manual_seed(self.seed))
        return integrate(self.field, x, self.flow.until, frames=self.flow.times.tolist()).tokens.numpy()


def run_density(
    declared: Example,
    *,
    start: str,
    slices: int | None,
    cells: int | None,
    extent: float,
    order: int,
    frames: int,
    seed: int,
    progress: Callable[[float], None] | None = None,
) -> DensityRun:
    """Solve the continuity equation for a declared attention; a flow that leaves its grid is kept up to then."""
    d = declared.tokens.dim
    if d > 2:
        raise InputError(f"expected dimension 1 or 2 for a grid, got {d}; use howsmooth flow particles")
    gamma, failure = field_of(declared.attention, d), None
    first = first_density(Grid.square(d, extent, cells or (256 if d == 1 else 64)), start, slices, seed)
    try:
        flow = density_flow(gamma, first, declared.flow.until, order=order, frames=frames, progress=progress)
    except NotConverged as error:
        flow, failure = error.partial, error
    return DensityRun(declared, gamma, first, flow, start, seed, failure)


def first_density(grid: Grid, start: str, slices: int | None, seed: int) -> Density:
    """Return a standard Gaussian ("gaussian") or three random bumps ("bumps"); with `slices`, one bump for each."""
    if start == "gaussian":
        return Density.gaussian(GaussianState.standard(grid.d), grid)
    generator = torch.Generator().manual_seed(seed)
    centres = 4 * torch.rand(slices or 3, grid.d, dtype=torch.float64, generator=generator) - 2
    eye = torch.eye(grid.d, dtype=torch.float64)
    bumps = [Density.gaussian(GaussianState(centre, 0.15 * eye), grid) for centre in centres]
    return Density.mixture(bumps) if slices is None else Density.slices(bumps)
