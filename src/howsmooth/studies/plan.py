"""From a spec to its tasks: models are loaded, texts are cut, everything is checked, time and memory are estimated."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.jacobian import abstract_jacobian
from howsmooth.errors import InputError
from howsmooth.lipschitz.local import jacobian
from howsmooth.models.identity import model_identity
from howsmooth.models.map_types import MAP_VERSION
from howsmooth.models.memory import free_memory, solver_memory_limit
from howsmooth.questions import find_question
from howsmooth.questions.inputs import (
    FeatureInputs,
    IdInputs,
    Inputs,
    TextInputs,
    chosen_heads,
    chosen_layers,
    fit_lengths,
    inputs_of,
    perturbed_mask,
)
from howsmooth.questions.measure import MeasureSpec, quantity_of
from howsmooth.questions.question import Place, Question, Scope
from howsmooth.questions.spec import (
    EngineSpec,
    ModelChoice,
    ModelSpec,
    Spec,
    load_arguments,
    read_texts,
    refuse_untrusted,
)
from howsmooth.questions.work import Bundle, Samples
from howsmooth.records.provenance import provenance
from howsmooth.spectral.memory import MIN_STORED_VECTORS, MemoryPlan
from howsmooth.spectral.memory import plan as plan_memory
from howsmooth.spectral.operator import restrict
from howsmooth.threads import available_cores

if TYPE_CHECKING:
    from howsmooth.models.model import Model
    from howsmooth.spectral.solver import Solver
    from howsmooth.texts.corpora import Corpus


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
        spec: The spec, with the lengths of this model.
        model_spec: The choice of this model in the spec.
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
        depth: The largest depth of the model, as `Scope` has it.
    """

    spec: Any
    model_spec: ModelChoice
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
    depth: int
    second: tuple[dict[str, Any], dict[str, Any]] | None = None

    @property
    def num_maps(self) -> int:
        """Number of maps: layers times heads."""
        return len(self.layers) * len(self.heads)

    def solver(self, n: int) -> Solver:
        """Return the options of a solve for n tokens."""
        return replace(self.spec.spectral_solver, product_dtype=product_dtype(self.spec, n, self.device))

    def memory(self, n: int) -> int:
        """Return the bytes of a solve with n tokens, scaled from the longest length."""
        return int(self.solve_bytes * n / max(self.spec.lengths))

    def fitted(self, inputs: Inputs, n: int) -> tuple[int, range]:
        """Return the length and the samples that there are for a length of the spec."""
        n, samples = inputs.fitted(n, self.spec.samples) if isinstance(inputs, TextInputs) else (n, self.spec.samples)
        return n, range(samples)

    def batch_size(self, n: int) -> int:
        """Return how many samples of n tokens are solved together; it depends on the spec and the model alone."""
        if self.spec.question != "measure" or not self.spec.is_attention or self.spec.inputs not in ("text", "ids"):
            return 1
        by_tokens = MAX_BATCH_TOKENS["cpu" if self.device == "cpu" else "other"] // n
        by_memory = (self.spec.max_memory or MAX_BATCH_MEMORY) // max(1, self.memory(n))
        return max(1, min(self.spec.samples, by_tokens, by_memory))


