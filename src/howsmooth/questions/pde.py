"""A density under attention on a grid, and the rate at which particles converge to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from howsmooth.dynamics.declaration import Example
from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import numbers, option, whole
from howsmooth.questions.flows import POSITIVE, AttentionSpec, check_attention, digest, positions, progress_text
from howsmooth.questions.question import Fields, Output, Place, Question
from howsmooth.records.arrays import evenly_spaced, pack
from howsmooth.records.schema import Count, Length, Packed, Record

if TYPE_CHECKING:
    from howsmooth.dynamics.continuity import DensityFlow
    from howsmooth.dynamics.grid import Density, Grid
    from howsmooth.questions.work import Work

_MAX_DENSITY = 100_000  # bytes of the densities in a record
_MAX_DENSITY_FRAMES = 41


class PdeSpec(AttentionSpec):
    """Which attention, from which density, on which grid, compared with how many particles."""

    options: ClassVar[tuple[str, ...]] = (
        *AttentionSpec.attention_options,
        "start",
        "slices",
        "cells",
        "extent",
        "order",
        "frames",
        "particles",
        "repeats",
    )
    varied: ClassVar[tuple[str, ...]] = ("particles", "repeats")
    default_dim: ClassVar[int] = 1

    question: str = "pde"
    dim: Annotated[
        int | None, whole(1, 2), option("Dimension of tokens.  [default: the file's, or 1]", metavar="NUMBER")
    ] = None
    start: Annotated[
        Literal["gaussian", "bumps"],
        option("Initial density: a standard Gaussian, or three bumps at random positions (--seed)."),
    ] = "bumps"
    slices: Annotated[
        int | None,
        whole(2),
        option(
            "Number of slices of masked attention: one bump for each time; a slice attends to those up to its own "
            "time.",
            metavar="COUNT",
        ),
    ] = None
    cells: Annotated[
        int | None,
        whole(4),
        option("Cells of the grid along each axis.  [default: 256, or 64 in dimension 2]", metavar="COUNT"),
    ] = None
    extent: Annotated[
        float, POSITIVE, option("Half the width of the domain: [−extent, extent] along each axis.", metavar="NUMBER")
    ] = 8.0
    order: Annotated[Literal[1, 2], whole(1, 2), option("Order of the scheme.")] = 2
    frames: Annotated[int, whole(2), option("Number of depths to keep.", metavar="COUNT")] = 41
    particles: Annotated[
        tuple[int, ...] | None,
        numbers("64,256,1024", integer=True, minimum=2),
        option(
            "Number of particles: compare this many with the density; two numbers or more give the rate in W₂ (d₂ "
            "with --slices).",
            metavar="64,256,1024",
        ),
    ] = None
    repeats: Annotated[int, whole(), option("Draws for each number of particles.", metavar="COUNT")] = 4

    @model_validator(mode="after")
    def _check_combination(self) -> PdeSpec:
        if self.slices is None:
            return self
        if self.start == "gaussian":
            raise ValueError("expected --start bumps with --slices, got gaussian, which makes all slices equal")
        if any(count % self.slices for count in self.particles or ()):
            raise ValueError(
                f"expected --particles in multiples of the {self.slices} slices, got "
                f"{','.join(map(str, self.particles or ()))}; change one of them"
            )
        return self

    def _declare(self) -> Example:
        found = super()._declare()
        if found.tokens.dim > 2:
            raise InputError(
                f"expected dimension 1 or 2 for a grid, got {found.tokens.dim}; use howsmooth flow particles"
            )
        return found


class DensityRecord(Record, kind="density flow"):
    """A density along time."""

    flow: str
    example: str
    title: str
    attention: str
    status: str
    order: Count
    steps: Count
    mass_error: float
    leaked: float
    seconds: float
    d: Annotated[int, Field(ge=1, le=2)]
    low: list[float]
    high: list[float]
    cells: list[Length]
    slices: Count | None
    times: Annotated[list[float], Field(min_length=1)]
    means: list[list[float]]
    covariances: list[list[list[float]]]
    frames: list[Count]  # indices of the times of `densities`
    densities: Packed
    failure: str | None = None


class ComparisonRecord(Record, kind="particle comparison"):
    """The distance of one draw of particles to the density at the final time."""

    flow: str
    title: str
    n: Length
    repeat: Count
    at_start: float | None
    distance: float
    slices: Count | None
    positions: Packed | None = None


class RateRecord(Record, kind="rate"):
    """The rate at which particles converge to the density."""

    flow: str
    title: str
    distance: str
    until: float
    rate: dict[str, Any]


def grid(spec: PdeSpec) -> Iterator[dict[str, Any]]:
    """Yield the density, each draw of particles, and the rate."""
    yield {}
    draws = {"particles": spec.particles, "repeats": spec.repeats}
    for run in range(spec.repeats * len(spec.particles or ())):
        yield {"run": run, **draws}
    if len(spec.particles or ()) > 1:
        yield {"rate": True, **draws}


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Solve the continuity equation, then draw particles and compare them with it.

    Raises:
        InputError: After the record of a flow that ended early.
    """
    from howsmooth.dynamics.continuity import density_flow
    from howsmooth.dynamics.example import field_of
    from howsmooth.dynamics.grid import Grid
    from howsmooth.dynamics.mean_field import convergence_runs, summarise
    from howsmooth.errors import NotConverged

    spec, declared = work.spec, work.spec.declaration
    d, until = declared.tokens.dim, declared.flow.until
    field = field_of(declared.attention, d)
    first = first_density(
        Grid.square(d, spec.extent, spec.cells or (256 if d == 1 else 64)), spec.start, spec.slices, spec.seed
    )
    times = f", {spec.slices} times" if first.is_masked else ""
    shared = {
        **work.fields,
        "flow": digest(spec.determining()),
        "example": declared.name,
        "title": f"{declared.title or 'A density'}: {field.name} attention{times}",
    }
    whole_flow = next((place for place in places if not place.at), None)
    runs = {place.at["run"]: place for place in places if "run" in place.at}
    rate = next((place for place in places if "rate" in place.at), None)
    if whole_flow is not None:
        failure = None
        try:
            flow = density_flow(
                field,
                first,
                until,
                order=spec.order,
                frames=spec.frames,
                progress=lambda t: work.notify({"t": t, "until": until}),
            )
        except NotConverged as error:
            flow, failure = error.partial, str(error)
        yield (
            whole_flow,
            {
                **shared,
                "attention": declared.attention.name,
                "seed": spec.seed,
                "start": spec.start,
                **density_fields(flow),
                "failure": failure,
            },
        )
        if failure is not None:
            raise InputError(failure)
    if not runs and rate is None:
        return
    found = []
    wanted = None if rate is not None else runs
    numbers_of_runs = range(spec.repeats * len(spec.particles)) if wanted is None else sorted(runs)
    compared = convergence_runs(field, first, until, spec.particles, repeats=spec.repeats, seed=spec.seed, only=wanted)
    for number, run in zip(numbers_of_runs, compared, strict=True):
        found.append(run)
        if number in runs:
            drawn = {} if number else {"positions": _positions(spec, field, first)}
            yield runs[number], {**shared, "kind": ComparisonRecord.kind_name, "slices": spec.slices, **run, **drawn}
    if rate is not None:
        summary = summarise(field, first, until, spec.seed, found).as_record()
        yield (
            rate,
            {**shared, "kind": RateRecord.kind_name, **{key: value for key, value in summary.items() if key != "runs"}},
        )


