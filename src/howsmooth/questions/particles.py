"""Tokens as particles under attention: which clusters form along depth, and how much a perturbation grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from howsmooth.dynamics.declaration import EXAMPLE_NAMES, SOLVERS, AttentionName, Example, read_example
from howsmooth.dynamics.overrides import override_example
from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import StrictModel, number, option, whole
from howsmooth.questions.flows import POSITIVE, TensorFile, digest, example_path, of_kind, progress_text
from howsmooth.questions.question import Fields, Output, Place, Question
from howsmooth.questions.spec import Index, Spec
from howsmooth.records.arrays import rounded
from howsmooth.records.schema import Count, Length, Record

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.dynamics.trajectory import Trajectory
    from howsmooth.dynamics.velocity import Layer
    from howsmooth.questions.work import Work

MAX_TOKENS = 600  # tokens that a figure shows: with more, every k-th
# The options of every flow of particles, in the order of the help.
FLOW_OPTIONS = (
    "sphere",
    "until",
    "solver",
    "steps",
    "rtol",
    "noise",
    "frames",
    "together",
    "lipschitz",
    "growth",
    "residual_layers",
    "artefacts",
)


class FlowFields(StrictModel):
    """The options of every flow of particles: how it is integrated, and what is measured along it."""

    sphere: Annotated[bool | None, option("Whether tokens stay on the unit sphere: layer normalisation.")] = None
    until: Annotated[
        float | None,
        POSITIVE,
        option("Final depth; depth is the time of the flow.  [default: the file's]", metavar="DEPTH"),
    ] = None
    solver: Annotated[str | None, option(f"Integrator: {', '.join(SOLVERS)}.", metavar="NAME")] = None
    steps: Annotated[
        int | None, whole(), option("Steps of rk4, or layers of residual.", metavar="COUNT", flag="--solver-steps")
    ] = None
    rtol: Annotated[
        float | None, POSITIVE, option("Relative tolerance of the integrator.  [default: the file's]", metavar="NUMBER")
    ] = None
    noise: Annotated[
        float | None, number(0), option("Size of Brownian noise; with --solver residual.", metavar="NUMBER")
    ] = None
    frames: Annotated[
        int | None, whole(2), option("Number of depths to keep.  [default: the file's]", metavar="COUNT")
    ] = None
    together: Annotated[
        float | None,
        POSITIVE,
        option("Tokens closer than this form a cluster.  [default: the file's]", metavar="DISTANCE"),
    ] = None
    lipschitz: Annotated[bool, option("Also measure the local Lipschitz constant of Γ at each depth.")] = False
    growth: Annotated[
        int | None,
        whole(),
        option(
            "Also measure the growth of perturbations at this many depths, through residual layers "
            "(--residual-layers).",
            metavar="DEPTHS",
        ),
    ] = None
    residual_layers: Annotated[int, whole(), option("Residual layers for --growth.", metavar="COUNT")] = 128
    artefacts: TensorFile = None

    def override(self, declared: Example) -> Example:
        """Return a declared flow with the options in place of its values.

        Raises:
            InputError: They do not fit together.
        """
        changes = {name: getattr(self, name) for name in type(self).model_fields}
        found = override_example(declared, {**changes, "lipschitz": self.lipschitz or None})
        if self.growth is not None and found.flow.noise:
            raise InputError(
                "expected --growth without noise, got both: growth is measured through deterministic layers; leave "
                "one out"
            )
        return found

    def places_of_flow(self, frames: int, layers: int = 1) -> Iterator[dict[str, Any]]:
        """Yield each saved depth, and each depth at which growth is measured, of a flow through so many layers."""
        for frame in range(frames):
            yield {"frame": frame}
        steps = -(-self.residual_layers // layers) * layers  # no step may cross from one layer to the next
        depths = min(self.growth or 0, steps)
        for index in range(depths):
            yield {"growth": index, "depths": depths, "steps": steps}


_FileSeed = Annotated[
    Index | None, option("Seed of everything that is drawn.  [default: the file's]", metavar="NUMBER", lt=2**63)
]


class ParticlesSpec(FlowFields, Spec):
    """Which tokens, under which attention, for how long."""

    argument: ClassVar[str | None] = "example"
    options: ClassVar[tuple[str, ...]] = (
        "particles",
        "dim",
        "size",
        "seed",
        "attention",
        "causal",
        "coordinates",
        *FLOW_OPTIONS,
    )

    question: str = "particles"
    example: str | None = None
    particles: Annotated[
        int | None,
        whole(),
        option("Number of particles: tokens of the example.  [default: the file's]", metavar="COUNT"),
    ] = None
    dim: Annotated[int | None, whole(), option("Dimension of tokens.  [default: the file's]", metavar="NUMBER")] = None
    size: Annotated[float | None, POSITIVE, option("Spread of the initial tokens.", metavar="NUMBER")] = None
    seed: _FileSeed = None  # type: ignore[assignment]
    attention: Annotated[AttentionName | None, option("Which attention.  [default: the file's]")] = None
    causal: Annotated[bool | None, option("Whether attention is causal.")] = None
    coordinates: Annotated[
        Literal["tokens", "renormalised"] | None, option("Coordinates of the flow: x, or z with x = exp(tV) z.")
    ] = None
    varied: ClassVar[tuple[str, ...]] = ("growth", "residual_layers")

    @cached_property
    def declaration(self) -> Example:
        """The flow: that of the example or file, with the options in place of its values."""
        example = self.example or EXAMPLE_NAMES[0]
        return self.override(read_example(example_path(self, example)))

    def determining(self) -> dict[str, Any]:
        """Return the declared flow: it has all that determines the numbers."""
        return {"declared": self.declaration.model_dump(mode="json")}


class ParticlesRecord(Record, kind="particles"):
    """The tokens at one depth: what all instruments measure, and coordinates for figures."""

    flow: str
    example: str
    title: str
    ending: str
    remedy: str
    coordinates: str
    n: Length
    d: Length
    tol: float
    solver: str
    steps: Count
    evaluations: Count
    seconds: float
    t: float
    diameter: float
    clusters: Count | None
    vertices: Count | None
    hyperplanes: Count | None
    leading_clusters: Count | None
    leading_vertices: Count | None
    rank: Count | None
    undecided: float | None
    w2_to_last: float | None
    log_energy: float | None
    local: float | None
    plane: list[list[float]]
    space: list[list[float]] | None
    unmet: list[str] = []
    about: str = ""  # this and the following in the first record of a flow
    axes: list[str] | None = None
    space_axes: list[str] | None = None
    labels: list[Count] | None = None


class GrowthRecord(Record, kind="perturbation growth"):
    """The growth of a perturbation from the first tokens to one depth."""

    flow: str
    example: str
    coordinates: str
    depth: float
    maps: Count
    value: float
    lower: float
    upper: float | None
    confidence: float


def grid(spec: ParticlesSpec) -> Iterator[dict[str, Any]]:
    """Yield each depth of the flow."""
    yield from spec.places_of_flow(spec.declaration.flow.frames)


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Integrate the declared tokens."""
    yield from follow(work, places, work.spec.declaration, work.fields)


