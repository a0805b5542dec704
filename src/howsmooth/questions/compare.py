"""Where do two models differ: checkpoints, an adapter on and off, before and after fine-tuning, rounded weights?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BeforeValidator, model_validator

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import option
from howsmooth.questions.question import Fields, Place, Question
from howsmooth.questions.spec import CHUNK_FIELDS, SOLVER_FIELDS, ModelChoice, ModelSpec
from howsmooth.records.schema import Count, ModelRecord, Number, TokenShare

if TYPE_CHECKING:
    from howsmooth.questions.work import Work

_SHARED = ("dtype", "device", "trust_remote_code", "allow_pickle")  # of the first model, unless the second has its own


class CompareSpec(ModelSpec):
    """Which two models, on which layers, lengths and samples of one text."""

    options: ClassVar[tuple[str, ...]] = ("inputs", *CHUNK_FIELDS, "cutting", "map", "layers", "heads", *SOLVER_FIELDS)
    second_argument: ClassVar[str | None] = "against"
    unhashed: ClassVar[tuple[str, ...]] = (*ModelSpec.unhashed, "against")  # its identity instead

    question: str = "compare"
    against: Annotated[
        ModelChoice | None,
        BeforeValidator(lambda given: {"name": given} if isinstance(given, str) else given),
        option("The model to compare with.", metavar="NAME"),
    ] = None

    @model_validator(mode="after")
    def _check_against(self) -> CompareSpec:
        if self.against is None:
            raise ValueError("expected two models, got one; name the one to compare with (howsmooth compare A B)")
        if len(self.models) > 1:
            raise ValueError(f"expected one model and one to compare with, got {len(self.models)} models; name one")
        return self

    @property
    def second(self) -> ModelChoice | None:
        """The model to compare with, with the device and the dtype of the first one where it has none of its own."""
        if self.against is None:
            return None
        own = self.against.model_fields_set
        return self.against.model_copy(
            update={name: getattr(self.models[0], name) for name in _SHARED if name not in own}
        )


class Comparison(ModelRecord, kind="comparison"):
    """The constants of one map of two models, each at the tokens that enter it there, and their worst directions."""

    sample: Count
    against: str
    first: Number
    second: Number
    ratio: Number
    changed: bool
    angle: float
    along: float
    top_tokens: list[TokenShare] = []
    other_tokens: list[TokenShare] = []


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Measure one map of both models at one sample."""
    import torch

    from howsmooth.lipschitz.local import jacobian
    from howsmooth.models.memory import solver_memory_limit
    from howsmooth.questions.quantities import estimate_at, top_tokens

    (place,) = places
    at, other = place.at, work.second
    _check_pair(work, other, at)
    found, directions, points = [], [], []
    for one in (work, other):
        f, x = one.map_and_tokens(at)
        points.append((f, x))
        if x.shape != points[0][1].shape:
            raise InputError(
                f"expected maps of the same tokens, got {tuple(points[0][1].shape)} in {work.model.name} and "
                f"{tuple(x.shape)} in {other.model.name} at {_where(at)}; compare models of one width"
            )
    for f, x in points:
        limit = solver_memory_limit(x.device, work.solver.max_memory)
        estimate = estimate_at(f, x, solver=work.solver, max_memory=limit, strict=False)
        found.append(estimate)
        directions.append(estimate.direction.double().flatten().cpu())
    first, second = found
    # Two unit vectors; the smaller of the angles with v and −v, by the form that is exact near 0.
    gap, total = (torch.linalg.vector_norm(directions[0] + sign * directions[1]) for sign in (-1, 1))
    angle = float(torch.rad2deg(2 * torch.atan2(torch.minimum(gap, total), torch.maximum(gap, total))))
    f, x = points[1]
    J = jacobian(f, x)
    along = float(torch.linalg.vector_norm(J.matvec(first.direction.flatten().to(J.device, J.dtype)).double()))
    low = second.lower / first.upper if first.upper else 0.0
    high = second.upper / first.lower if second.upper is not None and first.lower > 0 else None
    words = work.words(at["sample"])
    yield (
        place,
        {
            "model": work.fields["model"],
            "against": work.spec.against.label,
            "map": work.spec.map_name,
            **work.sample_fields(at),
            "first": _number(first),
            "second": _number(second),
            "ratio": {"value": second.value / first.value if first.value else 0.0, "lower": low, "upper": high},
            "changed": low > 1 or (high is not None and high < 1),
            "angle": angle,
            "along": along,
            "top_tokens": top_tokens(first.shares, words.__getitem__),
            "other_tokens": top_tokens(second.shares, words.__getitem__),
            "confidence": first.confidence,
            "status": next((e.status for e in found if e.status != "converged"), "converged"),
            "dtype": str(first.dtype).removeprefix("torch."),
            "against_source": dict(other.model.source),
            **work.fields,
        },
    )


def _number(estimate: Any) -> Fields:
    return {name: getattr(estimate, name) for name in ("value", "lower", "upper", "residual", "steps")}


def _where(at: dict[str, Any]) -> str:
    return "the whole model" if at.get("layer") is None else f"layer {at['layer']}"


def _check_pair(work: Work, other: Work, at: dict[str, Any]) -> None:
    """Raise InputError for two models that have no text or no layer in common."""
    a, b = work.model, other.model
    if a.modality != b.modality:
        raise InputError(f"expected two models that take {a.modality}, got {b.name}, which takes {b.modality}")
    if at.get("layer") is not None and at["layer"] not in b.layer_numbers:
        raise InputError(
            f"expected layer {at['layer']} in both models, got {len(b.layer_numbers)} layers in {b.name}; choose "
            "--layers that both have"
        )
    if work.samples.token_ids is None or a.tokenizer is None or b.tokenizer is None or a.tokenizer is b.tokenizer:
        return
    if a.tokenizer.get_vocab() != b.tokenizer.get_vocab():
        raise InputError(
            f"expected two models with one tokenizer, got different vocabularies in {a.name} and {b.name}: the same "
            "text is other tokens there; compare models of one family"
        )


QUESTION = Question(
    spec=CompareSpec,
    records=(Comparison,),
    answer=answer,
    tables=deferred("howsmooth.report.comparison:comparison_tables"),
    charts=deferred("howsmooth.report.comparison:comparison_picture"),
    plots="constants of both models by layer, and the angles",
    about="Compare the constants of two models on one text, layer by layer: two checkpoints, before and after "
    "fine-tuning, full precision and rounded weights. The second model takes the options of the first.",
    noun="comparison",
)
