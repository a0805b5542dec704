"""Attacks on the tokens of many texts: every method on every text, each success evaluated again before it is told."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
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
from howsmooth.records import read_lines
from howsmooth.studies.provenance import provenance
from howsmooth.texts.cutting import TokenChunk

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.texts.corpora import Corpus

ALL_METHODS = {**METHODS, Singular.name: Singular}
# Two records that agree in these are of the same attack: seeds reproduce the rest.
SAME = ("model", "sha256", "ids", "method", "objective", "limits", "judge", "budget", "seed", "dtype")
BEGINS = '{"text": "'  # how the line of a record begins
Step = Callable[[int, str], None]  # (number of the text, method): what is about to be attacked


def methods_named(names: Sequence[str]) -> list[Method]:
    """Methods by name, "all" for each of them.

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
    """An objective by name; a layer is for `hidden`, a threshold says from where on an attack succeeds."""
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
    """Up to `count` consecutive pieces of n tokens; a shorter text is one piece, as long as it is.

    What cannot work is refused here, before anything is computed: no language head, no room for the edits.
    """
    cutter = model.cutter(text)
    tokens = cutter.tokens + cutter.framed
    chunks = model.chunks(text, min(n, tokens), count if tokens >= n * count else None)[:count]
    if objective.uses_last_token:
        _ = model.language_head
    if isinstance(objective, Hidden) and objective.layer is not None:
        model._layer(objective.layer)
    for chunk in chunks:
        limits.editable_positions(chunk.special.tolist(), model.positions)
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
    step: Step | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield a record for every text and method; what is among `done` is not computed again.

    A record holds `TokenAttack.as_record`, the text's number and name, and `verified`: that the value, and success with
    it, came out again from the saved token numbers. The seed of text number i is `seed` + i.
    """
    target, objective, limits = TargetModel(model), objective or Flip(), limits or Limits()
    for method in methods:
        method.check(limits)
    judged = None if judge is None else {"model": judge.model.name, "least": judge.least}
    facts = {"source": model.source, **provenance()}
    sha256 = model.source.get("sha256")
    known = {_key(record): record for record in done}
    for number, chunk in enumerate(chunks):
        for method in methods:
            wanted = {
                "model": model.name,
                "sha256": sha256,
                "ids": chunk.ids.tolist(),
                "method": method.as_record(),
                "objective": objective.as_record(),
                "limits": limits.as_record(),
                "judge": judged,
                "budget": calls,
                "seed": seed + number,
                "dtype": str(model.dtype).removeprefix("torch."),
            }
            if (found := known.get(_key(wanted))) is not None:
                yield found
                continue
            if step is not None:
                step(number, method.name)
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
            again = verify(target, record)
            yield {
                "text": text.name,
                "piece": number,
                **record,
                "verified": again.holds,
                "judge": judged,
                "sha256": sha256,
                **facts,
            }


def read_attacks(path: str | Path) -> list[dict[str, Any]]:
    """The records of a saved file, less a line that a kill cut short; none if there is no file."""
    return read_lines(path, _key, "attacks on tokens", BEGINS)


def _key(record: dict[str, Any]) -> str:
    return json.dumps([record[name] for name in SAME], sort_keys=True)
