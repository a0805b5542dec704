"""What is certified for all tokens within ε of a text's, and how much of it does an attack reach?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from howsmooth.lazy import deferred
from howsmooth.norms import NORMS
from howsmooth.questions.fields import BudgetNorm, Restarts, Steps, numbers, option, whole
from howsmooth.questions.question import Fields, Place, Question, Scope, every_map_and_sample
from howsmooth.questions.spec import Lengths, ModelSpec, Samples
from howsmooth.questions.worst_case import SEARCH_FIELDS
from howsmooth.records.schema import ModelRecord, Number

if TYPE_CHECKING:
    from howsmooth.questions.work import Work


class BallSpec(ModelSpec):
    """Which layers and lengths, the radii of the balls, and how long to search in them."""

    options: ClassVar[tuple[str, ...]] = (*SEARCH_FIELDS, "eps", "norm", "effort", "restarts", "steps")
    varied: ClassVar[tuple[str, ...]] = ("eps",)

    question: str = "ball"
    lengths: Lengths = (64,)
    samples: Samples = 1
    eps: Annotated[
        tuple[float, ...],
        numbers("0.001,0.01,0.1"),
        option("How far each token may move; with --norm frobenius all of them together.", metavar="NUMBER,…"),
    ] = (0.001, 0.01, 0.1)
    norm: BudgetNorm = "token"
    effort: Annotated[
        int,
        whole(0, 1000),
        option("Rounds in which the weights of the certificate are improved; 0 leaves out the quadratic form."),
    ] = 16
    restarts: Restarts = 4
    steps: Steps = 30


class BallRecord(ModelRecord, kind="ball"):
    """A certified bound for all tokens within eps of a text's, each or all together, and the largest constant found.

    The supremum over the ball is between the two.
    """

    eps: float
    norm: str = "token"  # in which eps is measured
    certified: float | None
    log_certified: float | None
    tightness: float | None
    method: str
    vacuous_eps: float | None
    found: Number
    centre: Number


def places(spec: BallSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each radius around each sample."""
    for at in every_map_and_sample(spec, scope):
        for eps in sorted(spec.eps):
            yield {**at, "eps": eps}


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Certify the balls around one sample, for one layer or head, and search for a large constant in each."""
    import torch

    from howsmooth.attack.constraints import Near
    from howsmooth.attack.search import worst_case
    from howsmooth.bounds.ball import certify_ball, vacuous_eps
    from howsmooth.questions.quantities import estimate_at

    at, spec = places[0].at, work.spec
    f, x = work.attention_and_tokens(at)
    f, x = f.converted(dtype=torch.float64), x.double()
    solver = spec.spectral_solver.divided(2)  # each certificate is the smaller of two bounds with a confidence
    centre = estimate_at(f, x, solver=solver)
    per: Literal["token", "text"] = "token" if NORMS[spec.norm].each_token else "text"
    vacuous = vacuous_eps(f, x) if per == "token" else None  # a statement about one budget per token
    for place in places:
        eps = place.at["eps"]
        certificate = certify_ball(f, x, eps, at_center=centre.upper, per=per, effort=spec.effort, solver=solver)
        near = Near(x, eps, spec.norm)
        found = worst_case(f, work.n, near, restarts=spec.restarts, steps=spec.steps, seed=spec.seed, tol=spec.tol)
        bound = certificate.bound
        yield (
            place,
            {
                "model": work.model.name,
                "map": spec.map_name,
                **work.sample_fields(at),
                "eps": eps,
                "norm": spec.norm,
                "certified": bound.value,
                "log_certified": bound.log_value,
                "method": certificate.method,
                "found": found.estimate.as_record(),
                "centre": centre.as_record(),
                "tightness": bound.value / found.value if bound.value is not None and found.value > 0 else None,
                "parts": certificate.parts,
                "vacuous_eps": vacuous,
                "status": found.estimate.status,
                "radius": centre.radius,
                **work.fields,
            },
        )


QUESTION = Question(
    spec=BallSpec,
    records=(BallRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.attacks:ball_tables"),
    charts=deferred("howsmooth.report.attacks:ball_charts"),
    plots="certified and found constants against ε",
    about="Certify the Lipschitz constant on the ball of all tokens within ε of a text's, and attack within it.\n\n"
    "    The certificate is an upper bound on the constant of the ball, and gradient ascent gives a lower bound.",
    noun="ball",
    places=places,
    needs_weights=True,
)
