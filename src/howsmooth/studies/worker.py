"""The worker: a bundle of tasks in, rows with records out. The same code in this process, in others, and on Ray.

A task is one record: one quantity of one map at one sample. A bundle holds the tasks that share a forward pass, samples
of one length and one model; a solve is the part of it that goes through the solver together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError
from howsmooth.models import Model, load
from howsmooth.records import stamped
from howsmooth.studies.inputs import NormalisedInputs, Step, moved_tokens
from howsmooth.studies.quantities import At, all_shares, compute, top_tokens
from howsmooth.texts.cutting import word


class Row(NamedTuple):
    """A task's end: its record, or why there is none."""

    task: str
    record: dict[str, Any] | None
    error: str | None = None


@dataclass(frozen=True)
class Solve:
    """One quantity of one map on the samples of a bundle; a task that is None is in the store already."""

    layer: int | None
    head: int | None
    tokens: str
    quantity: str
    tasks: tuple[str | None, ...]
    words: bool = False  # whether its records hold the words of their chunks, which one record of each does


@dataclass(frozen=True)
class Bundle:
    """Tasks that share a model, a length and a forward pass, complete in itself: a worker needs no corpus."""

    loading: dict[str, Any]  # arguments of `load`
    identity: dict[str, Any]  # what `load` must find: hashes, a revision
    map: str
    n: int
    ids: tuple[tuple[int, ...], ...] | None  # None: tokens are drawn
    special: tuple[tuple[bool, ...], ...]
    places: tuple[dict[str, Any], ...]  # of each sample, for its record
    solves: tuple[Solve, ...]
    solver: dict[str, Any]
    facts: dict[str, Any]  # what all its records say
    cost: float = 1.0  # seconds, as far as one can tell

    @property
    def tasks(self) -> list[str]:
        return [task for solve in self.solves for task in solve.tasks if task is not None]

    def without(self, done: set[str]) -> Bundle | None:
        """Return the same less the tasks that are done; None when none are left."""
        solves = [
            replace(solve, tasks=tuple(None if task in done else task for task in solve.tasks)) for solve in self.solves
        ]
        left = tuple(solve for solve in solves if any(solve.tasks))
        if not left:
            return None
        share = sum(bool(task) for solve in left for task in solve.tasks) / max(len(self.tasks), 1)
        return replace(self, solves=left, cost=self.cost * share)


def run_bundle(bundle: Bundle, step: Step | None = None, model: Model | None = None) -> Iterator[list[Row]]:
    """Yield the rows of one solve after another. What a single solve raises ends that solve alone.

    `step(n, layer, head)` is called before each solve. `model` is used in place of the one that the bundle names.
    """
    model = loaded_model(bundle.loading, bundle.identity) if model is None else model
    for solve, members, evaluate in _solves(model, bundle):
        if step is not None:
            step(bundle.n, solve.layer, solve.head)
        try:
            yield evaluate()
        except Exception as error:  # whatever it is, the other solves go on
            reason = _reason(error, bundle.n)
            yield [Row(str(solve.tasks[i]), None, reason) for i in members]


def _solves(model: Model, bundle: Bundle) -> Iterator[tuple[Solve, list[int], Any]]:
    """Each solve with the samples that are left of it and the function that computes their rows."""
    ids = None if bundle.ids is None else torch.tensor(bundle.ids)
    batched = (
        ids is not None and bundle.map in ("attention", "head") and isinstance(_formula(model, bundle), SelfAttention)
    )
    layers = [solve.layer for solve in bundle.solves if solve.layer is not None]
    activations = model.activations(ids, layers) if batched else {}
    for solve in bundle.solves:
        members = [i for i, task in enumerate(solve.tasks) if task is not None]
        if batched:
            yield (
                solve,
                members,
                lambda solve=solve, members=members: _rows(
                    model,
                    bundle,
                    solve,
                    members,
                    _head(model.attention(solve.layer, bundle.n), solve),
                    activations[solve.layer][members],
                ),
            )
            continue
        for i in members:
            yield (
                solve,
                [i],
                lambda solve=solve, i=i: _rows(
                    model, bundle, solve, [i], *_map_and_tokens(model, bundle, solve, i, ids)
                ),
            )


