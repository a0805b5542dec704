"""A Gaussian under attention: where its mean and covariance go, when it blows up, and the rank that it tends to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, model_validator

from howsmooth.dynamics.declaration import ATTENTION_NAMES, NOT_GAUSSIAN, Example, check_matrix
from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import MAX_NUMBER, matrix, number, numbers, option, whole
from howsmooth.questions.flows import MATRIX_METAVAR, AttentionSpec, check_attention, digest, positions
from howsmooth.questions.question import Fields, Output, Place, Question
from howsmooth.records.schema import Count, Length, Packed, Record

if TYPE_CHECKING:
    from howsmooth.dynamics.declaration import Attention
    from howsmooth.dynamics.gaussian import GaussianState
    from howsmooth.dynamics.gaussian_flows import GaussianFlow, ParticleComparison
    from howsmooth.questions.work import Work

_EARLY_STEPS = 1_000  # after which it is said if the steps will not suffice; a flow that blows up takes fewer


class GaussianSpec(AttentionSpec):
    """Which attention, from which Gaussian, for how long."""

    options: ClassVar[tuple[str, ...]] = (
        *AttentionSpec.attention_options,
        "mean",
        "covariance",
        "particles",
        "frames",
        "rtol",
        "max_steps",
    )

    question: str = "gaussian"
    mean: Annotated[
        tuple[float, ...] | None,
        numbers("0,1", minimum=-MAX_NUMBER, keep_duplicates=True),
        option("Mean of the initial Gaussian.  [default: 0]", metavar="0,1"),
    ] = None
    covariance: Annotated[
        Any, matrix(()), option("Covariance of the initial Gaussian.  [default: 1]", metavar=MATRIX_METAVAR)
    ] = 1.0
    particles: Annotated[
        int | None, whole(2), option("Number of particles: also integrate this many.", metavar="COUNT")
    ] = None
    frames: Annotated[int, whole(11), option("Number of depths to keep.", metavar="COUNT")] = 101
    rtol: Annotated[
        float, number(0, 1, exclusive=True), option("Relative tolerance of the integrator.", metavar="NUMBER")
    ] = 1e-9
    max_steps: Annotated[
        int, whole(), option("Maximum number of integrator steps.", metavar="COUNT", flag="--max-solver-steps")
    ] = 20_000

    @model_validator(mode="after")
    def _keeps_gaussians(self) -> GaussianSpec:
        if self.attention in NOT_GAUSSIAN:
            known = ", ".join(name for name in ATTENTION_NAMES if name not in NOT_GAUSSIAN)
            raise ValueError(
                f"expected --attention of {known}, under which a Gaussian stays one, got {self.attention}; use flow pde"
            )
        return self

    def _declare(self) -> Example:
        found = super()._declare()
        d = found.tokens.dim
        if self.mean is not None and len(self.mean) != d:
            raise InputError(f"expected a --mean of {d} numbers, got {len(self.mean)}; --dim sets how many")
        check_matrix(self.covariance, d, "--covariance")
        return found


class GaussianRecord(Record, kind="gaussian flow"):
    """A Gaussian along time, with particles drawn from its start if there are any."""

    flow: str
    example: str
    title: str
    attention: str
    d: Length
    status: str
    ending: str
    remedy: str
    steps: Count
    seconds: float
    times: Annotated[list[float], Field(min_length=1)]
    means: list[list[float]]
    covariances: list[list[list[float]]]
    blow_up: dict[str, Any] | None
    has_closed_form: bool
    limiting_rank: dict[str, Any]
    particles: dict[str, Any] | None
    positions: Packed | None = None


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Integrate N(mean, covariance), and particles beside it."""
    from howsmooth.dynamics.example import field_of, matrix
    from howsmooth.dynamics.gaussian import GaussianState
    from howsmooth.dynamics.gaussian_flows import compare_particles, gaussian_flow

    spec, declared = work.spec, work.spec.declaration
    attention, d = declared.attention, declared.tokens.dim
    start = GaussianState.of(spec.mean or [0.0] * d, matrix(spec.covariance, d, "--covariance"))
    field = field_of(attention, d)
    flow = gaussian_flow(
        field,
        start,
        declared.flow.until,
        frames=spec.frames,
        rtol=spec.rtol,
        max_steps=spec.max_steps,
        progress=partial(_show, work),
    )
    compared = None if spec.particles is None else compare_particles(flow, field, spec.particles, seed=spec.seed)
    fields = {
        **work.fields,
        "flow": digest(spec.determining()),
        "example": declared.name,
        "attention": attention.name,
        "A": matrix(attention.A, d, "A").tolist(),
        "V": matrix(attention.V, d, "V").tolist(),
        "heads": len(attention.heads) or 1,
        "seed": spec.seed,
        **flow_fields(flow, compared, _closed_form(attention, start)),
        "title": f"{declared.title or 'A Gaussian flow'}: {field.name} attention in dimension {d}",
    }
    yield places[0], fields


