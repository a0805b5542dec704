"""Every bound of every chosen layer, compared with the constant measured on a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.bounds import Bound, LayerForm, Refused, every
from howsmooth.bounds.normalisation import radius as radius_of
from howsmooth.errors import InputError
from howsmooth.lipschitz import argmax_share
from howsmooth.records import make_record
from howsmooth.studies.inputs import ProgressCallback, chosen_layers, run_fields, sites
from howsmooth.studies.quantities import estimate_at
from howsmooth.studies.spec import Spec
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model

RADIUS_CHOICES = ("norm", "data")
ARGMAX_THRESHOLD = 0.99  # a row of probabilities whose largest entry is at least this counts as an argmax


def bound(
    model: Model,
    corpus: Corpus | None,
    spec: Spec,
    *,
    radius: str | float = "norm",
    progress: ProgressCallback | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head) and bound, each as soon as it is computed.

    Args:
        model: The model.
        corpus: The text; None with random tokens.
        spec: Which layers, lengths and samples.
        radius: Radius R of the ball on which bounds hold: "norm" is the largest norm that the normalisation in front
            of the layer can return, "data" the largest norm of the tokens of each sample; or a number.
        progress: Called with (n, layer, head) before each site.

    Yields:
        Records; a bound whose conditions are not met has a record with `refused`, the reason.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import resolve, spec_of
        >>> from howsmooth.texts.corpora import read_corpus
        >>> model, text = load("minilm"), read_corpus("embedded")
        >>> spec = resolve(model, text, spec_of({"layers": [0], "lengths": [8], "samples": 1}))
        >>> records = list(bound(model, text, spec))
        >>> {record["side"] for record in records if record["refused"] is None} == {"lower", "upper"}
        True
    """
    if isinstance(radius, str) and radius not in RADIUS_CHOICES:
        raise InputError(f"expected a radius of {' or '.join(RADIUS_CHOICES)} or a number, got {radius!r}")
    shared = run_fields(model, corpus, spec)
    norm_radii = (
        {layer: radius_of(model.normalisation(layer)) for layer in chosen_layers(model, spec)}
        if radius == "norm"
        else {}
    )
    forms: dict[tuple[int, int, int | None], LayerForm] = {}
    for site in sites(model, corpus, spec, progress=progress):
        R = ball_radius(radius, norm_radii.get(site.layer), site.x)
        form = forms.setdefault((site.n, site.layer, site.head), LayerForm(site.f))
        estimate = estimate_at(site.f, site.x, **spec.accuracy, max_memory=spec.max_memory, strict=False)
        measured = estimate.as_record()
        shares = argmax_share(site.f, site.x, ARGMAX_THRESHOLD).tolist()
        for outcome in every(form, site.n, R, site.x):
            yield make_record(
                "bound",
                {
                    "model": model.name,
                    "map": spec.kind,
                    **site.record_fields,
                    **_bound_fields(outcome, measured),
                    "R": R,
                    "radius_from": str(radius),
                    "measured": measured,
                    "status": measured["status"],
                    "argmax_share": shares,
                    **shared,
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
        return float(torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64).max())
    return float(radius)


def _bound_fields(outcome: Bound | Refused, measured: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a bound, or of its refusal, with its ratio to the measured constant."""
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