@dataclass(frozen=True, eq=False)
class Plan:
    """A spec that is ready to be answered. Places are generated on demand: memory does not grow with their number.

    Attributes:
        spec: The spec.
        planned_models: Its models; none for a question about anything else.
        provenance: Versions and commit, for records.
        costs: One cost model for each planned model; empty if no times were measured.
        model: A model that is in memory already, used instead of loading it.
        second: The same for the model that it is compared with.
    """

    spec: Any
    planned_models: tuple[PlannedModel, ...] = ()
    provenance: dict[str, Any] = field(default_factory=provenance)
    costs: tuple[Any, ...] = ()
    model: Model | None = None
    second: Model | None = None

    @property
    def question(self) -> Question:
        """The question."""
        return find_question(self.spec.question)

    @property
    def engine(self) -> EngineSpec:
        """Where the bundles run."""
        return self.spec.engine

    @property
    def description(self) -> dict[str, Any]:
        """The spec as plain values, for the store."""
        return self.spec.declared()

    @cached_property
    def count(self) -> int:
        """Number of places."""
        if not self.planned_models:
            return sum(1 for _ in self._coordinates())
        return sum(
            sum(1 for _ in self._coordinates(planned, *planned.fitted(inputs, n)))
            for planned in self.planned_models
            for inputs in planned.inputs
            for n in planned.spec.lengths
        )

    @cached_property
    def confidence(self) -> float:
        """Confidence of one record: the spec's, or its share if all intervals hold simultaneously."""
        spec = self.spec
        if not (isinstance(spec, MeasureSpec) and spec.simultaneous):
            return spec.confidence
        certified = sum(quantity_of(quantity).certified for _, quantity in spec.variants)
        return spec.spectral_solver.divided(max(1, self.count // len(spec.variants) * certified)).confidence

    def bundles(self, done: Callable[[list[str]], set[str]] = lambda tasks: set()) -> Iterator[Bundle]:
        """Yield the bundles without finished places: in order in this process, longest first elsewhere.

        Args:
            done: Returns which of some keys have a record.
        """
        for bundle in self._all_bundles():
            remaining = bundle.without(done(bundle.tasks))
            if remaining is not None:
                yield remaining

    def tasks(self) -> Iterator[str]:
        """Yield the keys of all places."""
        return (task for bundle in self._all_bundles() for task in bundle.tasks)

    @property
    def in_process(self) -> bool:
        """Whether the bundles run in this process."""
        return self.spec.engine.name == "local" and self.spec.engine.workers == 0

    def _coordinates(
        self, planned: PlannedModel | None = None, n: int = 0, samples: Sequence[int] = ()
    ) -> Iterable[dict[str, Any]]:
        """Yield the coordinates of the places of one model and length, or of a question about anything else."""
        if planned is not None:
            scope = Scope(planned.layers, planned.heads, n, samples, planned.depth)
            return self.question.places(self.spec, scope)
        return self._grid

    @cached_property
    def _grid(self) -> list[dict[str, Any]]:
        """The coordinates of a question about anything but models; made once, since that may read files."""
        if self.question.grid is None:
            raise InputError(f"expected a model for the question {self.spec.question}, got none; name one")
        return list(self.question.grid(self.spec))

    def _all_bundles(self) -> Iterator[Bundle]:
        if not self.planned_models:
            yield self._bundle_without_model()
            return
        for number, planned in enumerate(self.planned_models):
            lengths = planned.spec.lengths if self.in_process else sorted(planned.spec.lengths, reverse=True)
            for wanted, inputs in product(lengths, planned.inputs):
                n, samples = planned.fitted(inputs, wanted)
                size = len(samples) if self.question.samples_together else planned.batch_size(n)
                seconds = self.costs[number].seconds(n) if self.costs else 1.0
                for first in range(0, len(samples), size):
                    yield self._bundle(planned, inputs, n, samples[first : first + size], seconds)

    def _bundle_without_model(self) -> Bundle:
        spec = self.spec
        prefix = json.dumps({"version": MAP_VERSION, "question": spec.question, **spec.determining()}, sort_keys=True)
        return Bundle(
            question=spec.question,
            spec=spec,
            places=tuple(
                Place(at, _hash(f"{prefix}|{json.dumps(at, sort_keys=True, default=str)}"))
                for at in self._coordinates()
            ),
            fields={"study": spec.name, "seed": spec.seed, **self.provenance},
        )

    def _bundle(
        self, planned: PlannedModel, inputs: Inputs, n: int, samples: Sequence[int], seconds_per_place: float
    ) -> Bundle:
        spec, chunks = self.spec, {sample: inputs.chunk(n, sample) for sample in samples}
        solver = replace(planned.solver(n), confidence=self.confidence)
        has_ids = isinstance(inputs, (TextInputs, IdInputs))
        shared = {
            **self._model_fields(planned),
            **inputs.run_fields,
            **inputs.length_fields(n),
            "product_dtype": _dtype_name(solver.product_dtype),
        }
        hashed = {
            "version": spec.map_type.version,
            "question": spec.question,
            "model": planned.identity,
            "name": planned.model_spec.label,
            "dtype": planned.dtype,
            "device": planned.device,
            "inputs": inputs.run_fields,
            "n": n,
            **spec.determining(),
            **({} if planned.second is None else {"second": planned.second[1]}),
            "map": spec.map_name,
            "confidence": solver.confidence,
            "product_dtype": shared["product_dtype"],
        }
        prefix = json.dumps(hashed, sort_keys=True)  # once for all places of the bundle
        described: dict[int, dict[str, Any]] = {sample: {} for sample in samples}
        if isinstance(inputs, FeatureInputs):
            described = {sample: {"input_sha256": inputs.sha256(sample)} for sample in samples}
        digests = {
            sample: chunk.digest if has_ids else described[sample].get("input_sha256", "")
            for sample, chunk in chunks.items()
        }
        places = [
            Place(
                at,
                _hash(
                    f"{prefix}|{json.dumps(at, sort_keys=True, default=str)}|"
                    + (digests[at["sample"]] if "sample" in at else ",".join(digests.values()))
                ),
            )
            for at in self._coordinates(planned, n, samples)
        ]
        return Bundle(
            question=spec.question,
            spec=spec,
            places=tuple(places),
            fields=shared,
            samples=Samples(
                load_arguments=planned.load_arguments,
                identity=planned.identity,
                n=n,
                numbers=tuple(samples),
                token_ids=tuple(tuple(chunk.ids.tolist()) for chunk in chunks.values()) if has_ids else None,
                special=tuple(tuple(chunk.special.tolist()) for chunk in chunks.values()),
                fields=tuple(
                    {"sample": sample, "start": chunk.start, "document": chunk.document, **described[sample]}
                    for sample, chunk in chunks.items()
                ),
                features=inputs.features[list(samples)] if isinstance(inputs, FeatureInputs) else None,
                second=planned.second,
            ),
            solver=solver,
            first=places[0].at if places else {},
            seconds=seconds_per_place * len(places),
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
            **({} if "tokens" in spec.varied else {"tokens": spec.tokens[0]}),
            "tol": spec.tol,
            "stop": spec.stop,
            "max_steps": spec.max_steps,
            "simultaneous": spec.confidence if getattr(spec, "simultaneous", False) else None,
            "device": planned.device,
            "model_dtype": planned.dtype,
            **self.provenance,
        }

    def seconds(self) -> float:
        """Return the estimated time of all places on one worker."""
        return sum(bundle.seconds for bundle in self._all_bundles())

    @property
    def worker_memory(self) -> int:
        """Upper bound on the bytes of one worker: the process, the largest model and the largest solve."""
        planned_models = self.planned_models
        return PROCESS_MEMORY + max((m.weight_bytes + m.solve_bytes for m in planned_models), default=0)

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
            where = f" at n = {max(self.spec.lengths)}" if isinstance(self.spec, ModelSpec) else ""
            raise InputError(
                f"expected {self.worker_memory / 2**30:.1f} GiB of free memory for one worker{where}, got "
                f"{(free or 0) / 2**30:.1f} GiB; set max_memory, use shorter lengths, a narrower dtype or a smaller "
                "model"
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
    if not isinstance(spec, ModelSpec):
        return Plan(spec)
    corpora = read_texts(spec)
    planned_models, costs = [], []
    for model_spec in chain.from_iterable(series.members() for series in spec.models):
        if log is not None:
            log(f"loading {model_spec.label}")
        arguments = load_arguments(spec, model_spec)
        model = _load(arguments)
        fitted, notes = fit_lengths(model, corpora, spec)
        if log is not None:
            for note in notes:
                log(f"note: {note}")
        planned = plan_model(fitted, model_spec, model, corpora, arguments, second=_second_of(spec, arguments))
        planned_models.append(planned)
        if timed and spec.question == "measure":
            from howsmooth.studies.costs import CostModel

            costs.append(CostModel(model, planned))
            costs[-1].release()
        for inputs in planned.inputs:  # a plan keeps no model in memory
            inputs.release()
    return Plan(spec, tuple(planned_models), costs=tuple(costs))


def prepare_model(
    spec: Spec, model: Model, corpus: Corpus | None = None, *, from_files: bool = False, second: Model | None = None
) -> Plan:
    """Prepare a spec for a model that is in memory already.

    Args:
        spec: The spec; its first model is the one that is given.
        model: The model.
        corpus: The text, instead of the spec's.
        from_files: Whether the model is as `howsmooth.load` read it, so that its files identify it. A model that may
            have been changed since has records that no other plan uses again.
        second: The model that it is compared with, if that is in memory, too; by default the spec's.

    Returns:
        A plan that runs in this process.

    Example:
        >>> from howsmooth.models import load
        >>> from howsmooth.studies import spec_of
        >>> plan = prepare_model(spec_of({"layers": [0, 3], "lengths": [8, 16], "samples": 2}), load("minilm"))
        >>> plan.count, plan.in_process
        (8, True)
    """
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"name": "local", "workers": 0})})
    if not isinstance(spec, ModelSpec):
        raise InputError(f"expected a question about models, got {spec.question}; use prepare")
    corpora = () if spec.inputs != "text" else (corpus,) if corpus is not None else read_texts(spec)
    identity = model_identity(model, from_files=from_files)
    if second is None:
        other = _second_of(spec, load_arguments(spec, spec.models[0]))
    else:
        other = {"name": second.name}, model_identity(second, from_files=False)
    planned = plan_model(spec, spec.models[0], model, corpora, {"name": model.name}, identity, other)
    return Plan(spec, (planned,), model=model, second=second)