def _show(work: Work, t: float, steps: int) -> None:
    """Tell where the integration is, and once, early, if its steps will not suffice."""
    until, most = work.spec.declaration.flow.until, work.spec.max_steps
    work.notify({"t": t, "until": until, "steps": steps, "max_steps": most})
    if steps == _EARLY_STEPS < most and t / until < steps / most:
        work.note(
            f"t = {t:.3g} of {until:g} after {steps:,} of at most {most:,} steps: at this pace the steps do not "
            "suffice; a shorter --until or fewer --max-solver-steps end the flow sooner"
        )


def _progress_text(at: dict[str, Any]) -> str:
    if "steps" not in at:
        return ""
    return f"t = {at['t']:.4g} of {at['until']:g}, step {at['steps']:,} of at most {at['max_steps']:,}"


def flow_fields(
    flow: GaussianFlow, compared: ParticleComparison | None = None, closed_form: float | None = None
) -> Fields:
    """Return the fields of a record that describe a flow, and the particles that its figure shows.

    Args:
        flow: The Gaussian along time.
        compared: Particles compared with it.
        closed_form: The blow-up time by a formula, ∞ if there is no blow-up; None where no formula is known.
    """
    from howsmooth.dynamics.gaussian_rank import limiting_rank

    return {
        **flow.as_record(),
        "ending": flow.ending,
        "remedy": flow.remedy,
        "closed_form_blow_up": closed_form,
        "has_closed_form": closed_form is not None,
        "limiting_rank": limiting_rank(flow).as_record(),
        "particles": None if compared is None else compared.as_record(),
        "positions": None if compared is None else positions(compared.tokens),
    }


def _closed_form(attention: Attention, start: GaussianState) -> float | None:
    """Return the blow-up time for softmax attention of one head with V = I; None for other attention."""
    import torch

    from howsmooth.dynamics.example import matrix
    from howsmooth.dynamics.gaussian import blow_up_time

    eye = torch.eye(start.d, dtype=torch.float64)
    if attention.name != "softmax" or attention.heads or not torch.equal(matrix(attention.V, start.d, "V"), eye):
        return None
    return blow_up_time(matrix(attention.A, start.d, "A"), start)


def caveats(records: Sequence[Fields]) -> list[str]:
    """Return a warning for each flow that ended early."""
    return [f"{record['ending']}; {record['remedy']}" for record in records if record["status"] != "finished"]


QUESTION = Question(
    spec=GaussianSpec,
    records=(GaussianRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.flow_tables:gaussian_tables"),
    charts=deferred("howsmooth.report.density_charts:gaussian_picture"),
    plots="ellipses and eigenvalues",
    about="Integrate N(mean, covariance) under x' = Γ(x): when and in which direction it blows up, and its limiting "
    "rank.\n\n"
    "    EXAMPLE is a TOML file or an example of `flow particles`, whose attention is used (in the coordinates x); "
    "by default A = V = I.",
    grid=lambda spec: [{}],  # one place: the whole flow
    check=check_attention,
    caveats=caveats,
    describe=_progress_text,
    outputs={
        "--animate": Output(
            "An animation (gif): ellipses and eigenvalues.", "howsmooth.report.density_charts:gaussian_frames"
        )
    },
)
