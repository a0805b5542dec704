"""How long are the tokens that enter attention? A whole question in one file, as an example and for the tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar

from howsmooth.questions.fields import number, option
from howsmooth.questions.question import Fields, Place, Question
from howsmooth.questions.spec import CHUNK_FIELDS, ModelSpec, Samples
from howsmooth.questions.work import Work
from howsmooth.records.schema import ModelRecord
from howsmooth.report.chart import Axis, Chart, Series
from howsmooth.report.table import Table


class RadiusSpec(ModelSpec):
    """Which layers, lengths and samples, and the power of the norms whose mean is taken."""

    options: ClassVar[tuple[str, ...]] = (*CHUNK_FIELDS, "layers", "power")

    question: str = "radius"
    samples: Samples = 1
    power: Annotated[float, number(1, 100), option("Power of the norms whose mean is taken.")] = 2.0


class RadiusRecord(ModelRecord, kind="radius"):
    """A mean norm of the tokens of one sample."""

    sample: int
    value: float


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Take the mean of the norms at one layer and sample."""
    for place in places:
        x = work.tokens(place.at["layer"], place.at["sample"])
        value = float(x.double().norm(dim=-1).pow(work.spec.power).mean().pow(1 / work.spec.power))
        fields = {"map": work.spec.map_name, **work.sample_fields(place.at), "value": value, "status": "converged"}
        yield place, {**fields, **work.fields}


def tables(records: Sequence[Fields]) -> list[Table]:
    """Return one row for each record."""
    return [Table.of_fields(records, ("layer", "n", "sample", "value"), "Norms of tokens")]


def charts(records: Sequence[Fields]) -> list[Chart]:
    """Return the norms of each layer against n."""
    curves = []
    for layer in dict.fromkeys(record["layer"] for record in records):
        chosen = [record for record in records if record["layer"] == layer]
        xs, ys = [record["n"] for record in chosen], [record["value"] for record in chosen]
        curves.append(Series(xs, ys, linestyle="solid", label=f"layer {layer}"))
    return [Chart("Norms of tokens", Axis("length n (tokens)"), Axis("mean norm"), curves)]


QUESTION = Question(
    spec=RadiusSpec,
    records=(RadiusRecord,),
    answer=answer,
    tables=tables,
    charts=charts,
    about="Take a mean of the norms of the tokens that enter the attention of each layer.",
    noun="norm",
)
