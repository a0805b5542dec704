"""How far does linearity carry: the gain of the first singular direction against the size of the perturbation.

‖f(X + ηU) − f(X)‖/η tends to σ₁ as η → 0. Of both signs of U the one that changes more counts, as an attacker would
choose. Everything is in float64, so that the gain is read down to η = 10⁻⁶ of ‖X‖.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from howsmooth.attack.constraints import check_size
from howsmooth.attack.feature.problem import FeatureProblem, Target
from howsmooth.attack.objectives import FeatureObjective, OutputChange
from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz

LEVELS = (0.01, 0.1)  # relative deviations from σ₁ that are looked for
CLOSER = 16  # halvings of log η between two sizes of the curve


@dataclass(frozen=True)
class Linearity:
    """gains[i] at size eta[i], in the map's own units; sigma is what U attains in the limit; norm is ‖X‖.

    leaves[level] is the η at which the gain first differs from sigma by more than the level, None if it never does up
    to the largest size.
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

    def as_record(self) -> dict:
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
    """The gain along the first singular direction at sizes `eta`, 10⁻⁶ to 10 of ‖X‖ unless given.

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
    found = local_lipschitz(problem.map, target.x, tol=tol, seed=seed, strict=False)
    problem.calls += found.products

    def gain(size: float) -> float:
        return max(problem.value(sign * size * found.direction) for sign in (1, -1)) / size

    gains = tuple(gain(size) for size in eta)
    leaves = {level: _crossing(eta, gains, gain, found.value, level) for level in LEVELS}
    return Linearity(tuple(eta), gains, found.value, norm, leaves, target.n, seed, found.status, problem.calls)


def _crossing(eta, gains, gain, sigma: float, level: float) -> float | None:
    """Where |gain/σ₁ − 1| first exceeds a level, by halving log η."""

    def beyond(value: float) -> bool:
        return abs(value / sigma - 1) > level

    first = next((i for i, value in enumerate(gains) if beyond(value)), None)
    if first is None or first == 0:
        return None if first is None else eta[0]
    low, high = eta[first - 1], eta[first]
    for _ in range(CLOSER):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if beyond(gain(middle)) else (middle, high)
    return high
