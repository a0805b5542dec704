"""From a spec to its tasks: models looked at, texts cut, everything checked, time and memory known beforehand."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import torch

from howsmooth.attention import SelfAttention, abstract_jacobian
from howsmooth.errors import InputError
from howsmooth.lipschitz import jacobian
from howsmooth.models import Model
from howsmooth.spectral import MemoryPlan, restrict
from howsmooth.spectral import plan as plan_memory
from howsmooth.spectral.memory import MIN_STORED_VECTORS
from howsmooth.studies.inputs import Inputs, TextInputs, chosen_heads, chosen_layers, inputs_of, moved_tokens
from howsmooth.studies.memory import free_memory, solver_limit
from howsmooth.studies.provenance import provenance
from howsmooth.studies.spec import QUANTITIES, ModelSpec, Spec, refuse_untrusted
from howsmooth.studies.worker import Bundle, Solve, identity_of, loaded_model
from howsmooth.texts.corpora import Corpus, read_corpus

TASK_FORM = 2  # part of every task's hash: raise it when the same configuration comes to mean another number
BASE_MEMORY = 450 << 20  # of a process with torch and transformers in it
LONGEST_REFERENCE = 4096  # tokens up to which rounding on a GPU is measured against float64, unless asked otherwise
# Solving several short samples at once saves the overhead of small products; long ones only wait for each other.
# MiniLM, 8 samples, one run on a busy machine: 1.6 to 2 times faster at n = 16, even at 64, slower from 128 on. What
# suits a GPU has not been measured; there are more tokens at once because it has more to keep busy.
TOKENS_AT_ONCE = {"cpu": 256, "other": 16384}
BATCH_MEMORY = 2 << 30  # of a batch where the spec sets no limit


@dataclass(frozen=True, eq=False)
class Subject:
    """One model of a spec: what was learnt by loading it once, and its inputs."""

    spec: Spec
    model_spec: ModelSpec
    loading: dict[str, Any]
    identity: dict[str, Any]
    source: dict[str, Any]
    device: str
    dtype: str
    width: int
    weights: int  # bytes
    layers: tuple[int | None, ...]
    heads: tuple[int | None, ...]
    inputs: tuple[Inputs, ...]  # one for each text
    solve_bytes: int  # of one solve at the longest length

    @property
    def maps(self) -> int:
        return len(self.layers) * len(self.heads)

    def solver(self, n: int, confidence: float) -> dict[str, Any]:
        """Return the options of `local_lipschitz` at a length."""
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
        """Return the bytes of a solve of n tokens, in proportion to the longest."""
        return int(self.solve_bytes * n / max(self.spec.lengths))

    def batch(self, n: int) -> int:
        """Return how many samples of n tokens are solved together. Every machine agrees: the spec alone decides."""
        if self.spec.kind not in ("attention", "head") or self.spec.inputs == "normalised":
            return 1
        at_once = TOKENS_AT_ONCE["cpu" if self.device == "cpu" else "other"] // n
        memory = (self.spec.max_memory or BATCH_MEMORY) // max(1, self.memory(n))
        return max(1, min(self.spec.samples, at_once, memory))


@dataclass(frozen=True, eq=False)
class Plan:
    """A spec that is ready to run. Tasks are generated, never held: memory does not grow with their number."""

    spec: Spec
    subjects: tuple[Subject, ...]
    facts: dict[str, Any] = field(default_factory=provenance)
    costs: tuple[Any, ...] = ()  # one cost model for each subject, where times are wanted
    model: Model | None = None  # that is in memory already, in place of loading

    @property
    def count(self) -> int:
        """How many tasks there are."""
        return sum(s.maps * len(s.inputs) for s in self.subjects) * self._per_map(self._variants)

    @property
    def confidence(self) -> float:
        """Of one record: the spec's, or its share of it if all are to hold together."""
        if not self.spec.simultaneous:
            return self.spec.confidence
        certified = sum(QUANTITIES[quantity].certified for _, quantity in self._variants)
        total = sum(s.maps * len(s.inputs) for s in self.subjects) * self._per_map([None] * certified)
        return 1 - (1 - self.spec.confidence) / max(1, total)

    @cached_property
    def _variants(self) -> list[tuple[str, str]]:
        """Which tokens move, of which quantity; some move them all and have no other variant."""
        return [
            (tokens, quantity)
            for tokens, quantity in product(self.spec.tokens, self.spec.quantities)
            if tokens == "all" or not QUANTITIES[quantity].every_token
        ]

    def _per_map(self, variants: list[Any]) -> int:
        return len(self.spec.lengths) * self.spec.samples * len(variants)

    def bundles(self, done: Callable[[list[str]], set[str]] = lambda tasks: set()) -> Iterator[Bundle]:
        """Yield all bundles less the tasks that `done` knows: in order in this process, longest first elsewhere."""
        for whole in self._whole():
            left = whole.without(done(whole.tasks))
            if left is not None:
                yield left

    def tasks(self) -> Iterator[str]:
        return (task for bundle in self._whole() for task in bundle.tasks)

    def _whole(self) -> Iterator[Bundle]:
        lengths = self.spec.lengths if self.in_process else sorted(self.spec.lengths, reverse=True)
        for number, subject in enumerate(self.subjects):
            for n, inputs in product(lengths, subject.inputs):
                size = subject.batch(n)
                seconds = self.costs[number].seconds(n) if self.costs else 1.0
                for first in range(0, self.spec.samples, size):
                    samples = range(first, min(first + size, self.spec.samples))
                    yield self._bundle(subject, inputs, n, samples, seconds)

    @property
    def in_process(self) -> bool:
        return self.spec.engine.kind == "local" and self.spec.engine.workers == 0

    def _bundle(self, subject: Subject, inputs: Inputs, n: int, samples: Iterable[int], seconds: float) -> Bundle:
        spec = self.spec
        chunks = [(sample, inputs.chunk(n, sample)) for sample in samples]
        solver = subject.solver(n, self.confidence)
        read = isinstance(inputs, TextInputs)
        facts = {
            **self._facts(subject),
            **inputs.run_facts,
            **inputs.facts(n),
            "product_dtype": _name(solver["product_dtype"]),
        }
        shared = {
            "form": TASK_FORM,
            "model": subject.identity,
            "name": subject.model_spec.label,
            "dtype": subject.dtype,
            "device": subject.device,
            "inputs": inputs.run_facts,
            "cutting": spec.cutting,
            "map": spec.kind,
            "n": n,
            "special_tokens": spec.special_tokens,
            **{key: value for key, value in solver.items() if key not in ("max_memory", "product_dtype")},
            "product_dtype": facts["product_dtype"],
        }
        resolved = json.dumps(shared, sort_keys=True)  # once for all the tasks of the bundle
        digests = [chunk.digest if read else "" for _, chunk in chunks]
        solves = tuple(
            Solve(
                layer,
                head,
                tokens,
                quantity,
                tuple(
                    _hash(f"{resolved}|{layer}|{head}|{tokens}|{quantity}|{sample}|{digest}")
                    for (sample, _), digest in zip(chunks, digests, strict=True)
                ),
                words=number == 0,
            )
            for number, (layer, head, (tokens, quantity)) in enumerate(
                product(subject.layers, subject.heads, self._variants)
            )
        )
        return Bundle(
            loading=subject.loading,
            identity=subject.identity,
            map=spec.kind,
            n=n,
            ids=tuple(tuple(chunk.ids.tolist()) for _, chunk in chunks) if read else None,
            special=tuple(tuple(chunk.special.tolist()) for _, chunk in chunks),
            places=tuple(
                {"sample": sample, "start": chunk.start, "document": chunk.document} for sample, chunk in chunks
            ),
            solves=solves,
            solver=solver,
            facts=facts,
            cost=seconds * len(solves) * len(chunks),
        )

    def _facts(self, subject: Subject) -> dict[str, Any]:
        """What every record of a model says, so that each can be read, and made again, alone."""
        spec, own = self.spec, subject.model_spec
        return {
            "study": spec.name,
            "model": own.label,
            "series": own.series,
            "checkpoint": own.checkpoint,
            "weights": subject.source.get("weights"),
            "source": subject.source,
            "cutting": spec.cutting,
            "special_tokens": spec.special_tokens,
            "tol": spec.tol,
            "stop": spec.stop,
            "max_steps": spec.max_steps,
            "simultaneous": spec.confidence if spec.simultaneous else None,
            "device": subject.device,
            "model_dtype": subject.dtype,
            **self.facts,
        }

    def seconds(self) -> float:
        """Return the work of the whole plan on one worker, from timed solves."""
        return (
            sum(
                self.costs[i].seconds(n) * s.maps * len(s.inputs)
                for i, s in enumerate(self.subjects)
                for n in self.spec.lengths
            )
            * self.spec.samples
            * len(self._variants)
        )

    @property
    def worker_memory(self) -> int:
        """Bytes that one worker may take, at most: itself, the largest model and the largest solve."""
        return BASE_MEMORY + max(s.weights + s.solve_bytes for s in self.subjects)

    def split(self) -> tuple[int, int]:
        """Return (workers, threads of each) for this machine; refused if not even one fits in memory."""
        engine, cores = self.spec.engine, len(os.sched_getaffinity(0))
        free = free_memory()
        fits = cores if free is None else int(0.9 * free // self.worker_memory)
        on_gpu = any(subject.device != "cpu" for subject in self.subjects)
        if fits < 1 and not on_gpu:
            raise InputError(
                f"expected {self.worker_memory / 2**30:.1f} GiB of free memory for one worker at n = "
                f"{max(self.spec.lengths)}, got {(free or 0) / 2**30:.1f} GiB; set max_memory, use shorter lengths, a "
                "narrower dtype or a smaller model"
            )
        workers = engine.workers if engine.workers is not None else 1 if on_gpu else max(1, min(cores, fits))
        return workers, engine.threads or max(1, cores // max(1, workers))


def prepare(
    spec: Spec,
    note: Callable[[str], None] = lambda line: None,
    *,
    timed: bool = True,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Plan:
    """Load each model once, cut each text for it, check all there is to check.

    A spec may come from a stranger: code that its models bring along runs only if the caller says so, too. Without
    `timed` no solve is timed, and the plan knows its memory but not its time.
    """
    refuse_untrusted(spec, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    corpora = read_texts(spec)
    subjects, costs = [], []
    for own in (member for model_spec in spec.models for member in model_spec.members()):
        note(f"loading {own.name}")
        loading = loading_of(spec, own)
        model = _load(loading)
        subjects.append(subject_of(spec, own, model, corpora, loading))
        if timed:
            from howsmooth.studies.costs import CostModel

            costs.append(CostModel(model, subjects[-1]))
            costs[-1].release()
        for inputs in subjects[-1].inputs:  # a plan of many models keeps none of them in memory
            inputs.release()
    return Plan(spec, tuple(subjects), costs=tuple(costs))


def prepare_model(spec: Spec, model: Model, corpus: Corpus | None = None) -> Plan:
    """Prepare a spec for a model that is in memory already, on one text; it runs in this process."""
    own = spec.models[0]
    loading = {"name": model.name}
    spec = spec.model_copy(update={"engine": spec.engine.model_copy(update={"kind": "local", "workers": 0})})
    corpora = () if spec.inputs == "normalised" else (corpus,) if corpus is not None else read_texts(spec)
    return Plan(spec, (subject_of(spec, own, model, corpora, loading),), model=model)


def read_texts(spec: Spec) -> tuple[Corpus, ...]:
    """Read the texts of a spec, each once; none where tokens are drawn."""
    if spec.inputs == "normalised":
        return ()
    if sum(text.source == "-" for text in spec.texts) > 1:
        raise InputError("expected stdin (-) as one text at most, got it twice; read the others from files")
    corpora = tuple(read_corpus(spec.path(t.source), **t.model_dump(exclude={"source"})) for t in spec.texts)
    names = [corpus.name for corpus in corpora]
    if len(set(names)) < len(names):
        raise InputError(f"expected texts of different names, got {', '.join(names)}; give one of them a name")
    return corpora


def loading_of(spec: Spec, own: ModelSpec) -> dict[str, Any]:
    """Return the arguments of `load` for one model of a spec."""
    return {
        "name": ("random:" if own.weights == "random" else "") + spec.path(own.name),
        "dtype": own.dtype,
        "device": own.device,
        "revision": own.revision,
        "trust_remote_code": own.trust_remote_code,
        "allow_pickle": own.allow_pickle,
        "seed": spec.seed if own.seed is None else own.seed,
        "tokenizer": own.tokenizer and spec.path(own.tokenizer),
        "causal": own.causal,
    }


def subject_of(
    spec: Spec, own: ModelSpec, model: Model, corpora: tuple[Corpus | None, ...], loading: dict[str, Any]
) -> Subject:
    """Resolve a spec against one model and its texts, so that nothing fails halfway through."""
    layers, heads = chosen_layers(model, spec, own.layers), chosen_heads(model, spec)
    inputs = tuple(inputs_of(model, corpus, spec) for corpus in corpora or (None,))
    return Subject(
        spec=spec,
        model_spec=own,
        loading=loading,
        identity=identity_of(model),
        source=dict(model.source),
        device=str(model.device),
        dtype=_name(model.dtype) or "",
        width=model.width,
        weights=sum(p.numel() * p.element_size() for p in model.parameters()),
        layers=(None,) if spec.kind == "model" else layers,
        heads=heads,
        inputs=inputs,
        solve_bytes=solve_memory(model, inputs[0], spec, layers[0]).total
        if spec.kind in ("attention", "head")
        else 200 * max(spec.lengths) * model.width * 8,
    )  # maps that are differentiated automatically have no plan


def solve_memory(model: Model, inputs: Inputs, spec: Spec, layer: int) -> MemoryPlan:
    """Return what the largest solve will need, refused here and now if `max_memory`, or a GPU, cannot hold it.

    All layers of a model have one shape, so one layer at the longest length stands for them.
    """
    n = max(spec.lengths)
    chunk, attention = inputs.chunk(n, 0), inputs.attention(layer, n)
    head = chosen_heads(model, spec)[0]
    attention = attention if head is None else attention.head(head)
    if isinstance(attention, SelfAttention):
        derivative = abstract_jacobian(attention, n, product_dtype(spec, n, str(model.device)))
    else:
        derivative = jacobian(attention, inputs.tokens(chunk, 0, [layer])[layer])
    moved = moved_tokens(chunk.special, spec.tokens[0])
    if moved is not None:
        width = derivative.shape[1] // n
        at = moved.nonzero().flatten()
        derivative = restrict(derivative, cols=(at[:, None] * width + torch.arange(width)).flatten().to(model.device))
    options: dict[str, Any] = {
        "max_steps": spec.max_steps,
        "tol": spec.tol,
        "confidence": spec.confidence,
        "stop": spec.stop,
    }
    limit = solver_limit(model.device, spec.max_memory)
    try:
        return plan_memory(derivative, limit, **options)
    except InputError:
        if limit is None:
            raise
        # The solver speaks of vectors in bytes; here it is known what was asked for.
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
    """Return the dtype of products at a length: on a GPU a float64 reference takes longer than the solve from some."""
    if spec.kind not in ("attention", "head") or spec.product_dtype == "float64":
        return None
    if spec.product_dtype == "auto":
        return torch.float32 if device.startswith("cuda") and n > LONGEST_REFERENCE else None
    return getattr(torch, spec.product_dtype)


def _name(dtype: torch.dtype | None) -> str | None:
    return None if dtype is None else str(dtype).removeprefix("torch.")


def _load(loading: dict[str, Any]) -> Model:
    try:
        return loaded_model(loading)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InputError(
            f"expected enough memory to load {loading['name']!r}, got too little ({error}); choose a "
            "smaller model or a narrower dtype"
        ) from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
