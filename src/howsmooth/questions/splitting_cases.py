"""Which kinds of maps split? One measure for each, with what is proved or was found about maps of its kind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.lazy import deferred
from howsmooth.questions.question import Fields, Place, Question
from howsmooth.questions.spec import Spec
from howsmooth.records.schema import Record

if TYPE_CHECKING:
    from howsmooth.questions.work import Work


class SplittingCasesSpec(Spec):
    """Nothing is to be chosen: all cases of `howsmooth.lipschitz.splitting_cases`."""

    question: str = "splitting-cases"


class SplittingCaseRecord(Record, kind="splitting case"):
    """Both norms of one map at one measure, and the norm after every atom was cut in two; `ratio` is None for ∞."""

    map: str
    where: str
    norm: float
    own: list[float]
    ratio: float | None
    after: float
    points: list[list[float]]
    masses: list[float]
    limit: str
    never: bool
    splits: bool


def grid(spec: SplittingCasesSpec) -> Iterator[dict[str, Any]]:
    """Yield each case."""
    from howsmooth.lipschitz.splitting_cases import SPLITTING_CASES

    for case in SPLITTING_CASES:
        yield {"map": case.map, "where": case.where}


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute some cases."""
    from howsmooth.lipschitz.splitting_cases import SPLITTING_CASES
    from howsmooth.records.lines import replace_non_finite

    case_of = {(case.map, case.where): case for case in SPLITTING_CASES}
    for place in places:
        case = case_of[place.at["map"], place.at["where"]]
        before, after = case.criteria()
        fields = {
            **place.at,
            **before.as_record(),
            "after": after.norm,
            "limit": case.limit,
            "never": case.never,
            "splits": before.ratio > 1 + 1e-12,
            "status": "converged",
            **work.fields,
        }
        yield place, replace_non_finite(fields)


QUESTION = Question(
    spec=SplittingCasesSpec,
    records=(SplittingCaseRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.mean_field_tables:cases_tables"),
    charts=deferred("howsmooth.report.mean_field_charts:cases_charts"),
    plots="the ratio of each case",
    about="List which kinds of maps split, each with a measure, its ratio, and the largest ratio that is proved or was "
    "found.",
    noun="case",
    grid=grid,
    together=("map", "where"),
    describe=lambda at: f"{at['map']}, {at['where']}",
)
