"""How far apart are two texts as measures of tokens, before and after attention? Exact Wasserstein distances."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import numbers, option
from howsmooth.questions.question import Fields, Place, Question, Scope
from howsmooth.questions.spec import Lengths, ModelSpec, Samples
from howsmooth.records.schema import Length, ModelRecord

if TYPE_CHECKING:
    from howsmooth.models.model import Model
    from howsmooth.questions.inputs import Inputs
    from howsmooth.questions.work import Work
    from howsmooth.texts.corpora import Corpus
    from howsmooth.transport.measures import TokenMeasure

MAX_RELATIVE_GAP = 1e-9  # a smaller duality gap is rounding
Exponents = Annotated[
    tuple[float, ...],
    numbers("1,2,inf", minimum=1, maximum=1e6, allow_infinity=True),
    option("Exponents p ≥ 1 of the distance.", metavar="1,2,inf"),
]


class DistanceSpec(ModelSpec):
    """Which two texts, at which lengths and layers, in which distances."""

    options: ClassVar[tuple[str, ...]] = (
        *("texts", "other", "special_tokens", "lengths", "layers", "seed", "p", "distance"),
    )
    varied: ClassVar[tuple[str, ...]] = ("p",)
    unhashed: ClassVar[tuple[str, ...]] = (*ModelSpec.unhashed, "other")

    question: str = "distance"
    lengths: Lengths = (64,)
    samples: Samples = 2  # the two texts
    other: Annotated[
        str | None, option("The other text.  [default: the next chunk of --text]", metavar="FILE", min_length=1)
    ] = None
    p: Exponents = (1.0, 2.0, math.inf)
    distance: Annotated[
        Literal["auto", "W", "d"],
        option(
            "Distance between texts: without positions (W), with positions as times (d), or by the layer's mask (auto)."
        ),
    ] = "auto"

    def input_files(self) -> dict[str, str | None]:
        """Return the two texts, by option."""
        return {**super().input_files(), "--other": self.other}


class DistanceRecord(ModelRecord, kind="distance"):
    """The distance between two texts before and after a layer, and their quotient."""

    m: Length  # tokens of the second
    texts: list[str]
    distance: str
    p: float | str  # inf as a text
    before: dict[str, Any]
    after: dict[str, Any]
    quotient: float | None


def places(spec: DistanceSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each exponent at each layer."""
    for layer in scope.layers:
        for p in spec.p:
            yield {"layer": layer, "p": "inf" if p == math.inf else p}


def inputs(model: Model, corpus: Corpus | None, spec: DistanceSpec) -> Inputs:
    """Return the chunks of the two texts: consecutive ones of the first, if there is no second."""
    from howsmooth.questions.inputs import PairInputs, inputs_of

    if corpus is None:
        return inputs_of(model, corpus, spec)
    return PairInputs(model, corpus, _other(spec), spec)


def _other(spec: DistanceSpec) -> Corpus | None:
    """Read the other text; errors name the option."""
    from howsmooth.texts.corpora import read_corpus

    if spec.other == "-":
        raise InputError("expected --other as a file, got - (stdin); give stdin as --text")
    try:
        return None if spec.other is None else read_corpus(spec.path(spec.other))
    except InputError as error:
        raise InputError(f"--other: {error}") from None


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute the distances of one layer.

    Where the layer is a map of such measures (W: no mask and no positions in the layer itself; d: any layer), the
    quotient is a lower bound on its Lipschitz constant on every convex set of measures that contains both texts.
    """
    import torch

    from howsmooth.transport.measures import TimedMeasure, TokenMeasure

    layer, spec = places[0].at["layer"], work.spec
    f = work.attention(layer)
    pair = [work.tokens(layer, sample) for sample in work.samples.numbers]
    timed = getattr(f, "causal", False) if spec.distance == "auto" else spec.distance == "d"
    measure = TimedMeasure.from_sequence if timed else TokenMeasure
    with torch.no_grad():
        before, after = [measure(x) for x in pair], [measure(f(x)) for x in pair]
    for place in places:
        yield (
            place,
            {
                **work.sample_fields(place.at),
                "m": work.n,
                "map": spec.map_name,
                "dtype": str(work.model.dtype).removeprefix("torch."),
                **compare(before, after, float(place.at["p"])),
                **work.fields,
            },
        )


def compare(before: Sequence[TokenMeasure], after: Sequence[TokenMeasure] | None, p: float) -> dict[str, Any]:
    """Return the fields of a record: the distance of a pair before and after a map, and their quotient."""
    from howsmooth.errors import NotConverged
    from howsmooth.transport.conditional import conditional_distance
    from howsmooth.transport.distances import wasserstein
    from howsmooth.transport.measures import TimedMeasure

    def solve(pair: Sequence[TokenMeasure]) -> Any:
        first, second = pair
        try:
            if isinstance(first, TimedMeasure) and isinstance(second, TimedMeasure):
                return conditional_distance(first, second, p)
            return wasserstein(first, second, p)
        except NotConverged as error:  # the record reports its gap
            return error.partial

    input_distance = solve(before)
    output_distance = None if after is None else solve(after)
    quotient = None
    if output_distance is not None and 0 < input_distance.value < math.inf:
        quotient = output_distance.value / input_distance.value
    gaps = [
        found.gap for found in (input_distance, output_distance) if found is not None and math.isfinite(found.value)
    ]
    return {
        "distance": "d" if isinstance(before[0], TimedMeasure) else "W",
        "status": "converged" if all(gap <= MAX_RELATIVE_GAP for gap in gaps) else "gap",
        "p": "inf" if math.isinf(p) else p,
        "before": input_distance.as_record(),
        "after": None if output_distance is None else output_distance.as_record(),
        "quotient": quotient,
    }


QUESTION = Question(
    spec=DistanceSpec,
    records=(DistanceRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.mean_field_tables:distance_tables"),
    charts=deferred("howsmooth.report.mean_field_charts:distance_picture"),
    about="Compute the exact Wasserstein distance between the tokens of two texts, before and after attention: W_p, "
    "without positions, or d_p, with positions, between which nothing is transported. The quotient of the two is a "
    "lower bound on the Lipschitz constant of the layer in that distance (W_p: of a layer without mask and positions).",
    noun="distance",
    places=places,
    together=("layer",),
    inputs=inputs,
    check=_other,
    samples_together=True,
    needs_text=True,
)