def first_density(grid: Grid, start: str, slices: int | None, seed: int) -> Density:
    """Return a standard Gaussian ("gaussian") or three random bumps ("bumps"); with `slices`, one bump for each."""
    import torch

    from howsmooth.dynamics.gaussian import GaussianState
    from howsmooth.dynamics.grid import Density

    if start == "gaussian":
        return Density.gaussian(GaussianState.standard(grid.d), grid)
    generator = torch.Generator().manual_seed(seed)
    centres = 4 * torch.rand(slices or 3, grid.d, dtype=torch.float64, generator=generator) - 2
    eye = torch.eye(grid.d, dtype=torch.float64)
    bumps = [Density.gaussian(GaussianState(centre, 0.15 * eye), grid) for centre in centres]
    return Density.mixture(bumps) if slices is None else Density.slices(bumps)


def density_fields(flow: DensityFlow) -> Fields:
    """Return the fields of a record that describe a flow, with as many of its densities as fit."""
    values, most = flow.densities.numpy(), _MAX_DENSITY_FRAMES
    while True:
        frames = evenly_spaced(len(values), most)
        packed = pack(values[frames], bits=16 if flow.grid.d == 1 else 8)
        if len(packed["data"]) <= _MAX_DENSITY or len(frames) <= 2:
            return {**flow.as_record(), "frames": frames, "densities": packed}
        most = max(2, min(len(frames) - 1, len(frames) * _MAX_DENSITY // len(packed["data"])))


def _positions(spec: PdeSpec, field: Any, first: Density) -> dict[str, Any] | None:
    """Return particles from the density at its saved times, for the figure; None for a masked one."""
    import torch

    from howsmooth.dynamics.integration import integrate

    if first.is_masked or spec.particles is None:
        return None
    times = torch.linspace(0, spec.declaration.flow.until, spec.frames, dtype=torch.float64).tolist()
    x = first.sample(spec.particles[-1], torch.Generator().manual_seed(spec.seed))
    return positions(integrate(field, x, times[-1], frames=times).tokens)


def check_rate(spec: PdeSpec) -> None:
    """Raise InputError for a spec without a rate."""
    if len(spec.particles or ()) < 2:
        raise InputError(
            "expected --particles with two numbers or more for --plot-rate, got "
            + ("none" if spec.particles is None else str(spec.particles[0]))
        )


QUESTION = Question(
    spec=PdeSpec,
    records=(DensityRecord, ComparisonRecord, RateRecord),
    answer=answer,
    tables=deferred("howsmooth.report.flow_tables:density_tables"),
    charts=deferred("howsmooth.report.density_charts:density_picture"),
    plots="the densities",
    about="Integrate a density under ∂μ/∂t + div(μ Γ) = 0 on a grid; the scheme conserves mass and positivity.\n\n"
    "    EXAMPLE is a TOML file or an example of `flow particles`, whose attention is used (in the coordinates x); "
    "by default A = V = I.",
    grid=grid,
    together=(),
    check=check_attention,
    caveats=lambda records: (),
    describe=progress_text,
    outputs={
        "--plot-rate": Output(
            "A figure of the distances between particles and density.",
            "howsmooth.report.density_charts:rate_picture",
            check=check_rate,
        ),
        "--animate": Output("An animation (gif): the densities.", "howsmooth.report.density_charts:density_frames"),
    },
)
