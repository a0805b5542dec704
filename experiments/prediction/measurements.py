"""Predictors and attacks, text by text.

There is one record for each text and place:

    layer     predictors of a layer at the text, and ascent on the layer's output at a small and a large budget
    model     σ₁ of the whole model, and ascent on its input for the last hidden states and for what it is used for
              (the next token's distribution of a language model, else the mean embedding)
    tokens    edits of tokens, with equal numbers of edits and calls for all texts

Each record has its own seed, so it does not depend on the order of computation.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from experiments.prediction.correlation import MIN_TEXTS
from experiments.prediction.predictors import layer_predictors
from howsmooth.attack.feature import (
    Budget,
    NextToken,
    Noise,
    OutputChange,
    ProjectedGradient,
    Similarity,
    SingularDirection,
    Target,
    run,
)
from howsmooth.attack.feature import FeatureObjective as Objective
from howsmooth.attack.feature import FeatureProblem as Problem
from howsmooth.attack.tokens import OBJECTIVES, EditLimits, Probe, TargetModel, attack_text
from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.models import Model
from howsmooth.questions.spec import select_indices
from howsmooth.records.provenance import provenance
from howsmooth.texts.corpora import Corpus
from howsmooth.texts.cutting import TokenChunk, surrounding_special_tokens

PLACES = ("layer", "model", "tokens")
MODEL_TOL = 0.1  # for whole models, whose solves take long
Record = dict[str, Any]
ProgressCallback = Callable[[int, str], None]  # called with (number of the text, site) before each computation


@dataclass(frozen=True)
class Design:
    """What is computed for every text. Budgets are a small and a large one, in units of ‖X‖.

    Attributes:
        layers: Layers, "all", or "spread" for the first, the middle and the last.
        length: Tokens of every text.
        count: Number of texts.
        shares: Budgets at a layer, in units of the norm of the tokens that enter it.
        model_shares: Budgets at the input, in units of the norm of the tokens that enter the model.
        steps: Steps of ascent.
        edits: Tokens that may be edited.
        calls: Calls of the model for an attack on tokens.
        places: What is attacked: "layer", "model", "tokens".
        tol: Relative width of the intervals at layers.
        confidence: Probability that an interval contains σ₁.
        special_tokens: Whether to add special tokens.
        seed: Seed of the first text; each later text has the next one.
    """

    layers: tuple[int, ...] | str = "spread"
    length: int = 64
    count: int = 50
    shares: tuple[float, ...] = (0.001, 0.1)
    model_shares: tuple[float, ...] = (0.01, 0.1)
    steps: int = 10
    edits: int = 2
    calls: int = 24
    places: tuple[str, ...] = PLACES
    tol: float = 1e-2
    confidence: float = 0.999
    special_tokens: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.count < MIN_TEXTS:
            raise InputError(f"expected at least {MIN_TEXTS} texts to rank, got {self.count}; ask for more (--count)")
        if self.steps < 1 or self.edits < 1 or self.calls < 3:
            raise InputError(
                f"expected at least 1 step, 1 edit and 3 calls, got {self.steps}, {self.edits} and "
                f"{self.calls}; ask for more"
            )
        unknown = [place for place in self.places if place not in PLACES]
        if unknown or not self.places:
            raise InputError(f"expected places among {', '.join(PLACES)}, got {unknown[0] if unknown else 'none'}")
        for name in ("shares", "model_shares"):
            sizes = getattr(self, name)
            if len(sizes) != 2 or not 0 < sizes[0] < sizes[1] < float("inf"):
                raise InputError(f"expected {name} as a small and a large budget in units of ‖X‖, got {sizes!r}")


def texts_of(model: Model, corpus: Corpus, design: Design) -> list[TokenChunk]:
    """Return distinct texts of one length: the beginnings of documents that are long enough, or chunks of a single one.

    A constant depends on the length, so only texts of one length can be ranked by it. Beginnings of different documents
    are practically independent; chunks of one document are not, and intervals that resample them are too narrow.
    """
    n = design.length
    model.tokenize("text")  # raises for a model without a tokenizer
    body = n - (sum(map(len, surrounding_special_tokens(model.tokenizer))) if design.special_tokens else 0)
    if body < 2:
        raise InputError(
            f"expected a length of at least {n - body + 2} tokens ({n - body} are special), got {n}; ask "
            "for longer texts (--length)"
        )
    if n > model.positions:
        raise InputError(
            f"expected a length of at most {model.positions} tokens, the positions of {model.name}, got "
            f"{n}; ask for shorter texts (--length)"
        )
    per_document = None if len(corpus.documents) == 1 else 1
    found: dict[tuple[int, ...], TokenChunk] = {}
    for document in corpus.documents:
        if len(model.tokenize(document)) >= body:
            for chunk in model.chunks(document, n, per_document, special_tokens=design.special_tokens):
                found.setdefault(tuple(chunk.ids.tolist()), chunk)
        if len(found) >= design.count:
            return list(found.values())[: design.count]
    raise InputError(
        f"expected {design.count} different texts of {n} tokens, got {len(found)} in {corpus.name}; ask "
        "for fewer (--count) or shorter ones (--length), or give more text"
    )


def check(model: Model, chunks: Sequence[TokenChunk], design: Design) -> tuple[int, ...]:
    """Return the layers; raise for settings that cannot work, before anything is computed."""
    last = model.layers - 1
    wanted = (0, last // 2, last) if design.layers == "spread" else design.layers
    layers = select_indices(wanted, model.layer_numbers, f"layers of {model.name}")
    if "tokens" in design.places:
        limits = EditLimits(edits=design.edits)
        for chunk in chunks:
            limits.editable_positions(chunk.special.tolist(), model.positions)
    return layers


def predictions(
    model: Model,
    corpus: Corpus,
    chunks: Sequence[TokenChunk],
    design: Design,
    *,
    done: Mapping[str, Record] | None = None,
    progress: ProgressCallback | None = None,
) -> Iterator[Record]:
    """Yield a record for every text and place; records in `done` (by key) are reused."""
    layers = check(model, chunks, design)
    task = _Task(model, design)
    done = done or {}
    for number, chunk in enumerate(chunks):
        for place in design.places:
            for layer in layers if place == "layer" else (None,):
                where = {
                    "model": model.name,
                    "corpus": corpus.name,
                    "text": number,
                    "place": place,
                    "layer": layer,
                    "n": len(chunk),
                    "seed": (design.seed + number) % 2**63,
                }
                key = _key(where, chunk, task.facts)
                if key in done:
                    yield done[key]
                    continue
                if progress is not None:
                    progress(number, place if layer is None else f"layer {layer}")
                found = (
                    task.at_layer(chunk, layer, where["seed"])
                    if layer is not None
                    else task.at_model(chunk, where["seed"])
                    if place == "model"
                    else task.on_tokens(chunk, where["seed"])
                )
                yield {**where, **found, **task.facts, "ids": chunk.ids.tolist(), "key": key}


def rankable(records: Sequence[Record]) -> list[Record]:
    """Return the records of models that have enough texts for a rank correlation."""
    texts: dict[str, set[int]] = {}
    for record in records:
        texts.setdefault(record["model"], set()).add(record["text"])
    return [record for record in records if len(texts[record["model"]]) >= MIN_TEXTS]


class _Task:
    """The computations on one model, and the facts that its records share."""

    def __init__(self, model: Model, design: Design) -> None:
        self.model, self.design = model, design
        self.causal = _has_next_token(model)
        self.facts = {
            "model_dtype": str(model.dtype).removeprefix("torch."),
            "source": dict(model.source),
            "design": _plain(design),
            **provenance(),
        }
        self.target_model: TargetModel | None = None

    def at_layer(self, chunk: TokenChunk, layer: int, seed: int) -> Record:
        design, target = self.design, Target.in_model(self.model, chunk, layer)
        small, large = (share * _norm(target.x) for share in design.shares)
        found = layer_predictors(
            target.f, target.x, (small, large), tol=design.tol, confidence=design.confidence, seed=seed
        )
        scale = _norm(target.f(target.x).detach())
        attacks = []
        for share, size in zip(design.shares, (small, large), strict=True):
            for start in (SingularDirection(design.tol), Noise()):
                ascent = run(ProjectedGradient(start, design.steps), target, Budget(size), seed=seed)
                attacks.append({"share": share, "relative": ascent.change / scale, **_numbers(ascent)})
        return {**found, "attacks": attacks}

    def at_model(self, chunk: TokenChunk, seed: int) -> Record:
        design, target = self.design, Target.in_model(self.model, chunk, map="model")
        norm = _norm(target.x)
        use: Objective = NextToken(self.model.language_head) if self.causal else Similarity()
        predictors, sigmas, attacks = self._plain_numbers(target), {}, []
        for name, objective in (("model", OutputChange()), ("objective", use)):
            problem = Problem(target, objective)
            found = local_lipschitz(
                problem.map, target.x, tol=MODEL_TOL, strict=False, seed=seed, confidence=design.confidence
            )
            sigmas[name] = {key: value for key, value in found.as_record().items() if key != "seconds"}
            scale = _norm(objective.coordinates(problem.clean))
            predictors[f"{name}_sigma"] = found.value
            for share in design.model_shares:
                noise, ascent = (
                    run(attack, target, Budget(share * norm), objective, seed=seed)
                    for attack in (Noise(), ProjectedGradient(Noise(), design.steps))
                )
                predictors.setdefault(f"{name}_noise_gain", noise.gain)  # of the small budget
                attacks.append({"share": share, "relative": ascent.change / scale, **_numbers(ascent)})
        return {"predictors": predictors, "sigmas": sigmas, "attacks": attacks}

    @torch.no_grad()
    def _plain_numbers(self, target: Target) -> dict[str, float]:
        """Return predictors that need no derivative."""
        hidden = target.f(target.x)
        radius = float(torch.linalg.vector_norm(target.x, dim=-1, dtype=torch.float64).square().mean().sqrt())
        if not self.causal:
            return {"input_radius": radius, "embedding_norm": float(torch.linalg.vector_norm(hidden.mean(0)))}
        p = torch.softmax(self.model.language_head(hidden[-1:]).double(), -1)
        return {"input_radius": radius, "next_entropy": float(torch.special.entr(p).sum())}

    def on_tokens(self, chunk: TokenChunk, seed: int) -> Record:
        self.target_model = self.target_model or TargetModel(self.model)
        objective = OBJECTIVES["kl" if self.causal else "cosine"]()
        found = attack_text(
            self.target_model,
            chunk,
            Probe(),
            objective=objective,
            limits=EditLimits(edits=self.design.edits),
            calls=self.design.calls,
            seed=seed,
        ).as_record()
        kept = (
            "method",
            "objective",
            "limits",
            "clean",
            "value",
            "edits",
            "calls",
            "budget",
            "attacked_ids",
            "next_tokens",
            "dtype",
        )
        return {"predictors": {}, "attacks": [{name: found[name] for name in kept}]}


def _norm(x: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(x, dtype=torch.float64))


def _numbers(found: Any) -> Record:
    """Return the record of an attack without time, length and seed."""
    return {name: value for name, value in found.as_record().items() if name not in ("seconds", "n", "seed")}


def _has_next_token(model: Model) -> bool:
    try:
        return model.language_head is not None
    except InputError:
        return False


def _plain(design: Design) -> Record:
    """Return the settings that determine a record."""
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(design).items()
        if name not in ("layers", "count", "places", "seed")
    }


def _key(where: Record, chunk: TokenChunk, facts: Record) -> str:
    """Return a hash of all that determines a record."""
    decisive = [
        where["model"],
        where["place"],
        where["layer"],
        where["seed"],
        chunk.ids.tolist(),
        facts["model_dtype"],
        facts["source"].get("sha256"),
        facts["design"],
    ]
    return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:20]
