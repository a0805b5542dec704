"""From a spec to its tasks: models are loaded, texts are cut, everything is checked, time and memory are estimated."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from typing import Any

import torch

from howsmooth.attention import SelfAttention, abstract_jacobian
from howsmooth.errors import InputError
from howsmooth.lipschitz import jacobian
from howsmooth.models import Model
from howsmooth.models.identity import model_identity
from howsmooth.models.memory import free_memory, solver_memory_limit
from howsmooth.spectral import MemoryPlan, restrict
from howsmooth.spectral import plan as plan_memory
from howsmooth.spectral.memory import MIN_STORED_VECTORS
from howsmooth.studies.inputs import (
    FeatureInputs,
    IdInputs,
    Inputs,
    TextInputs,
    chosen_heads,
    chosen_layers,
    inputs_of,
    perturbed_mask,
)
from howsmooth.studies.provenance import provenance
from howsmooth.studies.spec import QUANTITIES, EngineSpec, ModelSpec, Spec, read_texts, refuse_untrusted
from howsmooth.studies.threads import available_cores
from howsmooth.studies.worker import Bundle, TaskGroup, cached_model
from howsmooth.texts.corpora import Corpus

# Part of every task's hash. Raise it when the same configuration gives another number; a test asks whenever the code
# that computes numbers changes (tests/studies/test_map_version.py).
MAP_VERSION = 5
PROCESS_MEMORY = 450 << 20  # bytes of a process that has imported torch and transformers
MAX_REFERENCE_LENGTH = 4096  # on a GPU, product_dtype "auto" uses a float64 reference up to this many tokens
# Solving several short samples at once saves the overhead of small products; long samples gain nothing from it.
# MiniLM, 8 samples, one run on a busy machine: 1.6 to 2 times faster at n = 16, even at 64, slower from 128 on. The
# limit for other devices has not been tuned; it is larger because a GPU needs more work to be busy.
MAX_BATCH_TOKENS = {"cpu": 256, "other": 16384}
MAX_BATCH_MEMORY = 2 << 30  # bytes of a batch where the spec sets no limit


@dataclass(frozen=True, eq=False)
class PlannedModel:
    """One model of a spec and its inputs, with what was found out by loading it once.

    Attributes:
        spec: The whole spec.
        model_spec: The part of the spec about this model.
        load_arguments: Keyword arguments of `howsmooth.load`.
        identity: As `model_identity` returns it.
        source: Where the weights come from, for records.
        device: Device of the model.
        dtype: Dtype of the model, without "torch.".
        width: Width d of a token.
        weight_bytes: Memory of the parameters.
        layers: The chosen layers; (None,) for the whole model.
        heads: The chosen heads; (None,) for whole layers.
        inputs: The inputs, one for each text.
        solve_bytes: Memory of one solve at the longest length.
    """

    spec: Spec
    model_spec: ModelSpec
    load_arguments: dict[str, Any]
    identity: dict[str, Any]
    source: dict[str, Any]
    device: str
    dtype: str
    width: int
    weight_bytes: int
    layers: tuple[int | None, ...]
    heads: tuple[int | None, ...]
    inputs: tuple[Inputs, ...]
    solve_bytes: int

    @property
    def num_maps(self) -> int:
        """Number of maps: layers times heads."""
        return len(self.layers) * len(self.heads)

    def solver_options(self, n: int, confidence: float) -> dict[str, Any]:
        """Return the options of `local_lipschitz` for n tokens."""
        return {
            "tol": self.spec.tol,
            "confidence": confidence,
            "max_memory": self.spec.max_memory,
            "stop": self.spec.stop,
            "max_steps": self.spec.max_steps,
            "product_dtype": product_dtype(self.spec, n, self.device),
            "seed": self.spec.seed,
        }

    def memory(self, n: int) -> int:
        """Return the bytes of a solve with n tokens, scaled from the longest length."""
        return int(self.solve_bytes * n / max(self.spec.lengths))

    def batch_size(self, n: int) -> int:
        """Return how many samples of n tokens are solved together; it depends on the spec and the model alone."""
        if self.spec.kind not in ("attention", "head") or self.spec.inputs not in ("text", "ids"):
            return 1
        by_tokens = MAX_BATCH_TOKENS["cpu" if self.device == "cpu" else "other"] // n
        by_memory = (self.spec.max_memory or MAX_BATCH_MEMORY) // max(1, self.memory(n))
        return max(1, min(self.spec.samples, by_tokens, by_memory))


@dataclass(frozen=True, eq=False)
class Plan:
    """A spec that is ready to run. Tasks are generated on demand: memory does not grow with their number.

    Attributes:
        spec: The spec.
        planned_models: Its models.
        provenance: Versions and commit, for records.
        costs: One cost model for each planned model; empty if no times were measured.
        model: A model that is in memory already, used instead of loading it.
    """

    spec: Spec
    planned_models: tuple[PlannedModel, ...]
    provenance: dict[str, Any] = field(default_factory=provenance)
    costs: tuple[Any, ...] = ()
    model: Model | None = None

    @property
    def engine(self) -> EngineSpec:
        """Where the tasks run."""
        return self.spec.engine

    @property
    def description(self) -> dict[str, Any]:
        """The spec as plain values, for the store."""
        return self.spec.model_dump(mode="json")

    @property
    def count(self) -> int:
        """Number of tasks."""
        return self._num_inputs * len(self._variants)

    @property
    def confidence(self) -> float:
        """Confidence of one record: the spec's, or its share if all intervals hold simultaneously."""
        if not self.spec.simultaneous:
            return self.spec.confidence
        certified = sum(QUANTITIES[quantity].certified for _, quantity in self._variants)
        return 1 - (1 - self.spec.confidence) / max(1, self._num_inputs * certified)

    @cached_property
    def _variants(self) -> list[tuple[str, str]]:
        """Combinations of (tokens, quantity); some quantities are defined for tokens = "all" alone."""
        return [
            (tokens, quantity)
            for tokens, quantity in product(self.spec.tokens, self.spec.quantities)
            if tokens == "all" or not QUANTITIES[quantity].every_token
        ]

    @property
    def _num_inputs(self) -> int:
        """Number of pairs of a map and an input."""
        maps_and_texts = sum(planned.num_maps * len(planned.inputs) for planned in self.planned_models)
        return maps_and_texts * len(self.spec.lengths) * self.spec.samples

    def bundles(self, done: Callable[[list[str]], set[str]] = lambda tasks: set()) -> Iterator[Bundle]:
        """Yield the bundles without finished tasks: in order in this process, longest first elsewhere.

        Args:
            done: Returns which of some tasks are finished.
        """
        for bundle in self._all_bundles():
            remaining = bundle.without(done(bundle.tasks))
            if remaining is not None:
                yield remaining

    def tasks(self) -> Iterator[str]:
        """Yield the hashes of all tasks."""
        return (task for bundle in self._all_bundles() for task in bundle.tasks)

    def _all_bundles(self) -> Iterator[Bundle]:
        lengths = self.spec.lengths if self.in_process else sorted(self.spec.lengths, reverse=True)
        for number, planned in enumerate(self.planned_models):
            for n, inputs in product(lengths, planned.inputs):
                size = planned.batch_size(n)
                seconds = self.costs[number].seconds(n) if self.costs else 1.0
                for first in range(0, self.spec.samples, size):
                    samples = range(first, min(first + size, self.spec.samples))
                    yield self._bundle(planned, inputs, n, samples, seconds)

    @property
    def in_process(self) -> bool:
        """Whether the tasks run in this process."""
        return self.spec.engine.kind == "local" and self.spec.engine.workers == 0

    def _bundle(
        self, planned: PlannedModel, inputs: Inputs, n: int, samples: Iterable[int], seconds_per_task: float
    ) -> Bundle:
        spec, samples = self.spec, list(samples)
        chunks = [(sample, inputs.chunk(n, sample)) for sample in samples]
        solver_options = planned.solver_options(n, self.confidence)
        has_ids = isinstance(inputs, (TextInputs, IdInputs))
        shared_fields = {
            **self._model_fields(planned),
            **inputs.run_fields,
            **inputs.length_fields(n),
            "product_dtype": _dtype_name(solver_options["product_dtype"]),
        }
        hashed = {
            "version": MAP_VERSION,
            "model": planned.identity,
            "name": planned.model_spec.label,
            "dtype": planned.dtype,
            "device": planned.device,
            "inputs": inputs.run_fields,
            "cutting": spec.cutting,
            "map": spec.kind,
            "n": n,
            "special_tokens": spec.special_tokens,
            **{key: value for key, value in solver_options.items() if key not in ("max_memory", "product_dtype")},
            "product_dtype": shared_fields["product_dtype"],
        }
        prefix = json.dumps(hashed, sort_keys=True)  # once for all tasks of the bundle
        input_fields: list[dict[str, Any]] = [{} for _ in chunks]
        if isinstance(inputs, FeatureInputs):
            input_fields = [{"input_sha256": inputs.sha256(sample)} for sample in samples]
        digests = [
            chunk.digest if has_ids else fields.get("input_sha256", "")
            for (_, chunk), fields in zip(chunks, input_fields, strict=True)
        ]
        groups = tuple(
            TaskGroup(
                layer,
                head,
                tokens,
                quantity,
                tuple(
                    _hash(f"{prefix}|{layer}|{head}|{tokens}|{quantity}|{sample}|{digest}")
                    for (sample, _), digest in zip(chunks, digests, strict=True)
                ),
                record_words=number == 0,
            )
            for number, (layer, head, (tokens, quantity)) in enumerate(
                product(planned.layers, planned.heads, self._variants)
            )
        )
        return Bundle(
            load_arguments=planned.load_arguments,
            identity=planned.identity,
            map=spec.kind,
            n=n,
            token_ids=tuple(tuple(chunk.ids.tolist()) for _, chunk in chunks) if has_ids else None,
            features=inputs.features[samples] if isinstance(inputs, FeatureInputs) else None,
            special=tuple(tuple(chunk.special.tolist()) for _, chunk in chunks),
            sample_fields=tuple(
                {"sample": sample, "start": chunk.start, "document": chunk.document, **fields}
                for (sample, chunk), fields in zip(chunks, input_fields, strict=True)
            ),
            groups=groups,
            solver_options=solver_options,
            shared_fields=shared_fields,
            seconds=seconds_per_task * len(groups) * len(chunks),
        )

    def _model_fields(self, planned: PlannedModel) -> dict[str, Any]:
        """Return the fields that all records of a model share, so that each can be reproduced by itself."""
        spec, model_spec = self.spec, planned.model_spec
        return {
            "study": spec.name,
            "model": model_spec.label,
            "series": model_spec.series,
            "checkpoint": model_spec.checkpoint,
            "weights": planned.source.get("weights"),
            "source": planned.source,
            "cutting": spec.cutting,
            "special_tokens": spec.special_tokens,
            "tol": spec.tol,
            "stop": spec.stop,
            "max_steps": spec.max_steps,
            "simultaneous": spec.confidence if spec.simultaneous else None,
            "device": planned.device,
            "model_dtype": planned.dtype,
            **self.provenance,
        }

    def seconds(self) -> float:
        """Return the estimated time of all tasks on one worker."""
        return (
            sum(
                cost.seconds(n) * planned.num_maps * len(planned.inputs)
                for cost, planned in zip(self.costs, self.planned_models, strict=True)
                for n in self.spec.lengths
            )
            * self.spec.samples
            * len(self._variants)
        )

    @property
    def worker_memory(self) -> int:
        """Upper bound on the bytes of one worker: the process, the largest model and the largest solve."""
        return PROCESS_MEMORY + max(planned.weight_bytes + planned.solve_bytes for planned in self.planned_models)

    def workers_and_threads(self) -> tuple[int, int]:
        """Return the number of processes on this machine, and the threads of each.

        Raises:
            InputError: Not even one worker fits in memory.
        """
        engine, cores = self.spec.engine, available_cores()
        free = free_memory()
        fitting = cores if free is None else int(0.9 * free // self.worker_memory)
        on_gpu = any(planned.device != "cpu" for planned in self.planned_models)
        if fitting < 1 and not on_gpu:
            raise InputError(
                f"expected {self.worker_memory / 2**30:.1f} GiB of free memory for one worker at n = "
                f"{max(self.spec.lengths)}, got {(free or 0) / 2**30:.1f} GiB; set max_memory, use shorter lengths, a "
                "narrower dtype or a smaller model"
            )
        workers = engine.workers if engine.workers is not None else 1 if on_gpu else max(1, min(cores, fitting))
        return workers, engine.threads or max(1, cores // max(1, workers))


def prepare(
    spec: Spec,
    *,
    log: Callable[[str], None] | None = None,
    timed: bool = True,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Plan:
    """Load each model of a spec once, cut the texts for it, and check everything that can be checked.

    Args:
        spec: The spec.
        log: Called with a line for each model that is loaded.
        timed: Whether solves are timed; without it the plan has estimates of memory but not of time.
        trust_remote_code: Allow models that run code of their own. A spec may come from a stranger, so that both the
            spec and the caller have to allow it.
        allow_pickle: The same for weights that are not safetensors.

    Raises:
        InputError: A model cannot be loaded, a text is too short, or memory does not suffice.

    Example:
        >>> from howsmooth.studies import spec_of
        >>> plan = prepare(spec_of({"layers": [0, 3], "lengths": [8, 16], "samples": 2}), timed=False)
        >>> plan.count, len(list(plan.tasks()))
        (8, 8)
    """
    refuse_untrusted(spec, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    corpora = read_texts(spec)
    planned_models, costs = [], []
    for model_spec in chain.from_iterable(series.members() for series in spec.models):
        if log is not None:
            log(f"loading {model_spec.name}")
        arguments = load_arguments(spec, model_spec)
        model = _load(arguments)
        planned = plan_model(spec, model_spec, model, corpora, arguments)
        planned_models.append(planned)
        if timed:
            from howsmooth.studies.costs import CostModel

            costs.append(CostModel(model, planned))
            costs[-1].release()
        for inputs in planned.inputs:  # a plan keeps no model in memory
            inputs.release()
    return Plan(spec, tuple(planned_models), costs=tuple(costs))


def prepare_model(spec: Spec, model: Model, corpus: Corpus | None = None, *, from_files: bool = False) -> Plan:
    """Prepare a spec for a model that is in memory already.

    Args:
        spec: The spec; its first model is the one that is given.
        model: The model.
        corpus: The text, instead of the spec's.
        from_files: Whether the model is as `howsmooth.load` read it, so that its files identify it. A model that may
            have been changed since has records that no other plan uses again.

    Returns:
        A plan that runs in this process.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> plan = prepare_model(spec_of({"layers": [0, 3], "lengths": [8, 16], "samples": 2}), load("minilm"))
        >>> plan.count, plan.in_process
        (8, True)
    """
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"kind": "local", "workers": 0})})
    corpora = () if spec.inputs != "text" else (corpus,) if corpus is not None else read_texts(spec)
    identity = model_identity(model, from_files=from_files)
    planned = plan_model(spec, spec.models[0], model, corpora, {"name": model.name}, identity)
    return Plan(spec, (planned,), model=model)


