"""One token moved alone: by how much the output of a layer can follow, and which tokens of it do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.studies.measuring import Settings, Text, run_facts
from howsmooth.studies.places import all_shares

if TYPE_CHECKING:
    from howsmooth.models import Model


def move_one_token(model: Model, text: Text, settings: Settings, position: int) -> dict[str, Any]:
    """The record of ‖J[:, j]‖₂ for token j of the settings' first layer and length; `token_gains` has that of all.

    `response_shares` says where in the output the change arrives: a share for each token, adding up to 1.
    """
    n, layer = settings.lengths[0], settings.layers[0]
    if not 0 <= position < n:
        raise InputError(f"expected a token between 0 and {n - 1}, got {position}; choose one of the text")
    chunk, *_ = model.chunks(text.content, n, 1, special_tokens=settings.special_tokens)
    if settings.kind is None:
        f, x = model.attention(layer, n), model.activations(chunk, [layer])[layer]
    else:
        at = model.map_at(chunk, layer, settings.kind)
        f, x = at.f, at.x
    found = local_lipschitz(f, x, tokens=[position], tol=settings.tol, confidence=settings.confidence, strict=False,
                            max_memory=settings.max_memory, seed=settings.seed)
    return {"model": model.name, "layer": layer, "head": None, "map": settings.map, "n": n, "position": position,
            "token": chunk.words[position], **found.as_record(), **run_facts(model, text, settings),
            "response_shares": all_shares(found.response.double().square().sum(-1)), "words": list(chunk.words)}