def follow(
    work: Work,
    places: Sequence[Place],
    declared: Example,
    fields: Fields,
    layers: Sequence[Layer] | None = None,
    x: Tensor | None = None,
) -> Iterator[tuple[Place, Fields]]:
    """Integrate tokens, and yield what the instruments measure at each depth, then the growth of perturbations.

    An interrupted flow has records of its own: they answer no place, and are not used when the command is repeated.

    Args:
        work: The work, for its spec.
        places: The depths.
        declared: The flow.
        fields: Fields that all records share; those of a model tell one flow from another.
        layers: Replace the declared attention.
        x: Replaces the declared tokens, (n, d).

    Raises:
        KeyboardInterrupt: After the records of depths, if Ctrl-C ended the flow.
    """
    from howsmooth.dynamics.example import attention_of, integrate_example, unmet_expectations
    from howsmooth.dynamics.growth import perturbation_growth
    from howsmooth.dynamics.instruments.records import trajectory_records
    from howsmooth.dynamics.trajectory import Interrupted
    from howsmooth.dynamics.velocity import Velocity

    spec, until = work.spec, declared.flow.until
    frames = {place.at["frame"]: place for place in places if "frame" in place.at}
    grown = {place.at["growth"]: place for place in places if "growth" in place.at}
    interrupted = False
    try:
        trajectory, field = integrate_example(
            declared, lambda t: work.notify({"t": t, "until": until}), layers=layers, x=x
        )
    except Interrupted as stopped:
        trajectory, interrupted = stopped.partial, True
        field = attention_of(declared, trajectory.last.shape[1], layers)
    if spec.artefacts is not None:  # before the measurements, which may take long
        _save(trajectory, declared, spec.artefacts)
    identity = {"declared": declared.model_dump(mode="json"), **_identity(fields)}
    shared = {
        **fields,
        "flow": digest({**identity, "interrupted": trajectory.reached} if interrupted else identity),
        "example": declared.name,
        "coordinates": declared.flow.coordinates,
    }
    facts = {
        **shared,
        "attention": declared.attention.name,
        "sphere": declared.flow.sphere,
        "tol": declared.watch.tol,
        **trajectory.as_record(),
        "seed": declared.tokens.seed,
        "title": declared.title or declared.name,
        "ending": trajectory.ending,
        "remedy": trajectory.remedy,
        **({"task": None} if interrupted else {}),
    }
    drawn = _Drawing(trajectory, field, declared)
    saved = [index for index in range(len(trajectory.times)) if index in frames]
    measured_at = trajectory_records(
        trajectory,
        field,
        tol=declared.watch.tol,
        renormalised=declared.flow.coordinates == "renormalised",
        lipschitz=declared.watch.lipschitz,
        frames=saved,
    )
    for index, measured in zip(saved, measured_at, strict=True):
        is_last = index == len(trajectory.times) - 1
        unmet = unmet_expectations(declared.expect, measured) if is_last else []
        first = drawn.facts if index == 0 else {}
        yield frames[index], {**facts, **measured, "unmet": unmet, **first, **drawn.coordinates(index)}
    if interrupted:
        raise KeyboardInterrupt
    if not grown:
        return
    at = next(iter(grown.values())).at
    velocity = Velocity(field, sphere=declared.flow.sphere)
    found = perturbation_growth(
        velocity, trajectory.tokens[0], trajectory.reached, steps=at["steps"], depths=at["depths"]
    )
    for index, growth in enumerate(found):
        if index in grown:
            yield grown[index], {**shared, "kind": GrowthRecord.kind_name, **growth.as_record()}


