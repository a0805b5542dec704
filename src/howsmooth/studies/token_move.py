"""One token moved alone: by how much the output of a layer can follow, and which tokens of it do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.studies.inputs import run_facts
from howsmooth.studies.quantities import all_shares
from howsmooth.studies.spec import Spec
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model


def move_one_token(model: Model, corpus: Corpus, spec: Spec, position: int) -> dict[str, Any]:
    """The record of ‖J[:, j]‖₂ for token j of the spec's first layer and length; `token_gains` has that of all.

    `response_shares` says where in the output the change arrives: a share for each token, adding up to 1.
    """
    n, layer = spec.lengths[0], spec.layers[0]
    if not 0 <= position < n:
        raise InputError(f"expected a token between 0 and {n - 1}, got {position}; choose one of the text")
    chunk, *_ = model.chunks(corpus, n, 1, special_tokens=spec.adds_special_tokens)
    if spec.is_attention:
        f, x = model.attention(layer, n), model.activations(chunk, [layer])[layer]
    else:
        at = model.map_at(chunk, layer, spec.kind)
        f, x = at.f, at.x
    found = local_lipschitz(f, x, tokens=[position], **spec.accuracy, strict=False, max_memory=spec.max_memory)
    return {
        "model": model.name,
        "layer": layer,
        "head": None,
        "map": spec.kind,
        "n": n,
        "position": position,
        "token": chunk.words[position],
        **found.as_record(),
        **run_facts(model, corpus, spec),
        "response_shares": all_shares(found.response.double().square().sum(-1)),
        "words": list(chunk.words),
    }
