"""The worker: it takes a bundle of tasks and yields their results. Every engine runs the same code.

A task is one record: one quantity of one map at one sample. A `TaskGroup` contains the tasks of one quantity and one
map, for several samples. A `Bundle` contains the groups that share a forward pass: samples of one length and one model.
A solve computes a group on one batch of samples, in one call of the solver.
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
from howsmooth.models.identity import file_states, model_identity
from howsmooth.records import make_record
from howsmooth.studies.inputs import TOKEN_NAMES, NormalisedInputs, ProgressCallback, perturbed_mask
from howsmooth.studies.quantities import EvaluationPoint, all_shares, compute_quantity, top_tokens
from howsmooth.texts.cutting import word


class TaskResult(NamedTuple):
    """The result of one task: its record, or the error message if there is none.

    Attributes:
        task: Hash of the task.
        record: The record; None if the task failed.
        error: Why the task failed; None if it did not.
    """

    task: str
    record: dict[str, Any] | None
    error: str | None = None


@dataclass(frozen=True)
class TaskGroup:
    """One quantity of one map, for every sample of a bundle.

    Attributes:
        layer: Layer of the map; None for the whole model.
        head: Head of the layer; None for the whole layer.
        tokens: Which tokens a perturbation may move, as in `Spec.tokens`.
        quantity: A key of `QUANTITIES`.
        tasks: Hash of the task for each sample; None where the store already has its record.
        record_words: Whether the records contain the words of their chunk. One group of each bundle does.
    """

    layer: int | None
    head: int | None
    tokens: str
    quantity: str
    tasks: tuple[str | None, ...]
    record_words: bool = False


@dataclass(frozen=True)
class Bundle:
    """Tasks that share a model, a length and a forward pass. It contains the token ids: a worker needs no corpus.

    Attributes:
        load_arguments: Keyword arguments of `howsmooth.load`.
        identity: What `model_identity` must return for the loaded model: hashes, a revision.
        map: Name of the map, as in `Spec.map`.
        n: Number of tokens.
        token_ids: Token ids of each sample, (samples, n); None if there are none.
        features: Images or features of sounds, (samples, …); None if there are none. Without ids and features, the
            tokens are random (`NormalisedInputs`).
        special: Which tokens are special tokens, (samples, n).
        sample_fields: Fields of the record that describe the sample, one dictionary per sample.
        groups: The task groups.
        solver_options: Options of `local_lipschitz`.
        shared_fields: Fields that all records of the bundle share.
        seconds: Estimated time of all its tasks.
    """

    load_arguments: dict[str, Any]
    identity: dict[str, Any]
    map: str
    n: int
    token_ids: tuple[tuple[int, ...], ...] | None
    special: tuple[tuple[bool, ...], ...]
    sample_fields: tuple[dict[str, Any], ...]
    groups: tuple[TaskGroup, ...]
    solver_options: dict[str, Any]
    shared_fields: dict[str, Any]
    features: Tensor | None = None
    seconds: float = 1.0

    @property
    def tasks(self) -> list[str]:
        """Hashes of all tasks that have to be computed."""
        return [task for group in self.groups for task in group.tasks if task is not None]

    def without(self, done: set[str]) -> Bundle | None:
        """Return a copy without the tasks in `done`, or None if no task remains."""
        groups = [
            replace(group, tasks=tuple(None if task in done else task for task in group.tasks)) for group in self.groups
        ]
        remaining = replace(self, groups=tuple(group for group in groups if any(group.tasks)))
        if not remaining.groups:
            return None
        return replace(remaining, seconds=self.seconds * len(remaining.tasks) / max(len(self.tasks), 1))


def run_bundle(
    bundle: Bundle, progress: ProgressCallback | None = None, model: Model | None = None
) -> Iterator[list[TaskResult]]:
    """Compute the tasks of a bundle and yield the results of one solve after another.

    An exception in one solve becomes the error message of its tasks; the other solves are still computed.

    Args:
        bundle: The tasks.
        progress: Called with (n, layer, head) before each solve.
        model: Used instead of loading the model that the bundle names.
    """
    if model is None:
        model = cached_model(bundle.load_arguments, bundle.identity)
    activations = _batched_activations(model, bundle)
    for group in bundle.groups:
        indices = [i for i, task in enumerate(group.tasks) if task is not None]
        batches = [indices] if activations is not None else [[i] for i in indices]
        for batch in batches:
            if progress is not None:
                progress(bundle.n, group.layer, group.head)
            try:
                results = _solve(model, bundle, group, batch, activations)
            except Exception as error:
                message = _error_message(error, bundle.n)
                results = [TaskResult(str(group.tasks[i]), None, message) for i in batch]
            yield results


def _batched_activations(model: Model, bundle: Bundle) -> dict[int, Tensor] | None:
    """Return the inputs of attention, layer -> (samples, n, d), from one forward pass over all samples.

    None where samples are solved one by one: random tokens, maps other than attention and its heads, and models whose
    attention is not available as a `SelfAttention`.
    """
    if bundle.token_ids is None or bundle.map not in ("attention", "head"):
        return None
    layers = [group.layer for group in bundle.groups if group.layer is not None]
    try:
        attention = model.attention(layers[0], bundle.n)
    except InputError:
        return None
    if not isinstance(attention, SelfAttention):
        return None
    return model.activations(torch.tensor(bundle.token_ids), layers)


def _solve(
    model: Model, bundle: Bundle, group: TaskGroup, batch: list[int], activations: dict[int, Tensor] | None
) -> list[TaskResult]:
    """Compute the quantity of a group for a batch of samples, given by their indices in the bundle."""
    if activations is not None and group.layer is not None:
        f, x = _attention_or_head(model.attention(group.layer, bundle.n), group.head), activations[group.layer][batch]
    else:
        (index,) = batch
        f, x = _map_and_input(model, bundle, group, index)
    perturbed = perturbed_mask(torch.tensor([bundle.special[i] for i in batch]), group.tokens)
    if perturbed is not None:
        same_for_all = x.ndim == 2 or bool((perturbed == perturbed[:1]).all())
        perturbed = (perturbed[0] if same_for_all else perturbed).to(x.device)
    token_ids = None if bundle.token_ids is None else torch.tensor([bundle.token_ids[i] for i in batch])
    point = EvaluationPoint(f, x, model, group.layer, token_ids, perturbed, bundle.solver_options)
    values_by_sample = compute_quantity(group.quantity, point)
    mean_norms = torch.linalg.vector_norm(x.double(), dim=-1).mean(-1).reshape(-1).tolist()
    return [
        TaskResult(str(group.tasks[i]), _record(model, bundle, group, i, values, mean_norm, len(batch)))
        for i, values, mean_norm in zip(batch, values_by_sample, mean_norms, strict=True)
    ]


def _map_and_input(model: Model, bundle: Bundle, group: TaskGroup, index: int) -> tuple[Any, Tensor]:
    """Return the map of a group and its input (n, d) for the sample with this index in the bundle."""
    given = None if bundle.features is None else bundle.features[index]
    if bundle.token_ids is not None:
        given = torch.tensor(bundle.token_ids[index])
    if given is not None:
        at = model.map_at(given, group.layer, bundle.map, head=group.head)
        return at.f, at.x
    if group.layer is None:
        raise InputError("expected a text for the map model, got random tokens; measure attention or its heads")
    inputs = NormalisedInputs(model, bundle.solver_options["seed"])
    f = _attention_or_head(inputs.attention(group.layer, bundle.n), group.head)
    return f, inputs.draw(bundle.n, bundle.sample_fields[index]["sample"], group.layer)


def _attention_or_head(attention: Any, head: int | None) -> Any:
    return attention if head is None else attention.head(head)


def _record(
    model: Model,
    bundle: Bundle,
    group: TaskGroup,
    index: int,
    values: dict[str, Any],
    mean_norm: float,
    batch_size: int,
) -> dict[str, Any]:
    """Return the record of the sample with this index in the bundle."""
    token_ids = None if bundle.token_ids is None else bundle.token_ids[index]
    no_word = TOKEN_NAMES.get(bundle.shared_fields["inputs"], "drawn")

    def word_at(position: int) -> str:
        return no_word if token_ids is None else word(model.tokenizer, token_ids[position])

    shares = values.pop("direction_shares", None)  # of each token in the squared norm of the singular vector
    has_words = group.record_words and token_ids is not None
    return make_record(
        "measurement",
        {
            "model": bundle.shared_fields["model"],
            "layer": group.layer,
            "head": group.head,
            "map": bundle.map,
            "n": bundle.n,
            "tokens": group.tokens,
            "quantity": group.quantity,
            **bundle.sample_fields[index],
            **values,
            "mean_norm": mean_norm,
            "batch": batch_size,
            **bundle.shared_fields,
            "task": group.tasks[index],
            "top_tokens": [] if shares is None else top_tokens(shares, word_at),
            "shares": None if shares is None or token_ids is None else all_shares(shares),
            "words": [word_at(position) for position in range(bundle.n)] if has_words else None,
        },
    )


_model_cache: dict[str, Model] = {}  # load arguments -> model; at most one entry


def cached_model(load_arguments: dict[str, Any], identity: dict[str, Any] | None = None) -> Model:
    """Load a model, or return it if it is the last one that this process loaded.

    Args:
        load_arguments: Keyword arguments of `howsmooth.load`.
        identity: What `model_identity` has to return for it.

    Raises:
        InputError: The loaded model differs from `identity`.
    """
    names = [name for name in (load_arguments["name"], load_arguments.get("tokenizer")) if name]
    key = repr((sorted(load_arguments.items()), [file_states(name) for name in names]))
    if key not in _model_cache:
        _model_cache.clear()  # before loading: two models may not fit in memory
        model = load(**load_arguments)
        found, expected = ({}, {}) if identity is None else (model_identity(model), identity)
        for name in expected.keys() - {"unique"}:
            if found.get(name) != expected[name]:
                raise InputError(
                    f"expected {load_arguments['name']!r} as it was when the study was planned, got another {name}; "
                    "bring the same files to every machine"
                )
        _model_cache[key] = model
    return _model_cache[key]


def _error_message(error: Exception, n: int) -> str:
    first_line = (str(error) or type(error).__name__).strip().splitlines()[0]
    out_of_memory = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    if out_of_memory or "allocate" in first_line or "out of memory" in first_line:
        return f"out of memory at n = {n} ({first_line[:120]}); set max_memory, use fewer workers or shorter lengths"
    return first_line if isinstance(error, InputError) else f"{type(error).__name__}: {first_line}"
