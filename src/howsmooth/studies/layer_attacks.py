"""Feature-space attacks on a model and a text, beside σ₁, noise and what is certified; kept, and not done twice."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from howsmooth.attack.feature import (
    Attack,
    Budget,
    Duplicate,
    GradientSign,
    NextToken,
    Noise,
    OutputChange,
    ProjectedGradient,
    Similarity,
    SingularDirection,
    Target,
    run,
    save_attack,
)
from howsmooth.attack.feature import FeatureObjective as Objective
from howsmooth.attack.feature import FeatureProblem as Problem
from howsmooth.attack.feature.result import read_attack_file
from howsmooth.attention import SelfAttention
from howsmooth.bounds import certify_ball
from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.records import finite
from howsmooth.studies.inputs import Step, run_facts
from howsmooth.studies.spec import Spec
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model

OBJECTIVES = ("output", "next-token", "cosine")


def named_attack(name: str, steps: int = 20, tol: float = 1e-2) -> Attack:
    """An attack by the name it has on the command line."""
    known = {
        "noise": Noise(),
        "sign": GradientSign(),
        "singular": SingularDirection(tol),
        "ascent": ProjectedGradient(SingularDirection(tol), steps),
        "ascent-noise": ProjectedGradient(Noise(), steps),
        "split": Duplicate() >> SingularDirection(tol),
        "split-ascent": Duplicate() >> ProjectedGradient(SingularDirection(tol), steps),
    }
    if name not in known:
        raise InputError(f"expected an attack among {', '.join(known)}, got {name!r}")
    return known[name]


def named_objective(name: str, model: Model) -> Objective:
    """An objective by the name it has on the command line; the next token asks for a language head."""
    if name not in OBJECTIVES:
        raise InputError(f"expected an objective among {', '.join(OBJECTIVES)}, got {name!r}")
    return (
        NextToken(model.language_head)
        if name == "next-token"
        else {"output": OutputChange, "cosine": Similarity}[name]()
    )


@dataclass(frozen=True)
class Shares:
    """Budgets relative to the tokens X: shares of ‖X‖, or, per token, of the mean radius ‖X‖/√n."""

    sizes: tuple[float, ...]
    norm: str = "frobenius"
    tokens: int | None = None

    def of(self, x: torch.Tensor) -> list[tuple[float, Budget]]:
        unit = float(torch.linalg.vector_norm(x, dtype=torch.float64))
        unit = unit / len(x) ** 0.5 if self.norm == "token" else unit
        if self.tokens is not None:
            Budget(1.0, self.norm, self.tokens).check(len(x))
        return [(share, Budget(share * (unit or 1.0), self.norm, self.tokens)) for share in self.sizes]


def feature_attacks(
    model: Model,
    corpus: Corpus,
    spec: Spec,
    *,
    attacks: Sequence[Attack],
    shares: Shares,
    kind: str | None = None,
    objective: Objective | None = None,
    folder: Path | None = None,
    step: Step | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head), budget and attack.

    kind: attention unless given ("model" attacks the whole model once, whatever the layers). With a `folder` each
    attack is kept there as a file that `howsmooth.attack.feature.verify` checks, and is not done again.
    """
    kind = kind or spec.kind
    objective = OutputChange() if objective is None else objective
    facts = run_facts(model, corpus, spec)
    for n in spec.lengths:
        for sample, chunk in enumerate(model.chunks(corpus, n, spec.samples, special_tokens=spec.adds_special_tokens)):
            for layer in (None,) if kind == "model" else spec.layers:
                for head in spec.heads or (None,):
                    if step is not None:
                        step(n, layer, head)
                    place = _Place(Target.in_model(model, chunk, layer, kind, head=head), objective, spec)
                    where = {"model": model.name, "layer": layer, "head": head, "map": kind, "n": n, "sample": sample}
                    for share, budget in shares.of(place.target.x):
                        for attack in attacks:
                            yield _kept(place, attack, budget, {**where, "share": share}, facts, spec, folder)


def _kept(
    place: _Place, attack: Attack, budget: Budget, where: dict, facts: dict, spec: Spec, folder: Path | None
) -> dict[str, Any]:
    """The record of one attack: from its file if there is one, else made and kept."""
    key = {
        **where,
        "attack": attack.as_record(),
        "budget": budget.as_record(),
        "seed": spec.seed,
        "objective": place.objective.as_record(),
        "dtype": str(place.target.dtype),
        "tol": spec.tol,
        "confidence": spec.confidence,
        "text": facts["text_sha256"],
        "weights": facts["source"].get("sha256"),
        "source": facts["source"],
        "special_tokens": facts["special_tokens"],
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:16]
    path = None if folder is None else folder / f"{_slug(where)}-{digest}.safetensors"
    if path is not None and path.exists():
        return read_attack_file(path)[0]
    found = run(attack, place.target, budget, place.objective, seed=spec.seed)
    edited = replace(place, target=place.target.with_tokens(found.x)) if attack.edit is not None else place
    noise = found.gain if isinstance(attack, Noise) else edited.noise(budget)
    record = {
        **where,
        **found.as_record(),
        "n": where["n"],
        "attacked_n": found.n,
        "sigma": edited.sigma(),
        "noise_gain": noise,
        "certified": edited.certified(budget),
        **facts,
        "file": path and path.name,
    }
    if path is not None:
        save_attack(found, path, finite(record))
    return record


@dataclass(frozen=True, eq=False)
class _Place:
    """One target, and what its attacks are held against: measured when first asked for."""

    target: Target
    objective: Objective
    spec: Spec

    def __post_init__(self):
        object.__setattr__(self, "known", {})

    def sigma(self) -> dict[str, Any]:
        """σ₁ of the map with the objective behind it, at the clean tokens."""
        return self._once(
            "sigma",
            lambda: local_lipschitz(
                Problem(self.target, self.objective).map,
                self.target.x,
                tol=self.spec.tol,
                seed=self.spec.seed,
                confidence=self.spec.confidence,
                strict=False,
            ).as_record(),
        )

    def noise(self, budget: Budget) -> float:
        return self._once(
            ("noise", budget), lambda: run(Noise(), self.target, budget, self.objective, seed=self.spec.seed).gain
        )

    def certified(self, budget: Budget) -> float | None:
        """An upper bound on every gain within the budget, for attention layers: ‖E‖ ≤ s is inside |ε_i| ≤ s."""
        f, x = self.target.f, self.target.x
        if not isinstance(f, SelfAttention) or not isinstance(self.objective, OutputChange):
            return None
        return self._once(
            ("certified", budget.size),
            lambda: (
                certify_ball(
                    f.converted(dtype=torch.float64), x.double(), budget.size, at_center=self.sigma()["upper"]
                ).value
            ),
        )

    def _once(self, key, compute: Callable[[], Any]) -> Any:
        if key not in self.known:
            self.known[key] = compute()
        return self.known[key]


def _slug(where: dict) -> str:
    parts = [
        where["map"],
        *(f"{name}{where[name]}" for name in ("layer", "head", "n", "sample") if where[name] is not None),
    ]
    return "-".join(parts)
