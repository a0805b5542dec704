"""How large can the constant of a layer become, over all tokens in a set? Gradient ascent from many starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import model_validator

from howsmooth.lazy import deferred
from howsmooth.questions.fields import (
    FolderName,
    Radius,
    Restarts,
    Steps,
    file_name,
    make_artefact_folder,
    number,
    option,
)
from howsmooth.questions.question import Fields, Place, Question
from howsmooth.questions.spec import CHUNK_FIELDS, SOLVER_FIELDS, Lengths, ModelSpec, Samples
from howsmooth.records.schema import Count, LogNumber, ModelRecord, Number

if TYPE_CHECKING:
    from torch import Tensor

    from howsmooth.attack.constraints import Constraint
    from howsmooth.attention.heads import SelfAttention
    from howsmooth.attention.normalisation import Normalisation
    from howsmooth.bounds.bound import Bound
    from howsmooth.questions.work import Work

# A search has one text to compare with: `samples` is no option.
SEARCH_FIELDS = ("inputs", *(name for name in CHUNK_FIELDS if name != "samples"), "layers", "heads", *SOLVER_FIELDS)


class WorstCaseSpec(ModelSpec):
    """Which layers and lengths, the set of allowed tokens, and how long to search."""

    options: ClassVar[tuple[str, ...]] = (*SEARCH_FIELDS, "within", "radius", "eps", "restarts", "steps", "artefacts")

    question: str = "worst-case"
    lengths: Lengths = (64,)
    samples: Samples = 1
    within: Annotated[
        Literal["norm", "ball", "sphere", "near"],
        option(
            "Set of allowed tokens: the outputs of the normalisation in front, a ball or sphere (--radius), or near "
            "those of the text (--eps)."
        ),
    ] = "norm"
    radius: Radius = "norm"
    eps: Annotated[
        float | None,
        number(0, exclusive=True),
        option("How far each token may move; with --within near.", metavar="NUMBER"),
    ] = None
    restarts: Restarts = 16
    steps: Steps = 100
    artefacts: Annotated[
        FolderName | None, option("Tensors to save, as safetensors: the tokens that were found.", metavar="DIR")
    ] = None

    @model_validator(mode="after")
    def _check_eps(self) -> WorstCaseSpec:
        if (self.eps is None) == (self.within == "near"):
            raise ValueError(
                f'expected eps with within = "near" and only there, got within = "{self.within}" '
                + ("without it" if self.eps is None else "with it")
            )
        return self


class WorstCaseRecord(ModelRecord, kind="worst case"):
    """The largest constant that gradient ascent found within a set of tokens."""

    within: str
    R: float | None
    eps: float | None
    value: float
    lower: float
    upper: float | None
    best_start: float
    on_text: Number
    over_text: float | None
    upper_bound: LogNumber
    masses: list[Count] = []  # how many tokens coincide at each distinct point
    file: str | None = None  # with the tokens, in the folder of --artefacts


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Search for the largest constant of one layer or head, and compare it with the text's."""
    import torch

    from howsmooth.attack.search import worst_case
    from howsmooth.bounds.normalisation import radius as radius_of
    from howsmooth.questions.bound import ball_radius
    from howsmooth.questions.quantities import estimate_at

    (place,) = places
    at, spec, n = place.at, work.spec, work.n
    folder = make_artefact_folder(spec)
    f, x = work.attention_and_tokens(at)
    norm = work.model.normalisation(at["layer"]).converted(dtype=f.dtype)
    R = ball_radius(spec.radius, radius_of(norm), x)
    constraint = _constraint(spec, norm, R, x)
    found = worst_case(f, n, constraint, restarts=spec.restarts, steps=spec.steps, seed=spec.seed, tol=spec.tol)
    on_text = estimate_at(f, x, solver=spec.spectral_solver, strict=False)
    largest_norm = float(torch.linalg.vector_norm(found.x, dim=-1, dtype=torch.float64).max())
    fields = {
        "model": work.model.name,
        "map": spec.map_name,
        **work.sample_fields(at),
        "within": spec.within,
        "R": R if spec.within in ("ball", "sphere") else None,
        "eps": spec.eps,
        **found.estimate.as_record(),
        "value": found.value,
        "best_start": float(found.start.max()),
        "restarts": spec.restarts,
        "ascent_steps": found.steps,
        "on_text": on_text.as_record(),
        "over_text": found.value / on_text.value if on_text.value > 0 else None,
        "upper_bound": _smallest_upper(f, n, max(R, largest_norm), norm if spec.within == "norm" else None).as_record(),
        "masses": token_multiplicities(found.x),
        **work.fields,
        "file": None if folder is None else file_name(at, n, place.key),
    }
    if folder is not None:
        from safetensors.torch import save_file

        save_file(
            {"tokens": found.x.contiguous(), "direction": found.estimate.direction.contiguous()},
            folder / fields["file"],
            metadata={name: str(fields[name]) for name in ("model", "layer", "head", "n", "within", "value")},
        )
    yield place, fields


def token_multiplicities(x: Tensor, tol: float = 1e-2) -> list[int]:
    """Return how many tokens coincide at each distinct point, the largest number first.

    Args:
        x: Tokens, (n, d).
        tol: Tokens closer than this share of the largest norm coincide.

    Example:
        >>> import torch
        >>> token_multiplicities(torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]))
        [2, 1]
    """
    from torch.linalg import vector_norm

    rest, counts = x.double(), []
    distance = tol * float(vector_norm(rest, dim=-1).max())
    while len(rest):
        close = vector_norm(rest - rest[0], dim=-1) <= distance
        counts.append(int(close.sum()))
        rest = rest[~close]
    return sorted(counts, reverse=True)


def _constraint(spec: WorstCaseSpec, norm: Normalisation, R: float, x: Tensor) -> Constraint:
    from howsmooth.attack.constraints import Ball, Ellipsoid, Near, Sphere

    if spec.within == "norm":
        return Ellipsoid(norm)
    if spec.eps is not None:  # given with "near" and only there
        return Near(x, spec.eps)
    return Ball(R) if spec.within == "ball" else Sphere(R)


def _smallest_upper(f: SelfAttention, n: int, R: float, norm: Normalisation | None) -> Bound:
    """Return the smallest upper bound that holds on the whole ball, or for all outputs of a normalisation."""
    from howsmooth.bounds import every, heads_together
    from howsmooth.bounds.bound import Bound
    from howsmooth.bounds.form import LayerForm

    form = LayerForm(f)
    bounds = [bound for bound in every(form, n, R) if isinstance(bound, Bound) and bound.side == "upper"]
    bounds += [] if norm is None else [heads_together.upper_on_outputs(form, n, norm)]
    return min(bounds, key=lambda bound: bound.log_value)


QUESTION = Question(
    spec=WorstCaseSpec,
    records=(WorstCaseRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.attacks:worst_case_tables"),
    charts=deferred("howsmooth.report.attacks:worst_case_charts"),
    plots="the worst case and the text's constant against n",
    about="Maximise the local Lipschitz constant over all tokens in a set, by gradient ascent from many starts.",
    noun="worst case",
    needs_weights=True,
    check=make_artefact_folder,
)
