"""What a worker does: a bundle of tasks in, rows for the store out.

A task is one record: one map at one sample. A bundle holds the tasks that share a forward pass, samples of one length
and one model; a solve is the part of it that goes through the solver together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.models import Model, load
from howsmooth.models.tokens import word
from howsmooth.studies.places import top_tokens
from howsmooth.studies.released import as_released, by_scripts


class Row(NamedTuple):
    """A task's end: its record, or why there is none."""

    task: str
    record: dict[str, Any] | None
    error: str | None = None


@dataclass(frozen=True)
class Solve:
    """One map on the samples of a bundle; a task that is None is in the store already."""

    layer: int | None
    head: int | None
    tokens: str
    estimator: str
    tasks: tuple[str | None, ...]


@dataclass(frozen=True)
class Bundle:
    """Tasks that share a model, a length and a forward pass, complete in itself: a worker needs no corpus."""

    loading: dict[str, Any]  # arguments of `load`
    identity: dict[str, Any]  # what `load` must find: hashes, a revision
    kind: str
    n: int
    ids: tuple[tuple[int, ...], ...]
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
        """The same less the tasks that are done; None when none are left."""
        solves = [replace(solve, tasks=tuple(None if task in done else task for task in solve.tasks))
                  for solve in self.solves]
        left = tuple(solve for solve in solves if any(solve.tasks))
        if not left:
            return None
        share = sum(bool(task) for solve in left for task in solve.tasks) / max(len(self.tasks), 1)
        return replace(self, solves=left, cost=self.cost * share)


_loaded: dict[str, Model] = {}  # of this process: the last model used


def run_bundle(bundle: Bundle) -> Iterator[list[Row]]:
    """Yield the rows of one solve after another. What a single solve raises ends that solve alone."""
    model = _model(bundle.loading, bundle.identity)
    ids = torch.tensor(bundle.ids)
    batched = bundle.kind in ("attention", "head") and isinstance(_formula(model, bundle), SelfAttention)
    layers = [solve.layer for solve in bundle.solves if solve.layer is not None]
    activations = model.activations(ids, layers) if batched else {}
    for solve in bundle.solves:
        members = [i for i, task in enumerate(solve.tasks) if task is not None]
        try:
            if batched:
                f = model.attention(solve.layer, bundle.n)
                f = f if solve.head is None else f.head(solve.head)
                yield _rows(model, bundle, solve, members, f, activations[solve.layer][members])
            else:
                for i in members:
                    at = model.map_at(ids[i], solve.layer, bundle.kind, head=solve.head)
                    yield _rows(model, bundle, solve, [i], at.f, at.x)
        except Exception as error:  # whatever it is, the other solves go on
            reason = _reason(error, bundle.n)
            yield [Row(solve.tasks[i], None, reason) for i in members]


def _formula(model: Model, bundle: Bundle):
    try:
        return model.attention(bundle.solves[0].layer, bundle.n)
    except InputError:
        return None


def _rows(model: Model, bundle: Bundle, solve: Solve, members: list[int], f, x: Tensor) -> list[Row]:
    if solve.estimator == "released":
        numbers, named = as_released(f, x), [[] for _ in members]
    elif solve.estimator == "scripts":
        tokens = torch.tensor([bundle.ids[i] for i in members])
        numbers = by_scripts(model, tokens, solve.layer, x if x.ndim == 3 else x[None], bundle.solver["seed"])
        named: list[list] = [[] for _ in members]
    else:
        found = local_lipschitz(f, x, tokens=_moved(bundle, solve, members, x.device), strict=False, **bundle.solver)
        estimates = found if isinstance(found, list) else [found]
        numbers = [{**e.as_record(), "seconds": e.seconds / len(estimates)} for e in estimates]
        named = [top_tokens(e.shares, lambda at, ids=bundle.ids[i]: word(model.tokenizer, ids[at]))
                 for i, e in zip(members, estimates, strict=True)]
    norms = torch.linalg.vector_norm(x.double(), dim=-1).mean(-1).reshape(-1).tolist()
    return [
        Row(solve.tasks[i], {
            "task": solve.tasks[i], "layer": solve.layer, "head": solve.head, "map": bundle.kind, "n": bundle.n,
            "tokens": solve.tokens, "estimator": solve.estimator, **bundle.places[i], **number, "mean_norm": norm,
            "batch": len(members), **bundle.facts, "top_tokens": top})
        for i, number, norm, top in zip(members, numbers, norms, named, strict=True)
    ]


def _moved(bundle: Bundle, solve: Solve, members: list[int], device) -> Tensor | None:
    """Which tokens may move, (b, n) or (n,) as the tokens themselves are; None for all."""
    if solve.tokens == "all":
        return None
    moved = ~torch.tensor([bundle.special[i] for i in members])
    if solve.tokens == "no-first":
        moved = (torch.arange(bundle.n) > 0).expand(len(members), -1)
    if not moved.any(-1).all():
        raise InputError(f"expected a token left to move with tokens = {solve.tokens!r}, got none at n = {bundle.n}; "
                         "ask for longer lengths")
    return moved[0].to(device) if bool((moved == moved[:1]).all()) else moved.to(device)


def _model(loading: dict[str, Any], identity: dict[str, Any]) -> Model:
    """The model, kept from bundle to bundle; only one, so that memory stays where it is."""
    key = repr(sorted(loading.items()))
    if key not in _loaded:
        _loaded.clear()
        model = load(**loading)
        found = identity_of(model)
        if found != identity:
            wrong = next(name for name in identity if found.get(name) != identity[name])
            raise InputError(f"expected {loading['name']!r} as it was when the study was planned, got another {wrong}; "
                             "bring the same files to every machine")
        _loaded[key] = model
    return _loaded[key]


def identity_of(model: Model) -> dict[str, Any]:
    """What tells this model's numbers from those of any other."""
    names = ("kind", "sha256", "revision", "repository", "architecture", "seed", "initializer_range", "causal")
    identity = {name: model.source[name] for name in names if model.source.get(name) is not None}
    if identity.get("kind") == "random":  # there is no file to hash: the shape and the seed decide
        identity["config"] = {name: value for name, value in sorted(model.network.config.to_dict().items())
                              if name.startswith(("num_", "n_", "hidden_", "intermediate_", "vocab_", "head_"))}
    return identity


def _reason(error: Exception, n: int) -> str:
    said = (str(error) or type(error).__name__).strip().splitlines()[0]
    full = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "allocate" in said or "out of memory" in said
    if full:
        return f"out of memory at n = {n} ({said[:120]}); set max_memory, use fewer workers or shorter lengths"
    return said if isinstance(error, InputError) else f"{type(error).__name__}: {said}"
