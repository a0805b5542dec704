"""Mitigations on real layers: how much smoother, how much harder to attack, and at what price."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.attack.feature import Attack, Budget, Noise, ProjectedGradient, Target, run
from howsmooth.attack.mitigation import L2, Cap, Mitigation, Temperature
from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.models.replaced import replaced
from howsmooth.studies.measuring import Settings, Text, run_facts

if TYPE_CHECKING:
    from howsmooth.models import Model

USUAL = (Cap(0.5), Cap(0.25), Temperature(1.5), Temperature(2.0), Temperature(4.0), L2())
BUDGET = 0.01  # of ‖X‖
Step = Callable[[int, int, int | None], None]


def mitigations(
    model: Model,
    text: Text,
    settings: Settings,
    *,
    tried: Sequence[Mitigation] = USUAL,
    budget: float = BUDGET,
    attack: Attack | None = None,
    whole: bool = True,
    step: Step | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer and mitigation, and, if `whole`, one with all these layers mitigated at once.

    A layer's record has, before and after: the constant at the text's tokens, and what an attack changes with `budget`
    of ‖X‖. Its price is measured in the whole model with that layer replaced: the cosine of embeddings (mean of last
    hidden states) with the original ones, and the loss on the text where there is a language head. In the record of all
    layers (layer None) the attack is on the whole model, ascent from noise, with the same number of calls.
    """
    if not 0 < budget < math.inf:
        raise InputError(f"expected a budget as a positive share of ‖X‖, got {budget!r}")
    attack = ProjectedGradient() if attack is None else attack
    facts = run_facts(model, text, settings)
    for n in settings.lengths:
        chunks = model.chunks(text.content, n, settings.samples, special_tokens=settings.special_tokens)
        clean = [_outcome(model, chunk) for chunk in chunks]
        activations = model.activations(chunks[0], settings.layers)
        shared = {"model": model.name, "n": n, "samples": len(chunks), "budget": budget, **facts}
        for layer in settings.layers:
            f, x = model.attention(layer, n), activations[layer]
            before = _layer(f, x, attack, budget, settings)
            for mitigation in tried:
                if step is not None:
                    step(n, layer, None)
                g = mitigation(f)
                after = _layer(g, x, attack, budget, settings)
                with torch.no_grad():
                    apart = float(torch.linalg.vector_norm(g(x) - f(x)) / torch.linalg.vector_norm(f(x)))
                yield {"layer": layer, "mitigation": mitigation.name, "before": before, "after": after,
                       "constant_ratio": after["value"] / before["value"],
                       "attack_ratio": after["change"] / before["change"], "output_apart": apart,
                       **_price(model, chunks, clean, {layer: g}), **shared, "status": after["status"]}
        if whole:
            before = _whole(model, chunks[0], {}, budget, settings)
            for mitigation in tried:
                maps = {layer: mitigation(model.attention(layer, n)) for layer in settings.layers}
                after = _whole(model, chunks[0], maps, budget, settings)
                yield {"layer": None, "mitigation": mitigation.name, "before": before, "after": after,
                       "constant_ratio": None, "attack_ratio": after["change"] / before["change"], "output_apart": None,
                       **_price(model, chunks, clean, maps), **shared, "status": after["status"]}


def text_loss(model: Model, chunk) -> float | None:
    """The mean loss of a decoder on a piece of text, in nats per token; None where there is no language head."""
    return _outcome(model, chunk)[1]


def _layer(f, x: Tensor, attack: Attack, budget: float, settings: Settings) -> dict[str, Any]:
    found = local_lipschitz(f, x, tol=settings.tol, confidence=settings.confidence, seed=settings.seed, strict=False)
    size = budget * float(torch.linalg.vector_norm(x))
    attacked = run(attack, Target.of(f, x), Budget(size), seed=settings.seed)
    return found.as_record() | {"change": attacked.change, "gain": attacked.gain, "calls": attacked.calls}


def _whole(model: Model, chunk, maps: dict, budget: float, settings: Settings) -> dict[str, Any]:
    with replaced(model, maps):
        target = Target.in_model(model, chunk, None, "model")
        size = budget * float(torch.linalg.vector_norm(target.x))
        found = run(ProjectedGradient(start=Noise(), steps=10), target, Budget(size), seed=settings.seed)
    return {"change": found.change, "gain": found.gain, "calls": found.calls, "status": "converged"}


def _outcome(model: Model, chunk) -> tuple[Tensor, float | None]:
    """The embedding of a piece of text, and the loss on it where there is a language head."""
    hidden = model.map_at(chunk, kind="model")()
    loss = None
    if _has_head(model) and len(chunk) > 1:
        with torch.no_grad():
            scores = model.language_head(hidden[:-1].to(model.dtype))
        loss = float(torch.nn.functional.cross_entropy(scores.double(), chunk.ids[1:].to(scores.device)))
    return hidden.mean(0), loss


def _has_head(model: Model) -> bool:
    try:
        return model.language_head is not None
    except InputError:
        return False


def _price(model: Model, chunks, clean: list, maps: dict) -> dict[str, Any]:
    with replaced(model, maps):
        now = [_outcome(model, chunk) for chunk in chunks]
    cosines = [float(torch.nn.functional.cosine_similarity(a[0], b[0], dim=0)) for a, b in zip(clean, now, strict=True)]
    losses = [(a[1], b[1]) for a, b in zip(clean, now, strict=True) if a[1] is not None]
    before, after = (sum(pair[i] for pair in losses) / len(losses) if losses else None for i in (0, 1))
    return {"cosine": sum(cosines) / len(cosines), "loss_before": before, "loss_after": after}
