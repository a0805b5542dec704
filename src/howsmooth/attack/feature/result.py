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
from typing import Any

import torch
from torch import Tensor

from howsmooth.attack.checks import check_seed
from howsmooth.attack.feature.attacks import Attack
from howsmooth.attack.feature.problem import Budget, FeatureProblem, Target, count_perturbed_tokens
from howsmooth.attack.objectives import FeatureObjective, OutputChange
from howsmooth.display import Displayed
from howsmooth.errors import InputError
from howsmooth.extras import require

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
