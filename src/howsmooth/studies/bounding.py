"""The bounding loop: every bound of every chosen layer beside the constant measured on a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.bounds import LayerForm, Refused, every
from howsmooth.bounds.normalisation import radius as radius_of
from howsmooth.errors import InputError
from howsmooth.lipschitz import argmax_share, local_lipschitz
from howsmooth.studies.measuring import Settings, Text, attention_maps, run_facts

if TYPE_CHECKING:
    from howsmooth.models import Model

RADIUS_CHOICES = ("norm", "data")
NEAR_ARGMAX = 0.99  # a row whose largest probability is at least this counts as an argmax


def bound(
    model: Model,
    text: Text,
    settings: Settings,
    *,
    radius: str | float = "norm",
    step: Callable[[int, int, int | None], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head) and bound, as soon as it is known.

    The radius R of the ball is that of the normalisation in front of the layer ("norm", the largest that its
    output can have), of the tokens of each sample ("data"), or a number. A bound that refuses is a record too.
    """
    if isinstance(radius, str) and radius not in RADIUS_CHOICES:
        raise InputError(f"expected a radius of {' or '.join(RADIUS_CHOICES)} or a number, got {radius!r}")
    shared = run_facts(model, text, settings)
    norm_radii = {layer: radius_of(model.normalisation(layer)) for layer in settings.layers} if radius == "norm" else {}
    for n in settings.lengths:
        chosen = {layer: [(head, f, LayerForm(f)) for head, f in attention_maps(model, layer, n, settings.heads)]
                  for layer in settings.layers}
        chunks = model.chunks(text.content, n, settings.samples, special_tokens=settings.special_tokens)
        for sample, chunk in enumerate(chunks):
            activations = model.activations(chunk, settings.layers)
            for layer in settings.layers:
                x = activations[layer]
                R = ball_radius(radius, norm_radii.get(layer), x)
                for head, f, form in chosen[layer]:
                    if step is not None:
                        step(n, layer, head)
                    estimate = local_lipschitz(f, x, tol=settings.tol, confidence=settings.confidence,
                                               max_memory=settings.max_memory, seed=settings.seed, strict=False)
                    where = {"model": model.name, "layer": layer, "head": head, "map": settings.map, "n": n,
                             "sample": sample}
                    measured = estimate.as_record()
                    shares = argmax_share(f, x, NEAR_ARGMAX).tolist()
                    for outcome in every(form, n, R, x):
                        yield {**where, **_compared(outcome, measured), "R": R, "radius_from": str(radius),
                               "measured": measured, "status": measured["status"], "argmax_share": shares, **shared}


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
        return {"bound": outcome.bound, "side": None, "holds": None, "value": None, "log_value": None, "ratio": None,
                "log_ratio": None, "refused": str(outcome).removeprefix(f"{outcome.bound}: "),
                "reference": None, "conditions": []}
    record = outcome.as_record()
    log_ratio = outcome.log_value - math.log(measured["value"]) if measured["value"] > 0 else math.inf
    return {"bound": record.pop("name"), **record, "log_ratio": log_ratio,
            "ratio": None if outcome.value is None else outcome.value / max(measured["value"], 5e-324),
            "refused": None}
