"""Does the measure of a text split in a map: does the constant grow if tokens are repeated and copies move apart?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.models.map_types import MAPS
from howsmooth.questions.fields import option
from howsmooth.questions.question import Fields, Place, Question
from howsmooth.questions.spec import (
    CHUNK_FIELDS,
    SOLVER_FIELDS,
    Lengths,
    ModelSpec,
    Samples,
    Tolerance,
    about_maps,
    map_among,
)
from howsmooth.records.schema import Count, ModelRecord, Number

if TYPE_CHECKING:
    from howsmooth.questions.work import Work

_NAMES = tuple(name for name in MAPS if MAPS[name].attends)  # the criterion is that of one layer
_MAX_SPLIT_TOKENS = 8  # how many of the tokens that split a record names


class SplittingSpec(ModelSpec):
    """Which maps, lengths and samples.

    Example:
        >>> SplittingSpec(layers=[0]).map_name
        'head'
    """

    options: ClassVar[tuple[str, ...]] = ("inputs", *CHUNK_FIELDS, "map", "layers", "heads", *SOLVER_FIELDS)

    question: str = "splitting"
    map: Annotated[
        str, map_among(_NAMES), option(f"Map to measure: {about_maps(_NAMES)}.", metavar="|".join(_NAMES))
    ] = "head"
    lengths: Lengths = (64,)
    samples: Samples = 1
    tol: Tolerance = 1e-2


class SplittingRecord(ModelRecord, kind="splitting"):
    """Whether the measure of one sample splits in one map, and at which token. A ratio to zero is None."""

    sample: Count
    verdict: str
    ratio: float | None
    ratio_lower: float | None
    ratio_upper: float | None
    norm: Number
    own: float
    own_lower: float
    own_upper: float | None
    own_confidence: float
    own_norms: list[float]
    atom: Count
    atoms: list[Count]
    token: str
    split_tokens: list[dict[str, Any]]


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compare both norms of one layer or head at one sample.

    Copies have the position of their token and, in a causal model, its time: they attend to each other. For the maps
    "normed", "block" and "layer" the criterion is that of the whole map, MLP and residual included.
    """
    import torch

    from howsmooth.lipschitz.rowwise import rowwise_jacobian
    from howsmooth.lipschitz.splitting import compare_norms, splits
    from howsmooth.models.maps import OwnTokenMap
    from howsmooth.records.lines import replace_non_finite

    spec = work.spec
    for place in places:
        if spec.is_attention:
            f, x = work.attention_and_tokens(place.at)
            found = splits(f, x, solver=spec.spectral_solver)
        else:
            f, x = work.map_and_tokens(place.at)
            if not isinstance(f, torch.nn.Module):
                raise InputError(f"expected a module for the map {spec.map_name}, got {type(f).__name__}")
            found = compare_norms(f, rowwise_jacobian(OwnTokenMap(f), x), x, spec.spectral_solver)
        words, own_norms = work.words(place.at["sample"]), found.own.value.tolist()
        split_positions = sorted(found.atoms.tolist(), key=lambda position: -own_norms[position])
        fields = {
            "map": spec.map_name,
            **work.sample_fields(place.at),
            **found.as_record(),
            "token": words[found.atom],
            "own_norms": [round(norm, 6) for norm in own_norms],
            "split_tokens": [
                {"position": i, "token": words[i], "ratio": own_norms[i] / found.norm.value}
                for i in split_positions[:_MAX_SPLIT_TOKENS]
            ],
            **work.fields,
        }
        yield place, replace_non_finite(fields)


QUESTION = Question(
    spec=SplittingSpec,
    records=(SplittingRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.mean_field_tables:splitting_tables"),
    charts=deferred("howsmooth.report.mean_field_charts:heads_picture"),
    plots="heads × layers",
    about="Decide whether the measure of a text splits in the heads of a model: whether the constant grows if tokens "
    "are repeated and the copies may move apart.",
    needs_weights=True,
)
