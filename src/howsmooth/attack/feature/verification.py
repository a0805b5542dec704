"""Verification of saved attacks on features: the map is evaluated again at the saved tokens and perturbation."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.attack.checks import Verification
from howsmooth.attack.feature.problem import FeatureProblem, Target, count_perturbed_tokens
from howsmooth.attack.feature.result import ABOVE_ROUNDING, FeatureAttack, evaluate, load_attack
from howsmooth.attack.objectives import FEATURE_OBJECTIVES, FeatureObjective, NextToken, objective_of
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.models.model import Model

TOLERANCE = 1e-4  # relative, for another order of summation on another machine; on the same one it is exact
COMPARED_FIELDS = ("spent", "change", "gain", "attacked")


def verify(path: str | os.PathLike[str], target: Target | None = None, *, model: Model | None = None) -> Verification:
    """Evaluate the map again at the saved tokens and perturbation, and compare with what was reported.

    A target in a model is reconstructed from the file. Its tokens are then computed again from the token ids, too,
    unless an edit has added tokens.

    Args:
        path: a file that `save_attack` wrote.
        target: the map and its tokens; required for maps that are not part of a model.
        model: the model, if it is loaded already.

    Returns:
        What agrees and what does not; the values are changes, as lengths.

    Raises:
        InputError: the file is not a saved attack, or the target or the model is needed and not given.
    """
    reported, wrong = load_attack(path), []
    given = model
    if target is None:
        model = model if model is not None else _load_model(reported)
        target = _target_of(reported, model)
        edited = "edit" in reported.attack
        if not edited and not _close(target.x, reported.x):
            wrong.append("the tokens are not those that enter the map on this text")
        if given is not None and given.source.get("sha256") != reported.origin["source"].get("sha256"):
            wrong.append("the weights are not those that were attacked")
    target = target.double() if reported.dtype == torch.float64 else target
    target = target.with_tokens(reported.x.to(target.x.device))
    problem = FeatureProblem(target, _objective(reported, model))
    found = evaluate(
        problem,
        reported.perturbation.to(target.x.device),
        attack=reported.attack,
        budget=reported.budget,
        seed=reported.seed,
        began=time.perf_counter(),
    )
    for name in COMPARED_FIELDS:
        before, now = getattr(reported, name), getattr(found, name)
        tolerance = TOLERANCE * abs(before) if reported.status == ABOVE_ROUNDING else abs(before)
        if reported.status == ABOVE_ROUNDING and name == "attacked":
            tolerance = max(tolerance, 1e-6)
        if not abs(before - now) <= tolerance:
            wrong.append(f"{name}: {before:.8g} reported, {now:.8g} found")
    touched = count_perturbed_tokens(reported.perturbation)
    if reported.touched != touched:
        wrong.append(f"tokens touched: {reported.touched} reported, {touched} found")
    if not reported.budget.allows(reported.perturbation, slack=1e-3 if reported.dtype == torch.float32 else 1e-6):
        wrong.append(f"the perturbation is beyond its budget {reported.budget}")
    for key, fact in reported.facts.items():
        if key in found.facts and found.facts[key] != fact:
            wrong.append(f"{key}: {fact} reported, {found.facts[key]} found")
    return Verification(not wrong, tuple(wrong), found.change, reported.change)


def _load_model(reported: FeatureAttack) -> Model:
    """Load the model that was attacked, and check its weights."""
    from howsmooth.models.loading import load

    if "model" not in reported.origin:
        raise InputError(
            "expected a target: the file does not describe the attacked map; give verify the map and its tokens"
        )
    origin = reported.origin
    model = load(origin["model"], dtype=origin["dtype"], seed=origin["source"].get("seed") or 0)
    if model.source.get("sha256") != origin["source"].get("sha256"):
        raise InputError(f"expected the weights of {model.name!r} that were attacked, got others (sha256)")
    return model


def _target_of(reported: FeatureAttack, model: Model) -> Target:
    """Return the target in the model that the file describes."""
    origin = reported.origin
    return Target.in_model(model, torch.tensor(origin["ids"]), origin["layer"], origin["map"], head=origin["head"])


def _objective(reported: FeatureAttack, model: Model | None) -> FeatureObjective:
    """Return the objective that the file describes."""
    if reported.objective["name"] != NextToken.name:
        return objective_of(reported.objective, FEATURE_OBJECTIVES)
    if model is None:
        raise InputError("expected model= to verify an attack on the next token, got none: its head is needed")
    return objective_of(reported.objective, FEATURE_OBJECTIVES, head=model.language_head)


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool((a.double() - b.double()).abs().max() <= 1e-4 * (1 + b.double().abs().max()))