def load_arguments(spec: Spec, model_spec: ModelSpec) -> dict[str, Any]:
    """Return the keyword arguments of `howsmooth.load` for one model of a spec."""
    return {
        "name": ("random:" if model_spec.weights == "random" else "") + spec.path(model_spec.name),
        "dtype": model_spec.dtype,
        "device": model_spec.device,
        "revision": model_spec.revision,
        "trust_remote_code": model_spec.trust_remote_code,
        "allow_pickle": model_spec.allow_pickle,
        "seed": spec.seed if model_spec.seed is None else model_spec.seed,
        "tokenizer": model_spec.tokenizer and spec.path(model_spec.tokenizer),
        "causal": model_spec.causal,
        "part": model_spec.part or ("vision" if spec.inputs == "images" else None),
    }


def plan_model(
    spec: Spec,
    model_spec: ModelSpec,
    model: Model,
    corpora: tuple[Corpus, ...],
    arguments: dict[str, Any],
    identity: dict[str, Any] | None = None,
) -> PlannedModel:
    """Resolve a spec against one model and its texts, so that errors are found before anything is computed."""
    layers, heads = chosen_layers(model, spec, model_spec.layers), chosen_heads(model, spec)
    inputs = tuple(inputs_of(model, corpus, spec) for corpus in corpora or (None,))
    if spec.kind in ("attention", "head"):
        solve_bytes = solve_memory(model, inputs[0], spec, layers[0]).total
    else:  # a guess: maps that are differentiated automatically have no memory plan
        solve_bytes = 200 * max(spec.lengths) * model.width * 8
    return PlannedModel(
        spec=spec,
        model_spec=model_spec,
        load_arguments=arguments,
        identity=model_identity(model) if identity is None else identity,
        source=dict(model.source),
        device=str(model.device),
        dtype=_dtype_name(model.dtype) or "",
        width=model.width,
        weight_bytes=sum(p.numel() * p.element_size() for p in model.parameters()),
        layers=(None,) if spec.kind == "model" else layers,
        heads=heads,
        inputs=inputs,
        solve_bytes=solve_bytes,
    )