def _map_and_tokens(model: Model, bundle: Bundle, solve: Solve, i: int, ids: Tensor | None) -> tuple[Any, Tensor]:
    """The map of one solve and the tokens of one sample, where samples are not solved together."""
    if ids is None:
        inputs = NormalisedInputs(model, bundle.solver["seed"])
        assert solve.layer is not None  # only the whole model is no layer, and it reads text
        f = _head(inputs.attention(solve.layer, bundle.n), solve)
        return f, inputs.drawn(bundle.n, bundle.places[i]["sample"], solve.layer)
    at = model.map_at(ids[i], solve.layer, bundle.map, head=solve.head)
    return at.f, at.x


def _head(f: Any, solve: Solve) -> Any:
    return f if solve.head is None else f.head(solve.head)


def _formula(model: Model, bundle: Bundle) -> Any:
    layer = bundle.solves[0].layer
    try:
        return None if layer is None else model.attention(layer, bundle.n)
    except InputError:
        return None


def _rows(model: Model, bundle: Bundle, solve: Solve, members: list[int], f: Any, x: Tensor) -> list[Row]:
    moved = moved_tokens(torch.tensor([bundle.special[i] for i in members]), solve.tokens)
    if moved is not None:
        alike = x.ndim == 2 or bool((moved == moved[:1]).all())
        moved = (moved[0] if alike else moved).to(x.device)
    ids = None if bundle.ids is None else torch.tensor([bundle.ids[i] for i in members])
    found = compute(solve.quantity, At(f, x, model, solve.layer, ids, moved, bundle.solver))
    norms = torch.linalg.vector_norm(x.double(), dim=-1).mean(-1).reshape(-1).tolist()
    return [
        Row(str(solve.tasks[i]), _record(model, bundle, solve, i, numbers, norm, len(members)))
        for i, numbers, norm in zip(members, found, norms, strict=True)
    ]


def _record(
    model: Model, bundle: Bundle, solve: Solve, i: int, numbers: dict[str, Any], norm: float, batch: int
) -> dict[str, Any]:
    ids = None if bundle.ids is None else bundle.ids[i]
    name = (lambda at: "drawn") if ids is None else (lambda at: word(model.tokenizer, ids[at]))
    shares = numbers.pop("direction_shares", None)
    words = None if ids is None or not solve.words else [word(model.tokenizer, token) for token in ids]
    return stamped(
        "measurement",
        {
            "model": bundle.facts["model"],
            "layer": solve.layer,
            "head": solve.head,
            "map": bundle.map,
            "n": bundle.n,
            "tokens": solve.tokens,
            "quantity": solve.quantity,
            **bundle.places[i],
            **numbers,
            "mean_norm": norm,
            "batch": batch,
            **bundle.facts,
            "task": solve.tasks[i],
            "top_tokens": [] if shares is None else top_tokens(shares, name),
            "shares": None if shares is None or ids is None else all_shares(shares),
            "words": words,
        },
    )


_loaded: dict[str, Model] = {}  # of this process: the last model used


def loaded_model(loading: dict[str, Any], identity: dict[str, Any] | None = None) -> Model:
    """Return the model, kept from call to call; only one, so that memory stays where it is."""
    key = repr(sorted(loading.items()))
    if key not in _loaded:
        _loaded.clear()
        model = load(**loading)
        if identity is not None and (found := identity_of(model)) != identity:
            wrong = next(name for name in identity if found.get(name) != identity[name])
            raise InputError(
                f"expected {loading['name']!r} as it was when the study was planned, got another {wrong}; "
                "bring the same files to every machine"
            )
        _loaded[key] = model
    return _loaded[key]


def identity_of(model: Model) -> dict[str, Any]:
    """Return what tells this model's numbers from those of any other."""
    names = ("kind", "sha256", "revision", "repository", "architecture", "seed", "initializer_range", "causal")
    identity = {name: model.source[name] for name in names if model.source.get(name) is not None}
    if identity.get("kind") == "random":  # there is no file to hash: the shape and the seed decide
        identity["config"] = {
            name: value
            for name, value in sorted(model.network.config.to_dict().items())
            if name.startswith(("num_", "n_", "hidden_", "intermediate_", "vocab_", "head_"))
        }
    return identity


def _reason(error: Exception, n: int) -> str:
    said = (str(error) or type(error).__name__).strip().splitlines()[0]
    full = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate" in said or "out of memory" in said
    if full:
        return f"out of memory at n = {n} ({said[:120]}); set max_memory, use fewer workers or shorter lengths"
    return said if isinstance(error, InputError) else f"{type(error).__name__}: {said}"
