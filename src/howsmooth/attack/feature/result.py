"""What an attack hands back: the perturbation, what it changed, what it cost, and the way to find it again.

An attack is kept as a file: tokens and perturbation as safetensors, the record beside them.
`howsmooth.attack.verification` evaluates it once more.
"""

from __future__ import annotations

import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from howsmooth.attack.constraints import check_seed
from howsmooth.attack.feature.attacks import Attack
from howsmooth.attack.feature.problem import Budget, FeatureProblem, Target, touched
from howsmooth.attack.objectives import FeatureObjective, OutputChange
from howsmooth.errors import InputError

FORMAT = 1  # of saved files
READABLE = 100  # units of rounding that a change must exceed to be read


@dataclass(frozen=True, eq=False)
class FeatureAttack:
    """One attack on one target at one budget.

    spent is ‖E‖_F, whatever norm the budget is in; gain = change/spent, and change is the objective as a length (see
    `attack.objectives`): no gain exceeds the Lipschitz constant of the map on a convex set that holds X and X + E.
    `clean` and `attacked` are the objective in its own unit. status is "rounding" where the change is so small that
    rounding in `dtype` may be most of it, "not finite" where the map overflows there, else "fine". `x` are the tokens
    that were perturbed, after an edit if there was one.
    """

    attack: dict
    objective: dict
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
    origin: dict = field(repr=False)
    facts: dict
    x: Tensor = field(repr=False)
    perturbation: Tensor = field(repr=False)

    def as_record(self) -> dict:
        """The numbers as plain Python values, under the names used everywhere."""
        names = ("spent", "touched", "change", "gain", "clean", "attacked", "calls", "seconds", "seed", "status", "n")
        return {
            "attack": self.attack,
            "objective": self.objective,
            "budget": self.budget.as_record(),
            **{name: getattr(self, name) for name in names},
            "dtype": str(self.dtype).removeprefix("torch."),
            **self.facts,
        }


def run(
    attack: Attack, target: Target, budget: Budget, objective: FeatureObjective | None = None, *, seed: int = 0
) -> FeatureAttack:
    """Attack a target within a budget. The same seed gives the same perturbation.

    >>> from howsmooth.attack.feature import SingularDirection
    >>> target = Target.of(lambda x: x * torch.tensor([1.0, 3.0]), torch.zeros(2, 2))
    >>> round(run(SingularDirection(), target, Budget(0.5)).gain, 6)
    3.0
    """
    for what, name, kind in ((attack, "attack", Attack), (target, "target", Target), (budget, "budget", Budget)):
        if not isinstance(what, kind):
            raise InputError(f"run: expected {name} as {kind.__name__}, got {type(what).__name__}")
    check_seed("run", seed)
    began = time.perf_counter()
    objective = OutputChange() if objective is None else objective
    if attack.edit is not None:
        target = target.rows(attack.edit(target.x))
    budget.check(target.n)
    problem = FeatureProblem(target, objective)
    e = attack.perturb(problem, budget, torch.Generator().manual_seed(seed)).detach()
    problem.calls += 1
    return evaluated(problem, e, attack=attack.as_record(), budget=budget, seed=seed, began=began)


def evaluated(
    problem: FeatureProblem, e: Tensor, *, attack: dict, budget: Budget, seed: int, began: float
) -> FeatureAttack:
    """What a perturbation does, by one evaluation of the map."""
    target, objective = problem.target, problem.objective
    x = target.x + e
    e = x - target.x  # what is left of it after rounding: gains are measured against what was really changed
    with torch.no_grad():
        y = target.f(x)
        change = float(objective.length(y, problem.clean))
        reading, facts = objective.reading(y, problem.clean), objective.facts(y, problem.clean)
        scale = float(torch.linalg.vector_norm(objective.coordinates(problem.clean), dtype=torch.float64))
    spent = float(torch.linalg.vector_norm(e, dtype=torch.float64))
    readable = change > READABLE * torch.finfo(target.dtype).eps * scale
    status = "not finite" if not math.isfinite(change) else "fine" if readable else "rounding"
    return FeatureAttack(
        attack=attack,
        objective=objective.as_record(),
        budget=budget,
        spent=spent,
        touched=touched(e),
        change=change,
        gain=change / spent if spent > 0 else 0.0,
        clean=objective.at_rest,
        attacked=reading,
        calls=problem.calls,
        seconds=time.perf_counter() - began,
        seed=seed,
        dtype=target.dtype,
        status=status,
        n=target.n,
        origin=target.origin,
        facts=facts,
        x=target.x,
        perturbation=e,
    )


def save_attack(attack: FeatureAttack, path: str | os.PathLike, more: dict | None = None) -> None:
    """Write an attack; `more` is kept with its record. The file is complete or absent."""
    facts = {
        "format": str(FORMAT),
        "record": json.dumps(attack.as_record() | (more or {}), ensure_ascii=False),
        "origin": json.dumps(attack.origin, ensure_ascii=False),
    }
    building = Path(f"{os.fspath(path)}.part")
    save_file(
        {"tokens": attack.x.contiguous().cpu(), "perturbation": attack.perturbation.contiguous().cpu()},
        building,
        metadata=facts,
    )
    building.replace(path)


def read(path: str | os.PathLike) -> tuple[dict, dict, dict[str, torch.Tensor]]:
    """(record, origin, tensors) of a file that `save_attack` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  safe_open cannot be iterated
        return (
            json.loads(facts["record"]),
            json.loads(facts["origin"]),
            {k: tensors[k] for k in ("tokens", "perturbation")},
        )
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise InputError(
            f"expected a saved attack, got {os.fspath(path)!r} ({type(error).__name__}: {error}); name a "
            "file that save_attack wrote"
        ) from None


def load_attack(path: str | os.PathLike) -> FeatureAttack:
    """The attack as it was saved, unchecked: `verify` checks it."""
    record, origin, tensors = read(path)
    names = (
        "attack",
        "objective",
        "spent",
        "touched",
        "change",
        "gain",
        "clean",
        "attacked",
        "calls",
        "seconds",
        "seed",
        "status",
    )
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
