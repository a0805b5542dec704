"""The result of an attack in feature space: the perturbation, its effect, its cost, and its origin.

An attack is saved as a safetensors file with the tokens and the perturbation, and its record as metadata.
`howsmooth.attack.feature.verify` evaluates it again.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from howsmooth.attack.checks import Verification, check_seed
from howsmooth.attack.feature.attacks import Attack
from howsmooth.attack.feature.problem import Budget, FeatureProblem, Target, count_perturbed_tokens
from howsmooth.attack.objectives import FEATURE_OBJECTIVES, FeatureObjective, NextToken, OutputChange, objective_of
from howsmooth.display import Displayed
from howsmooth.errors import InputError
from howsmooth.extras import require

if TYPE_CHECKING:
    from howsmooth.models.model import Model


FILE_FORMAT = 1
ABOVE_ROUNDING = "above rounding"  # the status of a change that can be relied on
MIN_ROUNDING_UNITS = 100  # a smaller change may be mostly rounding
NUMBERS = ("spent", "touched", "change", "gain", "clean", "attacked", "calls", "seconds", "seed", "status")


@dataclass(frozen=True, eq=False)
class FeatureAttack(Displayed):
    """One attack on one target with one budget.

    Attributes:
        attack: the record of the attack.
        objective: the record of the objective.
        budget: the set of perturbations.
        spent: ‖E‖_F, whatever the norm of the budget.
        touched: the number of tokens perturbed.
        change: the objective as a length (see `howsmooth.attack.objectives`).
        gain: change/spent. No gain exceeds the Lipschitz constant of the map on a convex set with X and X + E.
        clean: the objective at the clean tokens, in its own unit.
        attacked: the objective at the perturbed tokens, in its own unit.
        calls: evaluations of the map, products with its derivative included.
        seconds: the wall-clock time.
        seed: the seed of the attack.
        dtype: the dtype of the tokens.
        status: "rounding" if the change is so small that it may be mostly rounding, "not finite" if the map overflows
            at the perturbed tokens, else "above rounding".
        n: the number of tokens, after an edit if there was one.
        origin: where the target comes from, see `Target`.
        facts: further facts about the attacked output, such as flipped tokens.
        x: the tokens that were perturbed, after an edit if there was one, (n, d).
        perturbation: E, (n, d).
    """

    attack: dict[str, Any]
    objective: dict[str, Any]
    budget: Budget
    spent: float
    touched: int
    change: float
    gain: float
    clean: float
    attacked: float
    calls: int
    seconds: float
    seed: int
    dtype: torch.dtype
    status: str
    n: int
    origin: dict[str, Any] = field(repr=False)
    facts: dict[str, Any]
    x: Tensor = field(repr=False)
    perturbation: Tensor = field(repr=False)

    def as_record(self) -> dict[str, Any]:
        """Return everything but the tensors and the origin as plain Python values."""
        return {
            "attack": self.attack,
            "objective": self.objective,
            "budget": self.budget.as_record(),
            **{name: getattr(self, name) for name in (*NUMBERS, "n")},
            "dtype": str(self.dtype).removeprefix("torch."),
            **self.facts,
        }


def run(
    attack: Attack, target: Target, budget: Budget, objective: FeatureObjective | None = None, *, seed: int = 0
) -> FeatureAttack:
    """Attack a target within a budget. The same seed gives the same perturbation.

    Args:
        attack: the attack.
        target: the map and its tokens.
        budget: the set of perturbations.
        objective: what should change; the output of the map unless given.
        seed: seed of all random draws.

    Returns:
        The perturbation and its effect.

    Raises:
        InputError: an argument has the wrong type, or the budget or the objective does not fit the target.

    Example:
        >>> from howsmooth.attack.feature import SingularDirection
        >>> target = Target.of(lambda x: x * torch.tensor([1.0, 3.0]), torch.zeros(2, 2))
        >>> round(run(SingularDirection(), target, Budget(0.5)).gain, 6)
        3.0
    """
    expected: tuple[tuple[object, str, type], ...] = (
        (attack, "attack", Attack),
        (target, "target", Target),
        (budget, "budget", Budget),
    )
    for value, name, kind in expected:
        if not isinstance(value, kind):
            raise InputError(f"run: expected {name} as {kind.__name__}, got {type(value).__name__}")
    check_seed("run", seed)
    began = time.perf_counter()
    objective = OutputChange() if objective is None else objective
    if attack.edit is not None:
        target = target.with_tokens(attack.edit(target.x))
    budget.check(target.n)
    problem = FeatureProblem(target, objective)
    e = attack.perturb(problem, budget, torch.Generator().manual_seed(seed)).detach()
    problem.calls += 1
    return evaluate(problem, e, attack=attack.as_record(), budget=budget, seed=seed, began=began)


def evaluate(
    problem: FeatureProblem, e: Tensor, *, attack: dict[str, Any], budget: Budget, seed: int, began: float
) -> FeatureAttack:
    """Measure the effect of a perturbation by one evaluation of the map."""
    target, objective = problem.target, problem.objective
    x = target.x + e
    e = x - target.x  # the perturbation after rounding: gains are relative to the actual change of the input
    with torch.no_grad():
        y = target.f(x)
        change = float(objective.length(y, problem.clean))
        attacked, details = objective.measure(y, problem.clean), objective.details(y, problem.clean)
        scale = float(torch.linalg.vector_norm(objective.coordinates(problem.clean), dtype=torch.float64))
    spent = float(torch.linalg.vector_norm(e, dtype=torch.float64))
    above_rounding = change > MIN_ROUNDING_UNITS * torch.finfo(target.dtype).eps * scale
    status = "not finite" if not math.isfinite(change) else ABOVE_ROUNDING if above_rounding else "rounding"
    return FeatureAttack(
        attack=attack,
        objective=objective.as_record(),
        budget=budget,
        spent=spent,
        touched=count_perturbed_tokens(e),
        change=change,
        gain=change / spent if spent > 0 else 0.0,
        clean=objective.clean_value,
        attacked=attacked,
        calls=problem.calls,
        seconds=time.perf_counter() - began,
        seed=seed,
        dtype=target.dtype,
        status=status,
        n=target.n,
        origin=target.origin,
        facts=details,
        x=target.x,
        perturbation=e,
    )


def save_attack(attack: FeatureAttack, path: str | os.PathLike[str], more: dict[str, Any] | None = None) -> None:
    """Write an attack to a safetensors file, which is complete or absent.

    Args:
        attack: the result of `run`.
        path: the file.
        more: further entries of the record.
    """
    require("safetensors", purpose="to save attacks")
    from safetensors.torch import save_file

    metadata = {
        "format": str(FILE_FORMAT),
        "record": json.dumps(attack.as_record() | (more or {}), ensure_ascii=False),
        "origin": json.dumps(attack.origin, ensure_ascii=False),
    }
    partial_file = Path(f"{os.fspath(path)}.part")
    save_file(
        {"tokens": attack.x.contiguous().cpu(), "perturbation": attack.perturbation.contiguous().cpu()},
        partial_file,
        metadata=metadata,
    )
    partial_file.replace(path)


def read_attack_file(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Tensor]]:
    """Return (record, origin, tensors) of a file that `save_attack` wrote."""
    require("safetensors", purpose="to read saved attacks")
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in ("tokens", "perturbation")}
        return json.loads(metadata["record"]), json.loads(metadata["origin"]), tensors
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(
            f"expected a saved attack, got {os.fspath(path)!r} ({type(error).__name__}: {error}); name a "
            "file that save_attack wrote"
        ) from None


def load_attack(path: str | os.PathLike[str]) -> FeatureAttack:
    """Return a saved attack as it is in the file; `verify` checks it.

    Args:
        path: a file that `save_attack` wrote.

    Raises:
        InputError: the file is missing or not a saved attack.
    """
    record, origin, tensors = read_attack_file(path)
    names = ("attack", "objective", *NUMBERS)
    known = {*names, "budget", "dtype", "n"}
    return FeatureAttack(
        **{name: record[name] for name in names},
        budget=Budget(**record["budget"]),
        dtype=getattr(torch, record["dtype"]),
        origin=origin,
        n=len(tensors["tokens"]),
        facts={key: value for key, value in record.items() if key not in known},
        x=tensors["tokens"],
        perturbation=tensors["perturbation"],
    )


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
