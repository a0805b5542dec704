"""What an attack hands back: the perturbation, what it changed, what it cost, and the way to find it again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor

from howsmooth.attack.feature.attacks import Attack
from howsmooth.attack.feature.budget import Budget, touched
from howsmooth.attack.feature.objectives import Objective, OutputChange
from howsmooth.attack.feature.problem import Problem
from howsmooth.attack.feature.targets import Target
from howsmooth.attack.refusals import check_seed
from howsmooth.errors import InputError

READABLE = 100  # units of rounding that a change must exceed to be read


@dataclass(frozen=True, eq=False)
class FeatureAttack:
    """One attack on one target at one budget.

    spent is ‖E‖_F, whatever norm the budget is in; gain = change/spent, and change is the objective as a length (see
    `objectives`): no gain exceeds the Lipschitz constant of the map on a convex set that holds X and X + E. `clean` and
    `attacked` are the objective in its own unit. status is "rounding" where the change is so small that rounding in
    `dtype` may be most of it, else "fine". `x` are the tokens that were perturbed, after an edit if there was one.
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
        return {"attack": self.attack, "objective": self.objective, "budget": self.budget.as_record(),
                **{name: getattr(self, name) for name in names}, "dtype": str(self.dtype).removeprefix("torch."),
                **self.facts}


def run(attack: Attack, target: Target, budget: Budget, objective: Objective | None = None, *,
        seed: int = 0) -> FeatureAttack:
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
    problem = Problem(target, objective)
    e = attack.perturb(problem, budget, torch.Generator().manual_seed(seed)).detach()
    problem.calls += 1
    return evaluated(problem, e, attack=attack.as_record(), budget=budget, seed=seed, began=began)


def evaluated(problem: Problem, e: Tensor, *, attack: dict, budget: Budget, seed: int, began: float) -> FeatureAttack:
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
    fine = change > READABLE * torch.finfo(target.dtype).eps * scale
    return FeatureAttack(
        attack=attack, objective=objective.as_record(), budget=budget, spent=spent, touched=touched(e), change=change,
        gain=change / spent if spent > 0 else 0.0, clean=objective.at_rest, attacked=reading, calls=problem.calls,
        seconds=time.perf_counter() - began, seed=seed, dtype=target.dtype, status="fine" if fine else "rounding",
        n=target.n, origin=target.origin, facts=facts, x=target.x, perturbation=e)