def solve_memory(model: Model, inputs: Inputs, spec: Spec, layer: int) -> MemoryPlan:
    """Return the memory plan of the largest solve.

    All layers of a model have the same shape, so that one layer at the longest length represents them.

    Raises:
        InputError: The solve does not fit into `max_memory`, or into the free memory of a GPU.
    """
    n = max(spec.lengths)
    chunk, attention = inputs.chunk(n, 0), inputs.attention(layer, n)
    head = chosen_heads(model, spec)[0]
    attention = attention if head is None else attention.head(head)
    if isinstance(attention, SelfAttention):
        derivative = abstract_jacobian(attention, n, product_dtype(spec, n, str(model.device)))
    else:
        derivative = jacobian(attention, inputs.tokens(chunk, 0, [layer])[layer])
    perturbed = perturbed_mask(chunk.special, spec.tokens[0])
    if perturbed is not None:
        width = derivative.shape[1] // n
        positions = perturbed.nonzero().flatten()
        columns = (positions[:, None] * width + torch.arange(width)).flatten().to(model.device)
        derivative = restrict(derivative, cols=columns)
    options: dict[str, Any] = {
        "max_steps": spec.max_steps,
        "tol": spec.tol,
        "confidence": spec.confidence,
        "stop": spec.stop,
    }
    limit = solver_memory_limit(model.device, spec.max_memory)
    try:
        return plan_memory(derivative, limit, **options)
    except InputError:
        if limit is None:
            raise
        # The solver reports bytes of vectors; here the error can name lengths and options.
        least = replace(plan_memory(derivative, **options), stored=MIN_STORED_VECTORS).total / 2**20
        what = "max_memory" if limit == spec.max_memory else f"free memory on {model.device}"
        remedy = (
            "allow more memory (a larger --max-memory) or"
            if limit == spec.max_memory
            else "free some, use --product-dtype bfloat16 --stop residual, which has no float64 reference, or"
        )
        raise InputError(
            f"expected {what} of at least {math.ceil(10 * least) / 10:.1f} MiB for n = {n}, "
            f"got {round(limit / 2**20, 3):g} MiB; {remedy} ask for shorter lengths (--lengths)"
        ) from None


def product_dtype(spec: Spec, n: int, device: str) -> torch.dtype | None:
    """Return the `product_dtype` of `local_lipschitz` at n tokens.

    "auto" takes float32 for long inputs on a GPU, where the float64 reference would take longer than the solve.
    """
    if spec.kind not in ("attention", "head") or spec.product_dtype == "float64":
        return None
    if spec.product_dtype == "auto":
        return torch.float32 if device.startswith("cuda") and n > MAX_REFERENCE_LENGTH else None
    return getattr(torch, spec.product_dtype)


def _dtype_name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _load(arguments: dict[str, Any]) -> Model:
    try:
        return cached_model(arguments)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InputError(
            f"expected enough memory to load {arguments['name']!r}, got too little ({error}); choose a "
            "smaller model or a narrower dtype"
        ) from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