def _second_of(spec: Any, first: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return the load arguments and the identity of the model that a first one is compared with."""
    if spec.second is None:
        return None
    from howsmooth.models.loading import cached_model

    arguments = load_arguments(spec, spec.second)
    return arguments, model_identity(cached_model(arguments, beside=first))


def plan_model(
    spec: Any,
    model_spec: ModelChoice,
    model: Model,
    corpora: tuple[Corpus, ...],
    arguments: dict[str, Any],
    identity: dict[str, Any] | None = None,
    second: tuple[dict[str, Any], dict[str, Any]] | None = None,
) -> PlannedModel:
    """Resolve a spec against one model and its texts, so that errors are found before anything is computed."""
    layers, heads = chosen_layers(model, spec, model_spec.layers), chosen_heads(model, spec)
    question = find_question(spec.question)
    make = question.inputs or inputs_of
    inputs = tuple(make(model, corpus, spec) for corpus in corpora or (None,))
    if spec.question == "measure" and spec.is_attention:
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
        layers=layers if spec.per_layer and spec.map_type.per_layer else (None,),
        heads=heads,
        inputs=inputs,
        solve_bytes=solve_bytes,
        depth=question.deepest(model, inputs[0].chunk(min(spec.lengths), 0)) if question.deepest else model.layers,
        second=second,
    )


def solve_memory(model: Model, inputs: Inputs, spec: ModelSpec, layer: int) -> MemoryPlan:
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
    limit = solver_memory_limit(model.device, spec.max_memory)
    try:
        return plan_memory(derivative, solver=spec.spectral_solver, max_memory=limit)
    except InputError:
        if limit is None:
            raise
        # The solver reports bytes of vectors; here the error can name lengths and options.
        unlimited = plan_memory(derivative, solver=spec.spectral_solver, max_memory=None)
        least = replace(unlimited, stored=MIN_STORED_VECTORS).total / 2**20
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


def product_dtype(spec: ModelSpec, n: int, device: str) -> torch.dtype | None:
    """Return the `product_dtype` of `local_lipschitz` at n tokens.

    "auto" takes float32 for long inputs on a GPU, where the float64 reference would take longer than the solve.
    """
    if not spec.is_attention or spec.product_dtype == "float64":
        return None
    if spec.product_dtype == "auto":
        return torch.float32 if device.startswith("cuda") and n > MAX_REFERENCE_LENGTH else None
    return getattr(torch, spec.product_dtype)


def _dtype_name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _load(arguments: dict[str, Any]) -> Model:
    from howsmooth.models.loading import cached_model  # transformers takes seconds, and not all have a model

    try:
        return cached_model(arguments)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InputError(
            f"expected enough memory to load {arguments['name']!r}, got too little ({error}); choose a "
            "smaller model or a narrower dtype"
        ) from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
