"""Attacks in feature space, each a small object: where to push within a budget.

    Noise               a random direction: what to compare with
    GradientSign        the sign of one gradient, taken at a little noise (at the clean tokens there is no slope)
    SingularDirection   the first right singular vector of the derivative: the best small perturbation
    ProjectedGradient   ascent on the objective itself, from any of the others; never worse than its start
    edit >> attack      tokens duplicated or inserted first, and then attacked (`edits`)

All of them spend the whole budget: an objective grows with the size of a small perturbation.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from howsmooth.attack.feature.budget import Budget
from howsmooth.attack.feature.edits import Edit
from howsmooth.attack.feature.problem import Problem
from howsmooth.attack.refusals import check_count, check_size
from howsmooth.errors import InputError
from howsmooth.lipschitz import Estimate, local_lipschitz

LITTLE = 1e-3  # of the budget: noise at which a slope is read
LONGEST = 4.0  # budgets that one step of ascent may go


class Attack:
    """`perturb(problem, budget, generator)` gives a perturbation (n, d) within the budget."""

    name: str
    edit: Edit | None = None

    def perturb(self, problem: Problem, budget: Budget, generator: torch.Generator) -> Tensor:
        raise NotImplementedError

    def as_record(self) -> dict:
        return {"name": self.name}


@dataclass(frozen=True)
class Noise(Attack):
    """A uniformly random direction; with a budget per token, one for each token; on random tokens if few may move."""

    name = "noise"

    def perturb(self, problem: Problem, budget: Budget, generator: torch.Generator) -> Tensor:
        shape = problem.x.shape
        e = torch.randn(shape, generator=generator, dtype=torch.float64)
        if budget.tokens is not None:
            e = e * torch.zeros(len(e), 1).double().index_fill(0, torch.randperm(len(e), generator=generator)[
                : budget.tokens], 1)
        return budget.fill(e.to(problem.x))


@dataclass(frozen=True)
class GradientSign(Attack):
    """The sign of the objective's gradient at a thousandth of the budget's noise, as large as the budget allows."""

    name = "sign"

    def perturb(self, problem: Problem, budget: Budget, generator: torch.Generator) -> Tensor:
        noise = Noise().perturb(problem, Budget(budget.size * LITTLE, budget.norm), generator)
        _, slope = problem.slope(noise)
        return budget.scale(budget.sparse(slope).sign())


@dataclass(frozen=True)
class SingularDirection(Attack):
    """±U, the first right singular vector of the derivative at the clean tokens, at the size of the budget.

    With few tokens, those that weigh most in U, and the singular vector of these alone. With a budget per token the
    best direction is no singular vector, and hard to find: U as it is and U with every token at full size are tried.
    """

    tol: float = 1e-2
    name = "singular"

    def perturb(self, problem: Problem, budget: Budget, generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**31, (1,), generator=generator))
        U = self.direction(problem, budget, seed).direction
        shapes = (budget.scale(U),) if budget.norm == "frobenius" else (budget.scale(U), budget.fill(U))
        return problem.best([sign * e for e in shapes for sign in (1, -1)])

    def direction(self, problem: Problem, budget: Budget, seed: int = 0) -> Estimate:
        """The solve behind it, whose value is σ₁."""
        found = self._solve(problem, seed)
        places = budget.places(found.direction)
        return found if places is None else self._solve(problem, seed, places)

    def _solve(self, problem: Problem, seed: int, tokens: Tensor | None = None) -> Estimate:
        found = local_lipschitz(problem.map, problem.x, tol=self.tol, seed=seed, strict=False, tokens=tokens)
        problem.calls += found.products
        return found


@dataclass(frozen=True)
class ProjectedGradient(Attack):
    """Ascent along the gradient within the budget, from a start; a step that gains nothing is halved."""

    start: Attack = field(default_factory=SingularDirection)
    steps: int = 20
    first_step: float = 1.0  # budgets

    def __post_init__(self):
        check_count("ProjectedGradient", "steps", self.steps, least=1)
        check_size("ProjectedGradient", "first_step", self.first_step)
        if not isinstance(self.start, Attack) or self.start.edit is not None:
            raise InputError("ProjectedGradient: expected a start that is an attack without edits, got "
                             f"{self.start!r}; edit first: Duplicate() >> ProjectedGradient(…)")

    @property
    def name(self) -> str:
        return f"ascent from {self.start.name}"

    def perturb(self, problem: Problem, budget: Budget, generator: torch.Generator) -> Tensor:
        best = self.start.perturb(problem, budget, generator)
        value, slope = problem.slope(best)
        step = self.first_step
        for _ in range(self.steps):
            trial = budget.project(best + step * budget.fill(slope))
            reached, slope_there = problem.slope(trial)
            if reached > value:
                best, value, slope, step = trial, reached, slope_there, min(2 * step, LONGEST)
            else:
                step /= 2
        return best

    def as_record(self) -> dict:
        return {"name": self.name, "steps": self.steps}


@dataclass(frozen=True)
class Edited(Attack):
    """An attack on edited tokens."""

    first: Edit
    then: Attack

    @property
    def edit(self) -> Edit:
        return self.first

    @property
    def name(self) -> str:
        return f"{self.first.name} >> {self.then.name}"

    def perturb(self, problem: Problem, budget: Budget, generator: torch.Generator) -> Tensor:
        return self.then.perturb(problem, budget, generator)

    def as_record(self) -> dict:
        return {**self.then.as_record(), "name": self.name, "edit": self.first.name}
