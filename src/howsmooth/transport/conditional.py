"""The distance of timed measures: transport within each time, never across.

d_p(μ̄, ν̄)^p = ∫ W_p(μ^τ, ν^τ)^p dθ(τ) where both have the same marginal θ in time, else +∞. It is solved slice by
slice: nothing is ever asked to move in time at a price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import InputError, NotConverged
from howsmooth.transport.measures import TimedMeasure, TokenMeasure
from howsmooth.transport.wasserstein import Plan, check_exponent, power_mean, wasserstein

# Masses of a slice that differ by no more than this, relatively, are the same but for rounding.
SAME_MASS = 1e-9


@dataclass(frozen=True, eq=False)
class ConditionalTransport:
    """d_p with the distance W_p of each slice; +∞ comes with the reason why. `gap` is the largest of the slices'."""

    value: float
    p: float
    reason: str | None
    times: Tensor
    masses: Tensor
    slices: Tensor
    gap: float
    plan: Plan | None = None

    def as_record(self) -> dict[str, Any]:
        return {
            "value": "inf" if math.isinf(self.value) else self.value,
            "p": "inf" if math.isinf(self.p) else self.p,
            "reason": self.reason,
            "slices": len(self.times),
            "gap": self.gap,
        }


def conditional_distance(
    mu: TimedMeasure, nu: TimedMeasure, p: float = 2.0, *, plan: bool = False
) -> ConditionalTransport:
    """d_p(μ̄, ν̄) for 1 ≤ p ≤ ∞, exact slice by slice; the plan couples atoms of one time alone.

    >>> mu = TimedMeasure.from_sequence(torch.tensor([[0.0], [0.0]]))
    >>> conditional_distance(mu, mu.with_points(torch.tensor([[0.0], [2.0]])), 1).value
    1.0
    >>> conditional_distance(mu, TimedMeasure([0.5, 0.6], mu.points)).reason
    'time 1.0 occurs in the first alone'
    """
    p = check_exponent(p)
    for measure in (mu, nu):
        if not isinstance(measure, TimedMeasure):
            raise InputError(f"expected TimedMeasures, got {type(measure).__name__}; use TimedMeasure(times, points)")
    if mu.d != nu.d:
        raise InputError(f"expected measures in one dimension, got d = {mu.d} and {nu.d}")
    mu, nu = mu.cpu(), nu.cpu()
    (times, here), (other_times, there) = mu.slices(), nu.slices()
    log_weights = mu.log_marginal()
    reason = _difference(times, other_times, log_weights, nu)
    if reason is not None:
        return ConditionalTransport(
            math.inf, p, reason, times, log_weights.exp(), torch.full((len(times),), math.inf), math.nan
        )
    found, stopped = [], None
    if mu.n == nu.n == len(times):  # one atom per time: nothing to choose
        rows, cols = torch.cat(here), torch.cat(there)
        distances = (mu.points.double()[rows] - nu.points.double()[cols]).norm(dim=1)
        gap, whole = 0.0, Plan(rows, cols, mu.log_weights[rows])
    else:
        for i, j in zip(here, there, strict=True):
            try:
                found.append(wasserstein(_slice(mu, i), _slice(nu, j), p, plan=plan))
            except NotConverged as error:
                stopped = error
                found.append(error.partial)
        distances = torch.tensor([one.value for one in found], dtype=torch.float64)
        gap = max(one.gap for one in found)
        whole = (
            None
            if not plan
            else Plan(
                torch.cat([i[one.plan.rows] for i, one in zip(here, found, strict=True)]),
                torch.cat([j[one.plan.cols] for j, one in zip(there, found, strict=True)]),
                torch.cat([one.plan.log_mass + log for log, one in zip(log_weights, found, strict=True)]),
            )
        )
    value = power_mean(distances.numpy(), log_weights.numpy(), p)
    result = ConditionalTransport(value, p, None, times, log_weights.exp(), distances, gap, whole if plan else None)
    if stopped is not None:
        raise NotConverged(str(stopped), result)
    return result


def _slice(measure: TimedMeasure, index: Tensor) -> TokenMeasure:
    return TokenMeasure(measure.points[index], log_weights=measure.log_weights[index], normalise=True)


def _difference(times: Tensor, other_times: Tensor, log_weights: Tensor, nu: TimedMeasure) -> str | None:
    """Why the marginals in time differ; None if they do not."""
    for which, own, other in (("first", times, other_times), ("second", other_times, times)):
        alone = own[~np.isin(own.numpy(), other.numpy())]
        if len(alone):
            return f"time {float(alone[0])!r} occurs in the {which} alone"
    other_masses = nu.log_marginal()
    off = (log_weights - other_masses).abs() > SAME_MASS
    if off.any():
        k = int(torch.nonzero(off)[0])
        return (
            f"time {float(times[k])!r} has mass {float(log_weights[k].exp()):.10g} in the first and "
            f"{float(other_masses[k].exp()):.10g} in the second"
        )
    return None
