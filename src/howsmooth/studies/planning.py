"""From a declared study to its tasks: models looked at, corpora cut, everything checked, time and memory estimated."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from howsmooth.errors import InputError
from howsmooth.models import Model, load
from howsmooth.studies.config import ModelSpec, Study, refuse_untrusted
from howsmooth.studies.costs import Costs, batch_size, costs_of
from howsmooth.studies.cutting import Cutter
from howsmooth.studies.facts import provenance
from howsmooth.studies.measuring import chosen
from howsmooth.studies.room import free_memory
from howsmooth.studies.working import Bundle, Solve, identity_of
from howsmooth.texts.corpora import Corpus, read_corpus

TASK_FORM = 1  # part of every task's hash: raise it when the same configuration comes to mean another number
BASE_MEMORY = 450 << 20  # of a process with torch and transformers in it


@dataclass(frozen=True, eq=False)
class Subject:
    """One model of the study: what was learnt by loading it once, and the corpora cut for it."""

    spec: ModelSpec
    loading: dict[str, Any]
    identity: dict[str, Any]
    source: dict[str, Any]
    layers: tuple[int | None, ...]
    heads: tuple[int | None, ...]
    cutters: tuple[Cutter, ...]
    costs: Costs


@dataclass(frozen=True, eq=False)
class Prepared:
    """A study that is ready to run. Tasks are generated, never held: memory does not grow with their number."""

    study: Study
    corpora: tuple[Corpus, ...]
    subjects: tuple[Subject, ...]
    facts: dict[str, Any] = field(default_factory=provenance)

    @property
    def count(self) -> int:
        """How many tasks there are."""
        return sum(len(s.layers) * len(s.heads) for s in self.subjects) * self._per_map(self._variants())

    @property
    def confidence(self) -> float:
        """Of one record: the study's, or its share of it if all are to hold together."""
        if not self.study.simultaneous:
            return self.study.confidence
        certified = sum(estimator == "described" for _, estimator in self._variants())
        maps = sum(len(s.layers) * len(s.heads) for s in self.subjects)
        return 1 - (1 - self.study.confidence) / max(1, maps * self._per_map([None] * certified))

    def _variants(self) -> list[tuple[str, str]]:
        """Which tokens move, by which estimator; the released ones move them all."""
        return [(tokens, estimator) for tokens, estimator in product(self.study.tokens, self.study.estimators)
                if estimator == "described" or tokens == "all"]

    def _per_map(self, variants: list) -> int:
        return len(self.corpora) * len(self.study.lengths) * self.study.samples * len(variants)

    def bundles(self, done: Callable[[list[str]], set[str]] = lambda tasks: set()) -> Iterator[Bundle]:
        """All bundles, longest first, less the tasks that `done` knows."""
        for whole in self._whole():
            left = whole.without(done(whole.tasks))
            if left is not None:
                yield left

    def tasks(self) -> Iterator[str]:
        return (task for bundle in self._whole() for task in bundle.tasks)

    def _whole(self) -> Iterator[Bundle]:
        for subject in self.subjects:
            for n, (corpus, cutter) in product(sorted(self.study.lengths, reverse=True),
                                               zip(self.corpora, subject.cutters, strict=True)):
                size = batch_size(n, self.study, subject.spec.device, subject.costs)
                for first in range(0, self.study.samples, size):
                    samples = range(first, min(first + size, self.study.samples))
                    yield self._bundle(subject, corpus, cutter, n, samples)

    def _bundle(self, subject: Subject, corpus: Corpus, cutter: Cutter, n: int, samples: Iterable[int]) -> Bundle:
        study, spec = self.study, subject.spec
        pieces = [(sample, cutter.piece(n, sample)) for sample in samples]
        solver = {"tol": study.tol, "confidence": self.confidence, "max_memory": study.max_memory, "seed": study.seed}
        shared = {
            "form": TASK_FORM, "model": subject.identity, "name": subject.loading["name"], "dtype": spec.dtype,
            "device": spec.device, "corpus": corpus.name, "cutting": study.cutting, "map": study.kind, "n": n,
            "special_tokens": study.special_tokens, "tol": study.tol, "confidence": self.confidence, "seed": study.seed,
        }
        resolved = json.dumps(shared, sort_keys=True)  # once for all the tasks of the bundle
        solves = tuple(
            Solve(layer, head, tokens, estimator, tuple(
                _hash(f"{resolved}|{layer}|{head}|{tokens}|{estimator}|{sample}|{piece.digest}")
                for sample, piece in pieces))
            for layer, head, (tokens, estimator) in product(subject.layers, subject.heads, self._variants())
        )
        return Bundle(
            loading=subject.loading, identity=subject.identity, kind=study.kind, n=n,
            ids=tuple(piece.ids for _, piece in pieces), special=tuple(piece.special for _, piece in pieces),
            places=tuple({"sample": sample, "start": piece.start, "document": piece.document}
                         for sample, piece in pieces),
            solves=solves, solver=solver, cost=subject.costs.seconds(n) * len(solves) * len(pieces),
            facts={
                "study": study.name, "model": spec.label,
                "series": spec.series, "checkpoint": spec.checkpoint, "weights": subject.source.get("weights"),
                "source": subject.source, "text": corpus.name, "text_sha256": corpus.sha256, "cutting": study.cutting,
                "special_tokens": "add" if study.special_tokens else "none", "tol": study.tol,
                "simultaneous": study.confidence if study.simultaneous else None, "device": spec.device,
                "model_dtype": spec.dtype, **self.facts,
            },
        )

    def seconds(self, lengths: Iterable[int] | None = None) -> float:
        """The work of the whole study on one worker, from solves timed while it was prepared."""
        each = [(s.costs.seconds(n), len(s.layers) * len(s.heads)) for s in self.subjects
                for n in lengths or self.study.lengths]
        return sum(t * maps for t, maps in each) * len(self.corpora) * self.study.samples * len(self._variants())

    @property
    def worker_memory(self) -> int:
        """Bytes that one worker may take, at most: itself, the largest model and the largest solve."""
        return BASE_MEMORY + max(s.costs.weights + s.costs.memory(max(self.study.lengths)) for s in self.subjects)

    def split(self) -> tuple[int, int]:
        """(workers, threads of each) for this machine; refused if not even one fits in memory."""
        engine, cores = self.study.engine, len(os.sched_getaffinity(0))
        free = free_memory()
        fits = cores if free is None else int(0.9 * free // self.worker_memory)
        on_gpu = any(subject.spec.device != "cpu" for subject in self.subjects)
        if fits < 1 and not on_gpu:
            raise InputError(
                f"expected {self.worker_memory / 2**30:.1f} GiB of free memory for one worker at n = "
                f"{max(self.study.lengths)}, got {free / 2**30:.1f} GiB; set max_memory, use shorter lengths, a "
                "narrower dtype or a smaller model")
        workers = engine.workers if engine.workers is not None else 1 if on_gpu else max(1, min(cores, fits))
        return workers, engine.threads or max(1, cores // max(1, workers))


def prepare(study: Study, note: Callable[[str], None] = lambda line: None, *, trust_remote_code: bool = False,
            allow_pickle: bool = False) -> Prepared:
    """Load each model once, cut each corpus for it, check all there is to check.

    A study may come from a stranger: code that its models bring along runs only if the caller says so, too.
    """
    refuse_untrusted(study, trust_remote_code=trust_remote_code, allow_pickle=allow_pickle)
    if sum(corpus.source == "-" for corpus in study.corpora) > 1:
        raise InputError("expected stdin (-) as one corpus at most, got it twice; read the others from files")
    corpora = tuple(read_corpus(study.path(c.source), **c.model_dump(exclude={"source"})) for c in study.corpora)
    names = [corpus.name for corpus in corpora]
    if len(set(names)) < len(names):
        raise InputError(f"expected corpora of different names, got {', '.join(names)}; give one of them a name")
    subjects = []
    for spec in (member for spec in study.models for member in spec.members()):
        note(f"looking at {spec.name}")
        subjects.append(_subject(study, spec, corpora))
    return Prepared(study, corpora, tuple(subjects))


def _subject(study: Study, spec: ModelSpec, corpora: tuple[Corpus, ...]) -> Subject:
    loading = {
        "name": ("random:" if spec.weights == "random" else "") + study.path(spec.name), "dtype": spec.dtype,
        "device": spec.device, "revision": spec.revision, "trust_remote_code": spec.trust_remote_code,
        "allow_pickle": spec.allow_pickle, "seed": study.seed if spec.seed is None else spec.seed,
        "tokenizer": spec.tokenizer and study.path(spec.tokenizer), "causal": spec.causal,
    }
    model = _load(loading)
    layers = chosen(spec.layers or study.layers, model.layers, f"layers of {spec.name}")
    heads: tuple[int | None, ...] = (None,)
    if study.kind == "head":
        heads = chosen(study.heads or "all", model.heads, f"heads of {spec.name}")
    longest = max(study.lengths)
    if longest > model.positions:
        raise InputError(f"expected lengths of at most {model.positions} tokens, the positions of {spec.name}, got "
                         f"{longest}; ask for shorter lengths")
    if min(study.lengths) < 2 and "no-first" in study.tokens:
        raise InputError("expected lengths of at least 2 with tokens no-first, got 1; ask for longer ones")
    cutters = []
    for corpus in corpora:
        cutter = Cutter(model, corpus, study.cutting, longest, study.special_tokens)
        for n in study.lengths:
            cutter.check(n, study.samples)
        cutters.append(cutter)
    costs = costs_of(model, study, layers[0], cutters[0])
    return Subject(spec, loading, identity_of(model), dict(model.source),
                   (None,) if study.kind == "model" else layers, heads, tuple(cutters), costs)


def _load(loading: dict[str, Any]) -> Model:
    try:
        return load(**loading)
    except (MemoryError, torch.OutOfMemoryError) as error:
        raise InputError(f"expected enough memory to load {loading['name']!r}, got too little ({error}); choose a "
                         "smaller model or a narrower dtype") from None


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
