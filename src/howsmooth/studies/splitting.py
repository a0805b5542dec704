"""Mass splitting where it matters: the heads and layers of real models, on text; and what a repeated token buys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.errors import InputError
from howsmooth.lipschitz import Splitting, local_lipschitz, splits
from howsmooth.lipschitz.own_norms import own_operator
from howsmooth.lipschitz.splitting import decide
from howsmooth.models.gpt2_file import AttentionFile
from howsmooth.models.maps import OwnMap
from howsmooth.studies.facts import provenance
from howsmooth.studies.measuring import Settings, Text, attention_maps, chosen, run_facts

if TYPE_CHECKING:
    from howsmooth.models import Model

Step = Callable[[int, int, int | None], None]
_NAMED = 8  # how many of the tokens that split are named in a record


def splittings(model: Model, text: Text, settings: Settings, *, step: Step | None = None) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head): does the text's measure split there, and at which token.

    Copies keep their position and, in a causal model, have the time of their token: they see each other. With the
    kinds "normed", "block" and "layer" the criterion is that of the whole map, MLP and residual included.
    """
    facts = run_facts(model, text, settings)
    accuracy = dict(tol=settings.tol, confidence=settings.confidence, seed=settings.seed)
    for n in settings.lengths:
        maps = {layer: attention_maps(model, layer, n, settings.heads) for layer in settings.layers
                if settings.kind is None}
        for sample, chunk in enumerate(model.chunks(text.content, n, settings.samples,
                                                    special_tokens=settings.special_tokens)):
            activations = {} if settings.kind else model.activations(chunk, settings.layers)
            for layer in settings.layers:
                for head, f in maps.get(layer, [(None, None)]):
                    if step is not None:
                        step(n, layer, head)
                    if settings.kind is None:
                        found = splits(f, activations[layer], **accuracy)
                    else:
                        at = model.map_at(chunk, layer, settings.kind)
                        found = decide(at.f, own_operator(OwnMap(at.f), at.x), at.x, **accuracy)
                    yield _record(found, chunk.words, model=model.name, layer=layer, head=head, map=settings.map, n=n,
                                  sample=sample) | facts


def file_splittings(path: str | Path, *, layers: tuple[int, ...] | str = "all", heads: tuple[int, ...] | str | None,
                    lengths: tuple[int, ...], samples: int, tol: float, confidence: float, seed: int,
                    step: Step | None = None) -> Iterator[dict[str, Any]]:
    """The same for GPT-2's true attention weights, at random tokens behind the layer's own normalisation."""
    file = AttentionFile(path)
    wanted = file.layers if layers == "all" else layers
    each = None if heads is None else chosen(heads, file.heads, "heads of GPT-2")
    for layer in wanted:
        file.attention(layer)  # refused before anything is computed
    facts = {"text": "random tokens, layer-normalised", "source": file.source, "tol": tol, **provenance()}
    for n in lengths:
        generator = torch.Generator().manual_seed(seed)
        for sample in range(samples):
            for layer in wanted:
                f, norm = file.attention(layer), file.normalisation(layer)
                x = norm(torch.randn(n, f.d, generator=generator))
                for head, one in [(None, f)] if each is None else [(h, f.head(h)) for h in each]:
                    if step is not None:
                        step(n, layer, head)
                    found = splits(one, x, tol=tol, confidence=confidence, seed=seed)
                    yield _record(found, [f"#{i}" for i in range(n)], model=file.name, layer=layer, head=head,
                                  map="attention" if head is None else "head", n=n, sample=sample) | facts


def repeated_tokens(model: Model, text: Text, settings: Settings, *, copies: int = 2, step: Step | None = None
                    ) -> Iterator[dict[str, Any]]:
    """Yield one record per length, layer and token: ‖D‖ of the map when the input says that token `copies` times.

    The model is run on the longer input: a real one. The copies take the positions that follow ("next"), or all that of
    the token ("kept"); the mask goes by order in both. `before` is the input as it was.
    """
    if isinstance(copies, bool) or not isinstance(copies, int) or copies < 2:
        raise InputError(f"expected at least 2 copies, got {copies!r}")
    kind = settings.kind or "attention"
    facts = run_facts(model, text, settings)
    accuracy = dict(tol=settings.tol, confidence=settings.confidence, seed=settings.seed, strict=False)
    for n in settings.lengths:
        chunk, *_ = model.chunks(text.content, n, 1, special_tokens=settings.special_tokens)
        for layer in settings.layers:
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
                    longer = model.map_at({"input_ids": ids, "attention_mask": seen, "position_ids": places[None]},
                                          layer, kind)
                    found[which] = local_lipschitz(longer.f, longer.x, **accuracy)
                yield {
                    "model": model.name, "layer": layer, "head": None, "map": kind, "n": n, "token": chunk.words[token],
                    "position": token, "copies": copies, "before": before.as_record(),
                    **{which: estimate.as_record() for which, estimate in found.items()},
                    **{f"{which}_over_before": estimate.value / before.value for which, estimate in found.items()},
                    "status": next((e.status for e in (before, *found.values()) if e.status != "converged"),
                                   "converged"), **facts,
                }


def _record(found: Splitting, words, **where: Any) -> dict[str, Any]:
    own = found.own.value
    split = found.atoms.tolist()
    return where | found.as_record() | {
        "token": words[found.atom], "own_norms": [round(float(v), 6) for v in own],
        "split_tokens": [{"position": i, "token": words[i], "ratio": float(own[i]) / found.norm.value}
                         for i in sorted(split, key=lambda i: -float(own[i]))[:_NAMED]],
    }
