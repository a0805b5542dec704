"""The gain of the first singular direction as a function of the size of the perturbation.

‖f(X + ηU) − f(X)‖/η tends to σ₁ as η → 0. Of ±U the sign that changes the output more counts, as an attacker would
choose it. Everything is computed in float64, so that the gain is accurate down to η = 10⁻⁶ ‖X‖.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from howsmooth.attack.checks import check_size, single_estimate
from howsmooth.attack.feature.problem import FeatureProblem, Target
from howsmooth.attack.objectives import FeatureObjective, OutputChange
from howsmooth.errors import InputError
from howsmooth.lipschitz.local import local_lipschitz

DEVIATION_LEVELS = (0.01, 0.1)  # relative deviations from σ₁ whose η is located
BISECTION_STEPS = 16  # of log η between two sizes of the curve


@dataclass(frozen=True)
class Linearity:
    """The gain along the first singular direction U at several sizes η.

    Attributes:
        eta: the sizes, in the units of the map's input.
        gains: the gain at each size.
        sigma: σ₁, the limit of the gain as η → 0.
        norm: ‖X‖.
        leaves: for each level, the η at which the gain first deviates from sigma by more than that fraction; None if
            it does not up to the largest size.
        n: the number of tokens.
        seed: seed of the solve.
        status: status of the solve.
        calls: evaluations of the map, products with its derivative included.
    """

    eta: tuple[float, ...]
    gains: tuple[float, ...]
    sigma: float
    norm: float
    leaves: dict[float, float | None]
    n: int
    seed: int
    status: str
    calls: int

    def as_record(self) -> dict[str, Any]:
        """Return all fields as plain Python values."""
        return {
            "eta": list(self.eta),
            "gains": list(self.gains),
            "sigma": self.sigma,
            "norm": self.norm,
            "leaves": {f"{level:g}": eta for level, eta in self.leaves.items()},
            "n": self.n,
            "seed": self.seed,
            "status": self.status,
            "calls": self.calls,
            "dtype": "float64",
        }


def linearity(
    target: Target,
    eta: tuple[float, ...] | None = None,
    objective: FeatureObjective | None = None,
    *,
    tol: float = 1e-3,
    seed: int = 0,
) -> Linearity:
    """Measure the gain along the first singular direction at several sizes.

    Args:
        target: the map and its tokens.
        eta: increasing sizes ‖E‖; 22 of them from 10⁻⁶ ‖X‖ to 10 ‖X‖ unless given.
        objective: what changes; the output of the map unless given.
        tol: relative width of the interval for σ₁.
        seed: seed of the solve.

    Returns:
        The gains, σ₁, and where the gain deviates from σ₁ by 1 % and by 10 %.

    Raises:
        InputError: the sizes are not positive and increasing.

    Example:
        >>> from howsmooth.attack.feature import Target
        >>> curve = linearity(Target.of(torch.sin, torch.zeros(1, 1, dtype=torch.float64)), (1e-3, 0.1, 1.0))
        >>> [round(g, 3) for g in curve.gains], curve.leaves[0.01] > 0.1
        ([1.0, 0.998, 0.841], True)
    """
    target = target.double()
    norm = float(torch.linalg.vector_norm(target.x))
    if eta is None:
        unit = norm if norm > 0 else 1.0
        eta = tuple(unit * 10 ** (power / 3) for power in range(-18, 4))
    if not eta or list(eta) != sorted(set(eta)):
        raise InputError(f"linearity: expected increasing sizes, got {eta!r}")
    for size in eta:
        check_size("linearity", "eta", size)
    problem = FeatureProblem(target, objective or OutputChange())
    found = single_estimate(local_lipschitz(problem.map, target.x, tol=tol, seed=seed, strict=False))
    problem.calls += found.products

    def gain(size: float) -> float:
        return max(problem.value(sign * size * found.direction) for sign in (1, -1)) / size

    gains = tuple(gain(size) for size in eta)
    leaves = {level: _first_deviation(eta, gains, gain, found.value, level) for level in DEVIATION_LEVELS}
    return Linearity(tuple(eta), gains, found.value, norm, leaves, target.n, seed, found.status, problem.calls)


def _first_deviation(
    eta: Sequence[float], gains: Sequence[float], gain: Callable[[float], float], sigma: float, level: float
) -> float | None:
    """Return where |gain/σ₁ − 1| first exceeds a level, by bisection of log η."""

    def deviates(value: float) -> bool:
        return abs(value / sigma - 1) > level

    first = next((i for i, value in enumerate(gains) if deviates(value)), None)
    if first is None:
        return None
    if first == 0:
        return eta[0]
    low, high = eta[first - 1], eta[first]
    for _ in range(BISECTION_STEPS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if deviates(gain(middle)) else (middle, high)
    return high
