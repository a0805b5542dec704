"""Feature-space attacks on a model and a text, compared with σ₁, with noise and with what is certified.

Each attack can be saved as a file; an attack whose file exists is read instead of computed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from howsmooth.questions.inputs import ProgressCallback, chosen_heads, chosen_layers, run_fields
from howsmooth.questions.quantities import estimate_at
from howsmooth.questions.spec import ModelSpec
from howsmooth.records import replace_non_finite
from howsmooth.texts.corpora import Corpus

if TYPE_CHECKING:
    from howsmooth.models import Model

OBJECTIVES = ("output", "next-token", "cosine")


def named_attack(name: str, steps: int = 20, tol: float = 1e-2) -> Attack:
    """Return the attack with this name on the command line.

    Args:
        name: The name.
        steps: Steps of ascent.
        tol: Tolerance of the singular direction.

    Raises:
        InputError: There is no such attack.
    """
    attacks = {
        "noise": Noise(),
        "sign": GradientSign(),
        "singular": SingularDirection(tol),
        "ascent": ProjectedGradient(SingularDirection(tol), steps),
        "ascent-noise": ProjectedGradient(Noise(), steps),
        "split": Duplicate() >> SingularDirection(tol),
        "split-ascent": Duplicate() >> ProjectedGradient(SingularDirection(tol), steps),
    }
    if name not in attacks:
        raise InputError(f"expected an attack among {', '.join(attacks)}, got {name!r}")
    return attacks[name]


def named_objective(name: str, model: Model) -> Objective:
    """Return the objective with this name on the command line; "next-token" requires a language head."""
    if name not in OBJECTIVES:
        raise InputError(f"expected an objective among {', '.join(OBJECTIVES)}, got {name!r}")
    return (
        NextToken(model.language_head)
        if name == "next-token"
        else {"output": OutputChange, "cosine": Similarity}[name]()
    )


@dataclass(frozen=True)
class RelativeBudgets:
    """Budgets relative to the tokens X.

    Attributes:
        sizes: Shares of ‖X‖, or with norm "token" of the mean radius ‖X‖/√n.
        norm: Norm of the budget, "frobenius" or "token".
        tokens: How many tokens may be perturbed; None for all.
    """

    sizes: tuple[float, ...]
    norm: str = "frobenius"
    tokens: int | None = None

    def at(self, x: torch.Tensor) -> list[tuple[float, Budget]]:
        """Return each share with its budget at the tokens x, (n, d)."""
        unit = float(torch.linalg.vector_norm(x, dtype=torch.float64))
        unit = unit / len(x) ** 0.5 if self.norm == "token" else unit
        if self.tokens is not None:
            Budget(1.0, self.norm, self.tokens).check(len(x))
        return [(share, Budget(share * (unit or 1.0), self.norm, self.tokens)) for share in self.sizes]


def feature_attacks(
    model: Model,
    corpus: Corpus,
    spec: ModelSpec,
    *,
    attacks: Sequence[Attack],
    budgets: RelativeBudgets,
    kind: str | None = None,
    objective: Objective | None = None,
    folder: Path | None = None,
    progress: ProgressCallback | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield one record per length, sample, layer (and head), budget and attack.

    Args:
        model: The model.
        corpus: The text.
        spec: Which layers, heads, lengths and samples.
        attacks: The attacks.
        budgets: The sizes of perturbations.
        kind: The map, if it is not the spec's; "model" attacks the whole model, whatever the layers.
        objective: What an attack maximises; the change of the output without it.
        folder: Where each attack is saved as a file that `howsmooth.attack.feature.verify` checks. An attack whose
            file exists is read from there.
        progress: Called with (n, layer, head) before each target.
    """
    kind = kind or spec.map_name
    objective = OutputChange() if objective is None else objective
    shared = run_fields(model, corpus, spec)
    layers = (None,) if kind == "model" else chosen_layers(model, spec)
    heads = chosen_heads(model, spec) if spec.heads is not None else (None,)
    for n in spec.lengths:
        for sample, chunk in enumerate(model.chunks(corpus, n, spec.samples, special_tokens=spec.adds_special_tokens)):
            for layer in layers:
                for head in heads:
                    if progress is not None:
                        progress(n, layer, head)
                    baselines = _Baselines(Target.in_model(model, chunk, layer, kind, head=head), objective, spec)
                    site = {"model": model.name, "layer": layer, "head": head, "map": kind, "n": n, "sample": sample}
                    for share, budget in budgets.at(baselines.target.x):
                        for attack in attacks:
                            yield _read_or_run(baselines, attack, budget, {**site, "share": share}, shared, folder)


def _read_or_run(
    baselines: _Baselines,
    attack: Attack,
    budget: Budget,
    site: dict[str, Any],
    shared: dict[str, Any],
    folder: Path | None,
) -> dict[str, Any]:
    """Return the record of one attack, read from its file if there is one, else computed and saved."""
    spec = baselines.spec
    key = {
        **site,
        "attack": attack.as_record(),
        "budget": budget.as_record(),
        "seed": spec.seed,
        "objective": baselines.objective.as_record(),
        "dtype": str(baselines.target.dtype),
        "tol": spec.tol,
        "confidence": spec.confidence,
        "text": shared["text_sha256"],
        "weights": shared["source"].get("sha256"),
        "source": shared["source"],
        "special_tokens": shared["special_tokens"],
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:16]
    path = None if folder is None else folder / f"{_file_stem(site)}-{digest}.safetensors"
    if path is not None and path.exists():
        return read_attack_file(path)[0]
    found = run(attack, baselines.target, budget, baselines.objective, seed=spec.seed)
    if attack.edit is not None:  # the attack has changed the clean tokens
        baselines = replace(baselines, target=baselines.target.with_tokens(found.x), cache={})
    noise_gain = found.gain if isinstance(attack, Noise) else baselines.noise_gain(budget)
    record = {
        **site,
        **found.as_record(),
        "n": site["n"],
        "attacked_n": found.n,
        "sigma": baselines.sigma(),
        "noise_gain": noise_gain,
        "certified": baselines.certified_gain(budget),
        **shared,
        "file": path and path.name,
    }
    if path is not None:
        save_attack(found, path, replace_non_finite(record))
    return record


@dataclass(frozen=True, eq=False)
class _Baselines:
    """What the attacks on one target are compared with; each number is computed once, when it is needed."""

    target: Target
    objective: Objective
    spec: ModelSpec
    cache: dict[Any, Any] = field(default_factory=dict)

    def sigma(self) -> dict[str, Any]:
        """Return σ₁ of the map followed by the objective, at the clean tokens."""
        return self._once(
            "sigma",
            lambda: estimate_at(
                Problem(self.target, self.objective).map,
                self.target.x,
                tol=self.spec.tol,
                seed=self.spec.seed,
                confidence=self.spec.confidence,
                strict=False,
            ).as_record(),
        )

    def noise_gain(self, budget: Budget) -> float:
        """Return the gain of random noise."""
        return self._once(
            ("noise", budget), lambda: run(Noise(), self.target, budget, self.objective, seed=self.spec.seed).gain
        )

    def certified_gain(self, budget: Budget) -> float | None:
        """Return an upper bound on every gain within the budget, for attention: ‖E‖ ≤ s implies |ε_i| ≤ s."""
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

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
        if key not in self.cache:
            self.cache[key] = compute()
        return self.cache[key]


def _file_stem(site: dict[str, Any]) -> str:
    parts = [
        site["map"],
        *(f"{name}{site[name]}" for name in ("layer", "head", "n", "sample") if site[name] is not None),
    ]
    return "-".join(parts)
