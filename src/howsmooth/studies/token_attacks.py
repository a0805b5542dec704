"""Attacks on the tokens of many texts: every method on every text; every result is evaluated a second time."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from howsmooth.attack.tokens import (
    METHODS,
    OBJECTIVES,
    Flip,
    Hidden,
    Limits,
    SentenceSimilarity,
    Singular,
    TargetModel,
    attack_text,
    verify,
)
from howsmooth.attack.tokens import TextObjective as Objective
from howsmooth.attack.tokens.methods import Method
from howsmooth.errors import InputError
from howsmooth.records.provenance import provenance
from howsmooth.studies.formats import attack_key
from howsmooth.texts.cutting import TokenChunk

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.texts.corpora import Corpus

ALL_METHODS = {**METHODS, Singular.name: Singular}
ProgressCallback = Callable[[int, str], None]  # called with (number of the text, method) before each attack


def methods_named(names: Sequence[str]) -> list[Method]:
    """Return methods by name; "all" is every method.

    Example:
        >>> [method.name for method in methods_named(["hotflip", "probe"])]
        ['hotflip', 'probe']
    """
    if "all" in names and len(names) > 1:
        raise InputError(f"expected all by itself or methods by name, got {','.join(names)}; leave one out")
    wanted = list(ALL_METHODS) if list(names) == ["all"] else list(dict.fromkeys(names))
    unknown = [name for name in wanted if name not in ALL_METHODS]
    if unknown or not wanted:
        raise InputError(f"expected methods among all, {', '.join(ALL_METHODS)}, got {', '.join(unknown) or 'none'}")
    return [ALL_METHODS[name]() for name in wanted]


def objective_named(name: str, *, layer: int | None = None, threshold: float | None = None) -> Objective:
    """Return an objective by name.

    Args:
        name: The name.
        layer: The layer, for "hidden" only.
        threshold: The value from which on an attack succeeds.
    """
    if name not in OBJECTIVES:
        raise InputError(f"expected an objective among {', '.join(OBJECTIVES)}, got {name!r}")
    if layer is not None and name != "hidden":
        raise InputError(f"expected a layer only with the objective hidden, got one with {name}; leave it out")
    if threshold is not None and not math.isfinite(threshold):
        raise InputError(f"expected a threshold as a finite number, got {threshold}")
    settings = {} if layer is None else {"layer": layer}
    return OBJECTIVES[name](**settings, **({} if threshold is None else {"threshold": threshold}))


def chunks_to_attack(
    model: Model, text: Corpus, n: int, count: int, objective: Objective, limits: Limits
) -> list[TokenChunk]:
    """Return up to `count` consecutive chunks of n tokens; a shorter text is one chunk.

    Raises:
        InputError: The model lacks a language head or the layer that the objective needs, or the edits do not fit into
            its positions.
    """
    cutter = model.cutter(text)
    tokens = cutter.tokens_up_to(n * count) + cutter.special_count
    chunks = model.chunks(text, min(n, tokens), count if tokens >= n * count else None)[:count]
    if objective.uses_last_token:
        _ = model.language_head
    if isinstance(objective, Hidden) and objective.layer is not None:
        model.check_layer(objective.layer)
    for chunk in chunks:
        limits.editable_positions(chunk.special.tolist(), sys.maxsize if model.positions is None else model.positions)
    return chunks


def token_attacks(
    model: Model,
    text: Corpus,
    chunks: Sequence[TokenChunk],
    methods: Sequence[Method],
    *,
    objective: Objective | None = None,
    limits: Limits | None = None,
    calls: int = 40,
    seed: int = 0,
    judge: SentenceSimilarity | None = None,
    done: Sequence[dict[str, Any]] = (),
    progress: ProgressCallback | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a record for every chunk and method.

    A record contains `TokenAttack.as_record`, the number of the chunk, the name of the text, and `verified`: whether a
    second evaluation, from the saved token ids, gave the same value and the same success.

    Args:
        model: The model to attack.
        text: The text that the chunks come from.
        chunks: As `chunks_to_attack` returns them.
        methods: The methods.
        objective: What an attack maximises; `Flip` without it.
        limits: Which edits are allowed.
        calls: Calls of the model for each method and chunk.
        seed: Seed of the first chunk; chunk number i has `seed` + i.
        judge: Rejects edits that change the meaning of the text too much.
        done: Records of an earlier run; these are yielded and not computed again.
        progress: Called with (number of the chunk, name of the method) before each attack.
    """
    target, objective, limits = TargetModel(model), objective or Flip(), limits or Limits()
    for method in methods:
        method.check(limits)
    judge_fields = None if judge is None else {"model": judge.model.name, "least": judge.least}
    shared = {"source": model.source, **provenance()}
    sha256 = model.source.get("sha256")
    known = {attack_key(record): record for record in done}
    for number, chunk in enumerate(chunks):
        for method in methods:
            identity = {
                "model": model.name,
                "sha256": sha256,
                "ids": chunk.ids.tolist(),
                "method": method.as_record(),
                "objective": objective.as_record(),
                "limits": limits.as_record(),
                "judge": judge_fields,
                "budget": calls,
                "seed": seed + number,
                "dtype": str(model.dtype).removeprefix("torch."),
            }
            if (found := known.get(attack_key(identity))) is not None:
                yield found
                continue
            if progress is not None:
                progress(number, method.name)
            record = attack_text(
                target,
                chunk,
                method,
                objective=objective,
                limits=limits,
                calls=calls,
                seed=seed + number,
                similarity=judge,
            ).as_record()
            second = verify(target, record)
            yield {
                "text": text.name,
                "piece": number,
                **record,
                "verified": second.holds,
                "judge": judge_fields,
                "sha256": sha256,
                **shared,
            }
