"""Saved attacks checked: everything evaluated anew from what was saved, and compared with what was reported.

features    the map once more, at the saved tokens and the saved perturbation of a file
text        two plain forward passes on whole texts, from the token numbers of a record; nothing shared
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.attack.feature.problem import FeatureProblem, Target, touched
from howsmooth.attack.feature.result import FeatureAttack, evaluated, load_attack
from howsmooth.attack.objectives import (
    FEATURE_OBJECTIVES,
    TEXT_OBJECTIVES,
    FeatureObjective,
    NextToken,
    TextObjective,
    objective_of,
)
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.attack.tokens.problem import Victim
    from howsmooth.models import Model

AGAIN = 1e-4  # relative to the change: what another machine's order of sums may do; exact on the same one
AGREE = 1e-3  # relative to 1 and the value: float32, other orders of summation
COMPARED = ("spent", "change", "gain", "attacked")
RECORDED = ("ids", "attacked_ids", "edits", "objective", "value", "success")


@dataclass(frozen=True)
class Verification:
    """`holds`, or what is wrong, in words. `value` is what the objective says now, `reported` what was saved."""

    holds: bool
    wrong: tuple[str, ...]
    value: float
    reported: float

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "wrong": list(self.wrong)}


def verify_features(
    path: str | os.PathLike, target: Target | None = None, *, model: Model | None = None
) -> Verification:
    """Evaluate the map again at the saved tokens and the saved perturbation, and compare with what was reported.

    A target that is part of a model is found again by the file's own record (`model`, if it is loaded already, saves
    the time); then the tokens, too, are computed anew from the text's token numbers, unless an edit has added some. For
    any other map the caller gives the target. The values of the verification are changes, as lengths.
    """
    reported, wrong = load_attack(path), []
    given = model
    if target is None:
        model = model if model is not None else _model(reported)
        target = _found_again(reported, model)
        edited = "edit" in reported.attack
        if not edited and not _close(target.x, reported.x):
            wrong.append("the tokens are not those that enter the map on this text")
        if given is not None and given.source.get("sha256") != reported.origin["source"].get("sha256"):
            wrong.append("the weights are not those that were attacked")
    target = target.double() if reported.dtype == torch.float64 else target
    target = target.rows(reported.x.to(target.x.device))
    problem = FeatureProblem(target, _objective(reported, model))
    now = evaluated(
        problem,
        reported.perturbation.to(target.x.device),
        attack=reported.attack,
        budget=reported.budget,
        seed=reported.seed,
        began=time.perf_counter(),
    )
    for name in COMPARED:
        said, found = getattr(reported, name), getattr(now, name)
        slack = max(AGAIN * abs(said), 1e-6 if name == "attacked" else 0.0) if reported.status == "fine" else abs(said)
        if not abs(said - found) <= slack:
            wrong.append(f"{name}: {said:.8g} reported, {found:.8g} found")
    if reported.touched != touched(reported.perturbation):
        wrong.append(f"tokens touched: {reported.touched} reported, {touched(reported.perturbation)} found")
    if not reported.budget.allows(reported.perturbation, slack=1e-3 if reported.dtype == torch.float32 else 1e-6):
        wrong.append(f"the perturbation is beyond its budget {reported.budget}")
    for key, said in reported.facts.items():
        if key in now.facts and now.facts[key] != said:
            wrong.append(f"{key}: {said} reported, {now.facts[key]} found")
    return Verification(not wrong, tuple(wrong), now.change, reported.change)


def verify_text(model: Model | Victim, record: Mapping[str, Any]) -> Verification:
    """Evaluate a saved attack (`TokenAttack.as_record`, or its JSON read back) from its token numbers alone."""
    from howsmooth.attack.tokens.edits import Edit, apply, kept
    from howsmooth.attack.tokens.problem import Victim

    missing = [key for key in RECORDED if key not in record]
    if missing:
        raise InputError(f"expected the record of an attack on tokens, got one without {missing[0]}")
    victim = model if isinstance(model, Victim) else Victim(model)
    objective: TextObjective = objective_of(record["objective"], TEXT_OBJECTIVES)
    embedding, edits = victim.embedding, [Edit(**edit) for edit in record["edits"]]
    ids, attacked = (victim.model._ids(record[key]) for key in ("ids", "attacked_ids"))
    with torch.no_grad():
        before, after = (objective.features(embedding, embedding.matrix[t][None]) for t in (ids, attacked))
        where = torch.tensor([kept(len(ids), edits)], device=ids.device)
        value = float(objective.value(after, before, where))
    success, wrong = bool(edits) and objective.succeeds(value), []
    if apply(ids.tolist(), edits) != attacked.tolist():
        wrong.append("the edits do not give the attacked tokens")
    if not abs(value - record["value"]) <= AGREE * max(1.0, abs(value)):
        wrong.append(f"value: {record['value']:.6g} reported, {value:.6g} found")
    if success != record["success"]:
        wrong.append(f"success: {record['success']} reported, {success} found")
    return Verification(not wrong, tuple(wrong), value, record["value"])


def _model(reported: FeatureAttack) -> Model:
    from howsmooth.models import load

    if "model" not in reported.origin:
        raise InputError(
            "expected a target: this attack was on a map that no file describes; give verify the map and its tokens"
        )
    origin = reported.origin
    model = load(origin["model"], dtype=origin["dtype"], seed=origin["source"].get("seed") or 0)
    if model.source.get("sha256") != origin["source"].get("sha256"):
        raise InputError(f"expected the weights of {model.name!r} that were attacked, got others (sha256)")
    return model


def _found_again(reported: FeatureAttack, model: Model) -> Target:
    origin = reported.origin
    return Target.in_model(model, torch.tensor(origin["ids"]), origin["layer"], origin["kind"], head=origin["head"])


def _objective(reported: FeatureAttack, model: Model | None) -> FeatureObjective:
    if reported.objective["name"] != NextToken.name:
        return objective_of(reported.objective, FEATURE_OBJECTIVES)
    if model is None:
        raise InputError("expected model= to verify an attack on the next token, got none: its head is needed")
    return objective_of(reported.objective, FEATURE_OBJECTIVES, head=model.language_head)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a.double() - b.double()).abs().max() <= 1e-4 * (1 + b.double().abs().max()))
