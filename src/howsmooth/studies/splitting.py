"""Mass splitting where it matters: the heads and layers of real models, on text; and what a repeated token buys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.errors import InputError
from howsmooth.lipschitz import Splitting, local_lipschitz, splits
from howsmooth.lipschitz.rowwise import rowwise_jacobian
from howsmooth.lipschitz.splitting import compare_norms
from howsmooth.models import OwnMap
from howsmooth.studies.inputs import Step, run_facts, sites
from howsmooth.studies.spec import Spec
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model

_NAMED = 8  # how many of the tokens that split are named in a record


def splittings(
    model: Model, corpus: Corpus | None, spec: Spec, *, step: Step | None = None
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head): does the measure split there, and at which token.

    Copies keep their position and, in a causal model, have the time of their token: they see each other. With the
    maps "normed", "block" and "layer" the criterion is that of the whole map, MLP and residual included.
    """
    facts = run_facts(model, corpus, spec)
    if spec.is_attention:
        for site in sites(model, corpus, spec, step=step):
            words = site.chunk.words if corpus is not None else [f"#{i}" for i in range(site.n)]
            yield (
                _record(splits(site.f, site.x, **spec.accuracy), words, model=model.name, map=spec.kind, **site.place)
                | facts
            )
        return
    for n in spec.lengths:
        for sample, chunk in enumerate(
            model.cutter(corpus, special_tokens=spec.adds_special_tokens).chunks(n, spec.samples)
        ):
            for layer in spec.layers:
                if step is not None:
                    step(n, layer, None)
                at = model.map_at(chunk, layer, spec.kind)
                found = compare_norms(at.f, rowwise_jacobian(OwnMap(at.f), at.x), at.x, **spec.accuracy)
                yield (
                    _record(
                        found, chunk.words, model=model.name, layer=layer, head=None, map=spec.kind, n=n, sample=sample
                    )
                    | facts
                )


def repeated_tokens(
    model: Model, corpus: Corpus, spec: Spec, *, copies: int = 2, step: Step | None = None
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer and token: ‖D‖ of the map when the input says that token `copies` times.

    The model is run on the longer input: a real one. The copies take the positions that follow ("next"), or all that of
    the token ("kept"); the mask goes by order in both. `before` is the input as it was.
    """
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 2:
        raise InputError(f"expected at least 2 copies, got {copies!r}")
    kind = spec.kind
    facts = run_facts(model, corpus, spec)
    accuracy = dict(spec.accuracy, strict=False)
    for n in spec.lengths:
        chunk, *_ = model.chunks(corpus, n, 1, special_tokens=spec.adds_special_tokens)
        for layer in spec.layers:
            at = model.map_at(chunk, layer, kind)
            before = local_lipschitz(at.f, at.x, **accuracy)
            for token in range(n):
                if step is not None:
                    step(n, layer, None)
                order = torch.arange(n).repeat_interleave(1 + (torch.arange(n) == token) * (copies - 1))
                ids = torch.as_tensor(chunk.ids)[order].unsqueeze(0)
                # Said aloud, lest transformers take a position that does not move on for the start of a new sequence.
                seen = torch.ones_like(ids)
                found = {}
                for which, places in (("next", torch.arange(len(order))), ("kept", order)):
                    longer = model.map_at(
                        {"input_ids": ids, "attention_mask": seen, "position_ids": places[None]}, layer, kind
                    )
                    found[which] = local_lipschitz(longer.f, longer.x, **accuracy)
                yield {
                    "model": model.name,
                    "layer": layer,
                    "head": None,
                    "map": kind,
                    "n": n,
                    "token": chunk.words[token],
                    "position": token,
                    "copies": copies,
                    "before": before.as_record(),
                    **{which: estimate.as_record() for which, estimate in found.items()},
                    **{f"{which}_over_before": estimate.value / before.value for which, estimate in found.items()},
                    "status": next(
                        (e.status for e in (before, *found.values()) if e.status != "converged"), "converged"
                    ),
                    **facts,
                }


def _record(found: Splitting, words, **where: Any) -> dict[str, Any]:
    own = found.own.value
    split = found.atoms.tolist()
    return (
        where
        | found.as_record()
        | {
            "token": words[found.atom],
            "own_norms": [round(float(v), 6) for v in own],
            "split_tokens": [
                {"position": i, "token": words[i], "ratio": float(own[i]) / found.norm.value}
                for i in sorted(split, key=lambda i: -float(own[i]))[:_NAMED]
            ],
        }
    )