class _Drawing:
    """What figures show of a trajectory: the axes, the final clusters, and the coordinates at each depth."""

    def __init__(self, trajectory: Trajectory, field: Any, declared: Example) -> None:
        from howsmooth.dynamics.instruments.geometry import principal_view
        from howsmooth.dynamics.instruments.records import view_and_labels

        n, d = trajectory.last.shape
        self.every, self.tokens = max(1, -(-n // MAX_TOKENS)), trajectory.tokens
        self.plane, labels = view_and_labels(trajectory, field, declared.watch.tol)
        self.space = principal_view(trajectory.tokens, 3) if d > 2 else None
        self.facts = {
            "about": " ".join(declared.about.split()),
            "axes": list(self.plane.names),
            "space_axes": None if self.space is None else list(self.space.names),
            "labels": labels[:: self.every],
        }

    def coordinates(self, index: int) -> dict[str, Any]:
        """Return the coordinates at a saved depth: two for a figure and three, if there are as many, for the page."""
        x = self.tokens[index, :: self.every]
        space = None if self.space is None else rounded(self.space(x).tolist())
        return {"plane": rounded(self.plane(x).tolist()), "space": space}


def _identity(fields: Fields) -> dict[str, Any]:
    """Return the fields that tell the flows of models from each other."""
    names = ("model", "source", "layers", "head", "n", "sample", "text_sha256", "start")
    return {name: fields[name] for name in names if name in fields}


def _save(trajectory: Trajectory, declared: Example, path: str) -> None:
    """Write depths and tokens as safetensors."""
    from safetensors.torch import save_file

    facts = {key: str(value) for key, value in trajectory.as_record().items()} | {
        "example": declared.name,
        "coordinates": declared.flow.coordinates,
    }
    save_file({"times": trajectory.times, "tokens": trajectory.tokens.contiguous()}, path, metadata=facts)


def caveats(records: Sequence[Fields]) -> Iterator[str]:
    """Yield a warning for each flow that ended early, and one for each expectation that it does not meet."""
    last = {record["flow"]: record for record in of_kind(records, "particles")}
    for record in last.values():
        if record["status"] != "finished":
            yield f"warning: {record['ending']}; {record['remedy']}"
        for line in record["unmet"]:
            yield f"warning: {line} (stated in {record['example']})"


QUESTION = Question(
    spec=ParticlesSpec,
    records=(ParticlesRecord, GrowthRecord),
    answer=answer,
    tables=deferred("howsmooth.report.flow_tables:particle_tables"),
    charts=deferred("howsmooth.report.flow_charts:particle_picture"),
    page="howsmooth.report.flow_page:particle_page",
    plots="paths and instruments",
    about="Integrate tokens along depth, x' = Γ(x); see clusters, a polytope, hyperplanes or a collapse form.\n\n"
    "    EXAMPLE is polytope (the default), hyperplanes, polytope_times_subspace, collapse, low_rank, sphere, or your "
    "own TOML file; options override its values.",
    grid=grid,
    together=(),
    check=lambda spec: spec.declaration,
    caveats=caveats,
    describe=progress_text,
    outputs={
        "--animate": Output("An animation (gif): the tokens in motion.", "howsmooth.report.flow_charts:particle_frames")
    },
)
