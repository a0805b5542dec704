"""The bounding loop: every bound of every chosen layer beside the constant measured on a text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.bounds import LayerForm, Refused, every
from howsmooth.bounds.normalisation import radius as radius_of
from howsmooth.errors import InputError
from howsmooth.lipschitz import argmax_share, local_lipschitz
from howsmooth.records import stamped
from howsmooth.studies.inputs import Step, run_facts, sites
from howsmooth.studies.spec import Spec
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model

RADIUS_CHOICES = ("norm", "data")
NEAR_ARGMAX = 0.99  # a row whose largest probability is at least this counts as an argmax


def bound(
    model: Model, corpus: Corpus | None, spec: Spec, *, radius: str | float = "norm", step: Step | None = None
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head) and bound, as soon as it is known.

    The radius R of the ball is that of the normalisation in front of the layer ("norm", the largest that its
    output can have), of the tokens of each sample ("data"), or a number. A bound that refuses is a record too.
    """
    if isinstance(radius, str) and radius not in RADIUS_CHOICES:
        raise InputError(f"expected a radius of {' or '.join(RADIUS_CHOICES)} or a number, got {radius!r}")
    shared = run_facts(model, corpus, spec)
    norm_radii = {layer: radius_of(model.normalisation(layer)) for layer in spec.layers} if radius == "norm" else {}
    forms: dict[tuple, LayerForm] = {}
    for site in sites(model, corpus, spec, step=step):
        R = ball_radius(radius, norm_radii.get(site.layer), site.x)
        form = forms.setdefault((site.n, site.layer, site.head), LayerForm(site.f))
        estimate = local_lipschitz(site.f, site.x, **spec.accuracy, max_memory=spec.max_memory, strict=False)
        measured = estimate.as_record()
        shares = argmax_share(site.f, site.x, NEAR_ARGMAX).tolist()
        for outcome in every(form, site.n, R, site.x):
            yield stamped(
                "bound",
                {
                    "model": model.name,
                    "map": spec.kind,
                    **site.place,
                    **_compared(outcome, measured),
                    "R": R,
                    "radius_from": str(radius),
                    "measured": measured,
                    "status": measured["status"],
                    "argmax_share": shares,
                    **shared,
                },
            )


def ball_radius(radius: str | float, norm_radius: float | None, x: torch.Tensor) -> float:
    """The radius of the ball that bounds are taken on."""
    if radius == "norm":
        return norm_radius
    if radius == "data":
        return float(torch.linalg.vector_norm(x, dim=-1, dtype=torch.float64).max())
    return float(radius)


def _compared(outcome, measured: dict[str, Any]) -> dict[str, Any]:
    """A bound, or its refusal, with its ratio to the measured constant."""
    if isinstance(outcome, Refused):
        return {
            "bound": outcome.bound,
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
