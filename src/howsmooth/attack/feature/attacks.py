"""Attacks in feature space, each a small object: where to push within a budget.

    Noise               a random direction: what to compare with
    GradientSign        the sign of one gradient, taken at a little noise (at the clean tokens there is no slope)
    SingularDirection   the first right singular vector of the derivative: the best small perturbation
    ProjectedGradient   ascent on the objective itself, from any of the others; never worse than its start
    edit >> attack      tokens duplicated or inserted first, and then attacked

All of them spend the whole budget: an objective grows with the size of a small perturbation.

Edits duplicate or insert tokens before they are perturbed. Duplicating every token leaves attention without positions
as it was: the same outputs, each as often as its token. What is new is that copies may part, which an unsplit token
cannot do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.attack.constraints import check_count, check_size
from howsmooth.attack.feature.problem import Budget, FeatureProblem
from howsmooth.errors import InputError
from howsmooth.lipschitz import Estimate, local_lipschitz

LITTLE = 1e-3  # of the budget: noise at which a slope is read
LONGEST = 4.0  # budgets that one step of ascent may go


class FeatureEdit:
    """x (n, d) ↦ more tokens; `edit >> attack` attacks what the edit has made, `edit >> edit` does both."""

    name: str

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def as_record(self) -> dict:
        return {"name": self.name, **settings_of(self)}

    def __rshift__(self, then):
        if isinstance(then, FeatureEdit):
            return Both(self, then)
        if isinstance(then, Attack):
            return Edited(self, then)
        raise InputError(f"{self.name} >>: expected another edit or an attack, got {type(then).__name__}")


@dataclass(frozen=True)
class Both(FeatureEdit):
    """One edit, then another."""

    first: FeatureEdit
    second: FeatureEdit

    @property
    def name(self) -> str:
        return f"{self.first.name} >> {self.second.name}"

    def __call__(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


@dataclass(frozen=True)
class Duplicate(FeatureEdit):
    """`times` copies, side by side, of each of these tokens (all of them unless given).

    >>> Duplicate((1,))(torch.tensor([[1.0], [2.0], [3.0]])).flatten().tolist()
    [1.0, 2.0, 2.0, 3.0]
    """

    tokens: tuple[int, ...] | None = None
    times: int = 2

    def __post_init__(self):
        check_count("Duplicate", "times", self.times, least=1)

    @property
    def name(self) -> str:
        which = "all" if self.tokens is None else ",".join(map(str, self.tokens))
        return f"duplicate {which} ×{self.times}"

    def __call__(self, x: Tensor) -> Tensor:
        counts = torch.full((len(x),), self.times, device=x.device)
        if self.tokens is not None:
            counts = torch.ones_like(counts).index_fill(0, places(self.name, self.tokens, len(x), x), self.times)
        return x.repeat_interleave(counts, dim=0)


@dataclass(frozen=True, eq=False)
class Insert(FeatureEdit):
    """One more token in front of place `at` (n: at the end): a copy of token `what`, or a row `what` of features (d,).

    >>> Insert(0, 2)(torch.tensor([[1.0], [2.0], [3.0]])).flatten().tolist()
    [3.0, 1.0, 2.0, 3.0]
    """

    at: int
    what: int | Tensor

    @property
    def name(self) -> str:
        what = "a row" if isinstance(self.what, Tensor) else f"token {self.what}"
        return f"insert {what} at {self.at}"

    def __call__(self, x: Tensor) -> Tensor:
        n, d = x.shape
        if not 0 <= self.at <= n:
            raise InputError(f"insert: expected a place from 0 to {n}, got {self.at}")
        if isinstance(self.what, Tensor):
            if self.what.shape != (d,):
                raise InputError(f"insert: expected a row of shape ({d},), got {tuple(self.what.shape)}")
            row = self.what.detach().to(x)
        else:
            row = x[places("insert", (self.what,), n, x)[0]]
        return torch.cat([x[: self.at], row.unsqueeze(0), x[self.at :]])


def settings_of(made: Any) -> dict[str, Any]:
    """The fields of an edit or an attack as plain values, a tensor by its digest: two that differ have other ones.

    >>> settings_of(Duplicate((1,)))
    {'tokens': (1,), 'times': 2}
    """
    return {field.name: _plain(getattr(made, field.name)) for field in (fields(made) if is_dataclass(made) else ())}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        numbers = value.detach().cpu().double().contiguous().numpy()
        return f"sha256:{hashlib.sha256(numbers.tobytes()).hexdigest()}"
    return value.as_record() if hasattr(value, "as_record") else value


def places(of: str, tokens: tuple[int, ...], n: int, like: Tensor) -> Tensor:
    """Token places as a tensor, refused where there is no such token."""
    wrong = [token for token in tokens if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < n]
    if wrong or not tokens:
        raise InputError(f"{of}: expected tokens from 0 to {n - 1}, got {wrong[0] if wrong else 'none'}")
    return torch.tensor(tokens, device=like.device)


class Attack:
    """`perturb(problem, budget, generator)` gives a perturbation (n, d) within the budget."""

    name: str
    edit: FeatureEdit | None = None

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        raise NotImplementedError

    def as_record(self) -> dict:
        """The name and every setting: attacks that differ have records that differ."""
        return {"name": self.name, **settings_of(self)}


@dataclass(frozen=True)
class Noise(Attack):
    """A uniformly random direction; with a budget per token, one for each token; on random tokens if few may move."""

    name = "noise"

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        shape = problem.x.shape
        e = torch.randn(shape, generator=generator, dtype=torch.float64)
        if budget.tokens is not None:
            e = e * torch.zeros(len(e), 1).double().index_fill(
                0, torch.randperm(len(e), generator=generator)[: budget.tokens], 1
            )
        return budget.fill(e.to(problem.x))


@dataclass(frozen=True)
class GradientSign(Attack):
    """The sign of the objective's gradient at a thousandth of the budget's noise, as large as the budget allows."""

    name = "sign"

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
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

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        seed = int(torch.randint(2**31, (1,), generator=generator))
        U = self.direction(problem, budget, seed).direction
        shapes = (budget.scale(U),) if budget.norm == "frobenius" else (budget.scale(U), budget.fill(U))
        return problem.best([sign * e for e in shapes for sign in (1, -1)])

    def direction(self, problem: FeatureProblem, budget: Budget, seed: int = 0) -> Estimate:
        """The solve behind it, whose value is σ₁."""
        found = self._solve(problem, seed)
        places = budget.places(found.direction)
        return found if places is None else self._solve(problem, seed, places)

    def _solve(self, problem: FeatureProblem, seed: int, tokens: Tensor | None = None) -> Estimate:
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
            raise InputError(
                "ProjectedGradient: expected a start that is an attack without edits, got "
                f"{self.start!r}; edit first: Duplicate() >> ProjectedGradient(…)"
            )

    @property
    def name(self) -> str:
        return f"ascent from {self.start.name}"

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
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


@dataclass(frozen=True)
class Edited(Attack):
    """An attack on edited tokens."""

    first: FeatureEdit
    then: Attack

    @property
    def edit(self) -> FeatureEdit:
        return self.first

    @property
    def name(self) -> str:
        return f"{self.first.name} >> {self.then.name}"

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        return self.then.perturb(problem, budget, generator)

    def as_record(self) -> dict:
        return {**self.then.as_record(), "name": self.name, "edit": self.first.as_record()}
