"""Which bounds hold on a layer, and how far are they from the constant measured on a text?"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.questions.fields import Radius
from howsmooth.questions.question import Fields, Place, Question, Scope, every_map_and_sample
from howsmooth.questions.spec import CHUNK_FIELDS, SOLVER_FIELDS, Lengths, ModelSpec, Samples
from howsmooth.records.schema import Count, ModelRecord, Number

if TYPE_CHECKING:
    import torch

    from howsmooth.bounds.bound import Bound, Refused
    from howsmooth.questions.work import Work

ARGMAX_THRESHOLD = 0.99  # a row of probabilities whose largest entry is at least this counts as an argmax


class BoundSpec(ModelSpec):
    """Which layers, lengths and samples, and the ball on which bounds hold."""

    options: ClassVar[tuple[str, ...]] = (
        "inputs",
        *CHUNK_FIELDS,
        "layers",
        "heads",
        *SOLVER_FIELDS,
        "max_memory",
        "radius",
    )

    question: str = "bound"
    lengths: Lengths = (32, 128, 512)
    samples: Samples = 1
    radius: Radius = "norm"


class BoundRecord(ModelRecord, kind="bound"):
    """One bound, or why it does not apply (`refused`), with the constant measured on the text."""

    sample: Count
    bound: str
    title: str | None = None  # the name for readers
    side: str | None
    holds: str | None
    value: float | None
    log_value: float | None
    ratio: float | None
    log_ratio: float | None
    R: float | None
    radius_from: str | None = None
    refused: str | None
    reference: str | None = None
    conditions: list[str] = []
    measured: Number


def places(spec: BoundSpec, scope: Scope) -> Iterator[dict[str, Any]]:
    """Yield each bound of each layer and head at each sample."""
    from howsmooth.bounds import EVERY

    for at in every_map_and_sample(spec, scope):
        for bound in EVERY:
            yield {**at, "bound": f"{bound.__module__.rpartition('.')[2]}.{bound.__name__}"}


def answer(work: Work, places: Sequence[Place]) -> Iterator[tuple[Place, Fields]]:
    """Compute all bounds of one layer or head at one sample, and the constant that they are compared with."""
    from howsmooth.bounds import every
    from howsmooth.bounds.form import LayerForm
    from howsmooth.bounds.normalisation import radius as radius_of
    from howsmooth.lipschitz.large_radius import argmax_share
    from howsmooth.questions.quantities import estimate_at

    at, spec = places[0].at, work.spec
    f, x = work.attention_and_tokens(at)
    R = ball_radius(spec.radius, radius_of(work.model.normalisation(at["layer"])) if spec.radius == "norm" else None, x)
    measured = estimate_at(f, x, solver=spec.spectral_solver, strict=False).as_record()
    shares = argmax_share(f, x, ARGMAX_THRESHOLD).tolist()
    place_of = {place.at["bound"]: place for place in places}
    for outcome in every(LayerForm(f), work.n, R, x):
        fields = _bound_fields(outcome, measured)
        if fields["bound"] in place_of:
            yield (
                place_of[fields["bound"]],
                {
                    "model": work.model.name,
                    "map": spec.map_name,
                    **work.sample_fields(at),
                    **fields,
                    "R": R,
                    "radius_from": str(spec.radius),
                    "measured": measured,
                    "status": measured["status"],
                    "argmax_share": shares,
                    **work.fields,
                },
            )


def ball_radius(radius: str | float, norm_radius: float | None, x: torch.Tensor) -> float:
    """Return the radius of the ball on which bounds hold.

    Args:
        radius: "norm", "data" or a number.
        norm_radius: The radius for "norm"; the other choices do not need it.
        x: The tokens, (n, d).
    """
    if radius == "norm":
        if norm_radius is None:
            raise InputError("expected a normalisation in front of the layer for the radius norm, got none; use data")
        return norm_radius
    if radius == "data":
        import torch

        return float(torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64).max())
    return float(radius)


def _bound_fields(outcome: Bound | Refused, measured: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a bound, or of its refusal, with its ratio to the measured constant."""
    from howsmooth.bounds.bound import Refused

    if isinstance(outcome, Refused):
        return {
            "bound": outcome.bound,
            "title": outcome.title,
            "side": None,
            "holds": None,
            "value": None,
            "log_value": None,
            "ratio": None,
            "log_ratio": None,
            "refused": str(outcome).removeprefix(f"{outcome.bound}: "),
            "reference": None,
            "conditions": [],
        }
    record = outcome.as_record()
    log_ratio = outcome.log_value - math.log(measured["value"]) if measured["value"] > 0 else math.inf
    return {
        "bound": record.pop("name"),
        **record,
        "log_ratio": log_ratio,
        "ratio": None if outcome.value is None else outcome.value / max(measured["value"], 5e-324),
        "refused": None,
    }


QUESTION = Question(
    spec=BoundSpec,
    records=(BoundRecord,),
    answer=answer,
    tables=deferred("howsmooth.report.measurement_tables:bounds_tables"),
    charts=deferred("howsmooth.report.charts:bounds_picture"),
    plots="all bounds against n",
    about="Bound the Lipschitz constant of a model's attention layers, and measure how tight each bound is.\n\n"
    "    A bound holds for all inputs of n tokens in a ball of radius R, at the measured tokens X, or for every n; "
    "the table shows which. For a bound that does not apply to a layer it gives the reason.",
    noun="bound",
    places=places,
    needs_weights=True,
    check_panels=deferred("howsmooth.report.charts:check_panel_count"),
)
