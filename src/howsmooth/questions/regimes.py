"""How does the largest constant of n tokens grow with n? Exactly, for tokens at two points, up to any length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from howsmooth.lazy import deferred
from howsmooth.questions.fields import number, numbers, option, whole
from howsmooth.questions.question import Fields, Place, Question
from howsmooth.questions.spec import Spec
from howsmooth.records.schema import Record

if TYPE_CHECKING:
    from howsmooth.questions.work import Work


class RegimesSpec(Spec):
    """Which curves, and their lengths.

    Example:
        >>> RegimesSpec(gamma_r2="0.5,2").gamma_r2
        (0.5, 2.0)
    """

    options: ClassVar[tuple[str, ...]] = ("gamma_r2", "scores", "to", "points")
    varied: ClassVar[tuple[str, ...]] = ("gamma_r2",)

    question: str = "regimes"
    gamma_r2: Annotated[
        tuple[float, ...],
        numbers("0.5,2,8,32", minimum=0, maximum=1e5),
        option("Values of γR²: one curve for each.", metavar="0.5,2,8,32"),
    ] = (0.5, 2.0, 8.0, 32.0)
    scores: Annotated[Literal["negative", "positive"], option("Sign of A.")] = "negative"
    to: Annotated[float, number(1, 1e6), option("Largest length, 10^POWER.", metavar="POWER")] = 40.0
    points: Annotated[int, whole(2), option("Number of lengths on each curve.", metavar="COUNT")] = 61


class RegimeRecord(Record, kind="regime"):
    """The largest constant of n tokens at two points of the ball, its plateau, and the bounds, as logarithms.

    The upper bounds are the smallest that are proved: `log_n_free` for every n, `log_upper` for the n of the record.
    `log_three_points` is what measures at three points attain in the limit; it may be above the plateau of two points.
    """

    gamma_r2: float
    a: float
    scores: str
    log_n: float
    log_value: float
    log_at_radius: float
    log_plateau: float
    log_crossover: float
    log_upper: float
    log_theorem1: float
    log_two_dirac: float
    log_three_points: float
    log_n_free: float


def grid(spec: RegimesSpec) -> Iterator[dict[str, Any]]:
    """Yield each length of each curve."""
    from howsmooth.lipschitz.regimes import lengths_up_to

    lengths = lengths_up_to(spec.to, spec.points)
    for size in spec.gamma_r2:
        for log_n in lengths:
            yield {"gamma_r2": size, "log_n": log_n}


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute one curve. It is computed whole: all lengths are maximised over in one batch."""
    from howsmooth.bounds import mean_field, this_project
    from howsmooth.bounds.form import LayerForm
    from howsmooth.lipschitz.regimes import lengths_up_to, plateau, regime_curve, unit_layer
    from howsmooth.lipschitz.three_points import three_point_plateau

    size, scores = places[0].at["gamma_r2"], work.spec.scores
    place_of = {place.at["log_n"]: place for place in places}
    top = plateau(size, scores)
    form = LayerForm(unit_layer(scores, top.a))  # on the unit ball
    # Which of the two is smaller depends on the sign of A: the second has the right rate in R for each.
    n_free = min(
        mean_field.unmasked(form, 2, 1.0).log_value, this_project.n_free_right_exponent(form, 2, 1.0).log_value
    )
    fixed = {
        "log_two_dirac": this_project.two_dirac_lower(form, 2, 1.0).log_value,
        "log_three_points": three_point_plateau(size, scores),
        "log_n_free": n_free,
    }
    for point in regime_curve(size, lengths_up_to(work.spec.to, work.spec.points), scores):
        if point.log_n in place_of:
            yield (
                place_of[point.log_n],
                {
                    "gamma_r2": size,
                    "a": top.a,
                    "scores": scores,
                    **point.as_record(),
                    "log_plateau": top.log_value,
                    "log_crossover": top.log_crossover,
                    "log_upper": min(n_free, mean_field.upper_at_log_n(form, point.log_n, 1.0).log_value),
                    "log_theorem1": mean_field.theorem1_at_log_n(form, point.log_n, 1.0).log_value,
                    **fixed,
                    "status": "converged",
                    **work.fields,
                },
            )


QUESTION = Question(
    spec=RegimesSpec,
    records=(RegimeRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.mean_field_tables:regimes_tables"),
    charts=deferred("howsmooth.report.mean_field_charts:regimes_picture"),
    plots="the constant against n",
    about="Compute the largest Lipschitz constant of n tokens at two points of the ball, exactly, for any n: it grows "
    "like √n·log n up to n* ≈ 3e^{2γR²} and is constant from there on. The bounds are shown beside it.\n\n"
    "    One head in d = 1 with V = 1; γ is |A| where A is negative, A/8 where it is positive.",
    noun="point",
    grid=grid,
    together=("gamma_r2",),
    describe=lambda at: f"γR² = {at['gamma_r2']:g}",
)
