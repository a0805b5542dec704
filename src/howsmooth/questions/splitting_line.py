"""Where do two or three atoms on a line split? One head in d = 1 with V = 1, in closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import AfterValidator, ValidationInfo

from howsmooth.lazy import deferred
from howsmooth.questions.fields import number, numbers, option, whole
from howsmooth.questions.question import Fields, Place, Question
from howsmooth.questions.spec import Spec
from howsmooth.records.schema import Count, Record

if TYPE_CHECKING:
    from howsmooth.questions.work import Work


def _check_masses(masses: tuple[float, ...] | None, found: ValidationInfo) -> tuple[float, ...] | None:
    atoms = 2 if found.data.get("third") is None else 3
    if masses is not None and len(masses) != atoms:
        raise ValueError(f"expected a number for each of {atoms} atoms, got {len(masses)}; change them")
    return masses


class SplittingLineSpec(Spec):
    """The score, the atoms, and the square in which two of them are."""

    options: ClassVar[tuple[str, ...]] = ("a", "masses", "third", "extent", "resolution", "masked")

    question: str = "splitting-line"
    a: Annotated[float, number(), option("Coefficient a of the score a·x·y.", metavar="NUMBER")] = -1.0
    third: Annotated[float | None, number(), option("Position of a third atom.", metavar="NUMBER")] = None
    masses: Annotated[
        tuple[float, ...] | None,
        numbers("1,3", keep_duplicates=True),
        AfterValidator(_check_masses),
        option("Masses of the atoms.  [default: equal]", metavar="1,3"),
    ] = None
    extent: Annotated[
        float, number(0, 1e3, exclusive=True), option("Half the width of the domain: of the square.", metavar="NUMBER")
    ] = 4.0
    resolution: Annotated[int, whole(2, 4000), option("Points along each axis of the square.", metavar="COUNT")] = 400
    masked: Annotated[bool, option("Masked attention: the atoms are ordered x, y, third.")] = False


class SplittingLineRecord(Record, kind="splitting line"):
    """The share of the square that splits, and the largest ratio with its position.

    The ratio at each point is a function of a, masses, third, masked, extent and points: the figure computes it again.
    """

    a: float
    masses: list[float]
    third: float | None
    masked: bool
    extent: float
    points: Count
    share: float
    ratio: float
    x: float
    y: float


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute the criterion on the square."""
    from howsmooth.lipschitz.criterion import line_splitting_grid

    spec, points = work.spec, work.spec.resolution
    masses = spec.masses or (1.0,) * (2 if spec.third is None else 3)
    axis, found = line_splitting_grid(spec.extent, points, spec.a, masses, spec.third, masked=spec.masked)
    top = int(found.ratio.argmax())
    for place in places:
        yield (
            place,
            {
                "a": spec.a,
                "masses": list(masses),
                "third": spec.third,
                "masked": spec.masked,
                "extent": spec.extent,
                "points": points,
                "share": float(found.splits.double().mean()),
                "ratio": float(found.ratio.max()),
                "x": float(axis[top % points]),
                "y": float(axis[top // points]),
                "status": "converged",
                "dtype": "float64",
                **work.fields,
            },
        )


QUESTION = Question(
    spec=SplittingLineSpec,
    records=(SplittingLineRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.mean_field_tables:line_tables"),
    charts=deferred("howsmooth.report.mean_field_charts:line_picture"),
    plots="the ratio in the plane of two atoms",
    about="Compute where two atoms on a line split, or three of which one is fixed: the ratio of both norms at each "
    "point of a square of positions.\n\n"
    "    One head in d = 1 with score a·x·y and V = 1; above ratio 1, repeated tokens have a larger constant.",
    grid=lambda spec: [{}],  # one place: the whole square
    describe=lambda at: "",
)
