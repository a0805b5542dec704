"""What does repeating one token of a text do to the constant of a map? The model runs on the longer text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.models.map_types import MAPS
from howsmooth.questions.fields import option, whole
from howsmooth.questions.question import Fields, Place, Question, Scope
from howsmooth.questions.spec import CHUNK_FIELDS, SOLVER_FIELDS, about_maps, map_among
from howsmooth.questions.splitting import SplittingSpec
from howsmooth.records.schema import Count, ModelRecord, Number

if TYPE_CHECKING:
    from howsmooth.questions.work import Work

_NAMES = tuple(name for name in MAPS if MAPS[name].attends and name != "head")


class SplittingCopiesSpec(SplittingSpec):
    """Which maps and lengths, and how often the token occurs."""

    options: ClassVar[tuple[str, ...]] = (
        "copies",
        *(name for name in CHUNK_FIELDS if name != "samples"),
        "map",
        "layers",
        *SOLVER_FIELDS,
    )

    question: str = "splitting-copies"
    copies: Annotated[int, whole(2), option("Number of copies of one token.", metavar="COUNT")] = 2
    map: Annotated[
        str, map_among(_NAMES), option(f"Map to measure: {about_maps(_NAMES)}.", metavar="|".join(_NAMES))
    ] = "attention"


class SplittingCopiesRecord(ModelRecord, kind="splitting copies"):
    """The constant at a text, and at the text with one of its tokens repeated.

    The copies get the positions that follow (`next`), or all that of the token (`kept`); the mask goes by the order of
    tokens in both cases.
    """

    sample: Count
    position: Count
    token: str
    copies: Count
    before: Number
    next: Number
    kept: Number
    next_over_before: float
    kept_over_before: float


def places(spec: SplittingCopiesSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each token of each layer."""
    for layer in scope.layers:
        for sample in scope.samples:
            for position in range(scope.n):
                yield {"layer": layer, "sample": sample, "position": position}


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute the constant of one map at one sample, before and after some of its tokens are repeated."""
    import torch

    from howsmooth.questions.quantities import estimate_at

    spec, at, n = work.spec, places[0].at, work.n
    ids, words = work.token_ids(at["sample"]), work.words(at["sample"])
    if ids is None:
        raise InputError(f"expected a model that reads text, got {work.model.name}; use a whole text model")
    before = estimate_at(*work.map_and_tokens(at), solver=spec.spectral_solver, strict=False)
    for place in places:
        position = place.at["position"]
        order = torch.arange(n).repeat_interleave(1 + (torch.arange(n) == position) * (spec.copies - 1))
        longer_ids = ids[order].unsqueeze(0)
        # Without a mask, transformers takes a repeated position for the start of a new sequence.
        mask = torch.ones_like(longer_ids)
        after = {}
        for name, positions in (("next", torch.arange(len(order))), ("kept", order)):
            batch = {"input_ids": longer_ids, "attention_mask": mask, "position_ids": positions[None]}
            longer = work.model.map_at(batch, at["layer"], spec.map_name)
            after[name] = estimate_at(longer.f, longer.x, solver=spec.spectral_solver, strict=False)
        statuses = [estimate.status for estimate in (before, *after.values())]
        yield (
            place,
            {
                "map": spec.map_name,
                **work.sample_fields(at),
                "token": words[position],
                "position": position,
                "copies": spec.copies,
                "before": before.as_record(),
                **{name: estimate.as_record() for name, estimate in after.items()},
                **{f"{name}_over_before": estimate.value / before.value for name, estimate in after.items()},
                "status": next((status for status in statuses if status != "converged"), "converged"),
                **work.fields,
            },
        )


QUESTION = Question(
    spec=SplittingCopiesSpec,
    records=(SplittingCopiesRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.mean_field_tables:copies_tables"),
    charts=deferred("howsmooth.report.mean_field_charts:copies_charts"),
    plots="the constant against the position of the repeated token",
    about="Run the model on a text with each token in turn repeated, and compare the constant of a map there with that "
    "at the text itself.",
    places=places,
    together=("layer", "sample"),
    needs_text=True,
)
