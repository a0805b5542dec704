"""Attacks in feature space: each is a small object that returns a perturbation within a budget.

    Noise               a random direction, as a baseline
    GradientSign        the sign of one gradient, taken near the clean tokens (at the clean tokens it is zero)
    SingularDirection   the first right singular vector of the derivative: the best small perturbation
    ProjectedGradient   projected gradient ascent on the objective from any of the others; never worse than its start
    edit >> attack      duplicates or inserts tokens first, and then attacks

All of them use the whole budget, since an objective grows with the size of a small perturbation.

Edits duplicate or insert tokens before these are perturbed. Duplicating every token does not change attention without
positions: it gives the same outputs, each as often as its token. But copies can be moved apart, which is not possible
for a single token.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, overload

import torch
from torch import Tensor

from howsmooth.attack.checks import check_count, check_size, single_estimate
from howsmooth.attack.feature.problem import Budget, FeatureProblem
from howsmooth.errors import InputError
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.local import local_lipschitz
from howsmooth.norms import NORMS

GRADIENT_NOISE = 1e-3  # size of the noise at which a gradient is taken, relative to the budget
MAX_STEP = 4.0  # longest step of the ascent, in budgets


class FeatureEdit:
    """A map from tokens (n, d) to more tokens. `edit >> edit` composes two, `edit >> attack` edits before an attack."""

    @property
    def name(self) -> str:
        """The edit and its settings in words."""
        raise NotImplementedError

    def __call__(self, x: Tensor) -> Tensor:
        """Return the edited tokens."""
        raise NotImplementedError

    def as_record(self) -> dict[str, Any]:
        """Return the name and every setting."""
        return {"name": self.name, **settings_of(self)}

    @overload
    def __rshift__(self, then: FeatureEdit) -> EditSequence: ...
    @overload
    def __rshift__(self, then: Attack) -> Edited: ...
    def __rshift__(self, then: FeatureEdit | Attack) -> EditSequence | Edited:
        """Return this edit followed by another edit or by an attack."""
        if isinstance(then, FeatureEdit):
            return EditSequence(self, then)
        if isinstance(then, Attack):
            return Edited(self, then)
        raise InputError(f"{self.name} >>: expected another edit or an attack, got {type(then).__name__}")


@dataclass(frozen=True)
class EditSequence(FeatureEdit):
    """One edit, then another.

    Attributes:
        first: the edit that is applied first.
        second: the edit of its result.
    """

    first: FeatureEdit
    second: FeatureEdit

    @property
    def name(self) -> str:
        """Both names, in the order of application."""
        return f"{self.first.name} >> {self.second.name}"

    def __call__(self, x: Tensor) -> Tensor:
        """Apply both edits."""
        return self.second(self.first(x))


@dataclass(frozen=True)
class Duplicate(FeatureEdit):
    """Copies of tokens, next to the original.

    Attributes:
        tokens: the positions to duplicate; None for all.
        times: how often each of them occurs afterwards.

    Example:
        >>> Duplicate((1,))(torch.tensor([[1.0], [2.0], [3.0]])).flatten().tolist()
        [1.0, 2.0, 2.0, 3.0]
    """

    tokens: tuple[int, ...] | None = None
    times: int = 2

    def __post_init__(self) -> None:
        """Check the fields."""
        check_count("Duplicate", "times", self.times, least=1)

    @property
    def name(self) -> str:
        """The positions and the number of copies."""
        positions = "all" if self.tokens is None else ",".join(map(str, self.tokens))
        return f"duplicate {positions} ×{self.times}"

    def __call__(self, x: Tensor) -> Tensor:
        """Return the tokens with their copies."""
        counts = torch.full((len(x),), self.times, device=x.device)
        if self.tokens is not None:
            positions = _checked_positions(self.name, self.tokens, len(x), x.device)
            counts = torch.ones_like(counts).index_fill(0, positions, self.times)
        return x.repeat_interleave(counts, dim=0)


@dataclass(frozen=True, eq=False)
class Insert(FeatureEdit):
    """One more token.

    Attributes:
        at: the position before which it is inserted; n appends it.
        what: the position of a token to copy, or a row of features (d,).

    Example:
        >>> Insert(0, 2)(torch.tensor([[1.0], [2.0], [3.0]])).flatten().tolist()
        [3.0, 1.0, 2.0, 3.0]
    """

    at: int
    what: int | Tensor

    @property
    def name(self) -> str:
        """What is inserted, and where."""
        what = "a row" if isinstance(self.what, Tensor) else f"token {self.what}"
        return f"insert {what} at {self.at}"

    def __call__(self, x: Tensor) -> Tensor:
        """Return the tokens with the inserted one."""
        n, d = x.shape
        if not 0 <= self.at <= n:
            raise InputError(f"insert: expected a position from 0 to {n}, got {self.at}")
        if isinstance(self.what, Tensor):
            if self.what.shape != (d,):
                raise InputError(f"insert: expected a row of shape ({d},), got {tuple(self.what.shape)}")
            row = self.what.detach().to(x)
        else:
            row = x[_checked_positions("insert", (self.what,), n, x.device)[0]]
        return torch.cat([x[: self.at], row.unsqueeze(0), x[self.at :]])


def settings_of(instance: object) -> dict[str, Any]:
    """Return the fields of an edit or an attack as plain values, tensors as a digest of their entries.

    Example:
        >>> settings_of(Duplicate((1,)))
        {'tokens': (1,), 'times': 2}
    """
    if not is_dataclass(instance):
        return {}
    return {field.name: _plain(getattr(instance, field.name)) for field in fields(instance)}


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor):
        numbers = value.detach().cpu().double().contiguous().numpy()
        return f"sha256:{hashlib.sha256(numbers.tobytes()).hexdigest()}"
    return value.as_record() if hasattr(value, "as_record") else value


def _checked_positions(caller: str, tokens: tuple[int, ...], n: int, device: torch.device) -> Tensor:
    """Return positions as a tensor; refuse those outside 0 … n − 1."""
    wrong = [token for token in tokens if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < n]
    if wrong or not tokens:
        raise InputError(f"{caller}: expected tokens from 0 to {n - 1}, got {wrong[0] if wrong else 'none'}")
    return torch.tensor(tokens, device=device)


class Attack:
    """The interface of attacks in feature space: `perturb`, a name, and an edit that comes first."""

    @property
    def name(self) -> str:
        """The attack in words."""
        raise NotImplementedError

    @property
    def edit(self) -> FeatureEdit | None:
        """The edit of the tokens before the attack; None for most attacks."""
        return None

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        """Return a perturbation (n, d) within the budget."""
        raise NotImplementedError

    def as_record(self) -> dict[str, Any]:
        """Return the name and every setting, so that different attacks have different records."""
        return {"name": self.name, **settings_of(self)}


@dataclass(frozen=True)
class Noise(Attack):
    """A uniformly random direction, or one per token with a budget per token.

    If the budget limits the number of tokens, random ones are perturbed.
    """

    name = "noise"

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        """Return a random perturbation of the size of the budget."""
        e = torch.randn(problem.x.shape, generator=generator, dtype=torch.float64)
        if budget.tokens is not None:
            chosen = torch.randperm(len(e), generator=generator)[: budget.tokens]
            e = e * torch.zeros(len(e), 1).double().index_fill(0, chosen, 1)
        return budget.maximise(e.to(problem.x))


@dataclass(frozen=True)
class GradientSign(Attack):
    """The sign of the objective's gradient, rescaled to the budget.

    The gradient is taken at noise of a thousandth of the budget: at the clean tokens it is zero.
    """

    name = "sign"

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        """Return the rescaled sign of the gradient."""
        noise = Noise().perturb(problem, Budget(budget.size * GRADIENT_NOISE, budget.norm), generator)
        _, gradient = problem.value_and_gradient(noise)
        return budget.rescale(budget.restrict(gradient).sign())


@dataclass(frozen=True)
class SingularDirection(Attack):
    """±U, the first right singular vector of the derivative at the clean tokens, rescaled to the budget.

    If the budget limits the number of tokens, those with the largest norm in U are perturbed, along the singular vector
    of the derivative restricted to them. With a budget per token the best direction is not a singular vector, and hard
    to compute; U as it is, and U with every token at full size, are tried.

    Attributes:
        tol: relative width of the interval for σ₁.
    """

    tol: float = 1e-2

    name = "singular"

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        """Return the better sign of the rescaled singular direction."""
        seed = int(torch.randint(2**31, (1,), generator=generator))
        U = self.direction(problem, budget, seed).direction
        candidates = [budget.rescale(U)]
        if NORMS[budget.norm].each_token:
            candidates.append(budget.maximise(U))
        return problem.best([sign * e for e in candidates for sign in (1, -1)])

    def direction(self, problem: FeatureProblem, budget: Budget, seed: int = 0) -> Estimate:
        """Return the estimate of σ₁ with its singular vectors, for the tokens that the budget allows."""
        found = self._solve(problem, seed)
        positions = budget.positions(found.direction)
        return found if positions is None else self._solve(problem, seed, positions)

    def _solve(self, problem: FeatureProblem, seed: int, tokens: Tensor | None = None) -> Estimate:
        found = single_estimate(
            local_lipschitz(problem.map, problem.x, tol=self.tol, seed=seed, strict=False, tokens=tokens)
        )
        problem.calls += found.products
        return found


@dataclass(frozen=True)
class ProjectedGradient(Attack):
    """Projected gradient ascent on the objective; a step that does not increase it is halved.

    Attributes:
        start: the attack whose perturbation is the starting point.
        steps: the number of steps.
        first_step: the length of the first step, in budgets.
    """

    start: Attack = field(default_factory=SingularDirection)
    steps: int = 20
    first_step: float = 1.0

    def __post_init__(self) -> None:
        """Check the fields."""
        check_count("ProjectedGradient", "steps", self.steps, least=1)
        check_size("ProjectedGradient", "first_step", self.first_step)
        if not isinstance(self.start, Attack) or self.start.edit is not None:
            raise InputError(
                "ProjectedGradient: expected a start that is an attack without edits, got "
                f"{self.start!r}; edit first: Duplicate() >> ProjectedGradient(…)"
            )

    @property
    def name(self) -> str:
        """The attack in words."""
        return f"ascent from {self.start.name}"

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        """Return the best perturbation of the ascent."""
        best = self.start.perturb(problem, budget, generator)
        value, gradient = problem.value_and_gradient(best)
        step = self.first_step
        for _ in range(self.steps):
            trial = budget.project(best + step * budget.maximise(gradient))
            trial_value, trial_gradient = problem.value_and_gradient(trial)
            if trial_value > value:
                best, value, gradient, step = trial, trial_value, trial_gradient, min(2 * step, MAX_STEP)
            else:
                step /= 2
        return best


@dataclass(frozen=True)
class Edited(Attack):
    """An attack on edited tokens.

    Attributes:
        first: the edit.
        then: the attack on its result.
    """

    first: FeatureEdit
    then: Attack

    @property
    def edit(self) -> FeatureEdit:
        """The edit of the tokens before the attack."""
        return self.first

    @property
    def name(self) -> str:
        """The names of the edit and the attack."""
        return f"{self.first.name} >> {self.then.name}"

    def perturb(self, problem: FeatureProblem, budget: Budget, generator: torch.Generator) -> Tensor:
        """Return the attack's perturbation; the problem is that of the edited tokens."""
        return self.then.perturb(problem, budget, generator)

    def as_record(self) -> dict[str, Any]:
        """Return the attack's record with the edit's."""
        return {**self.then.as_record(), "name": self.name, "edit": self.first.as_record()}
