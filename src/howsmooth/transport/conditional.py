"""The conditional distance between timed measures: transport within each time, never between times.

    d_p(μ̄, ν̄)^p = ∫ W_p(μ^τ, ν^τ)^p dθ(τ)

if both have the same marginal θ in time, and +∞ otherwise. It is computed slice by slice, without a penalty on
transport in time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import InputError, NotConverged
from howsmooth.transport.distances import Transport, TransportPlan, check_exponent, power_mean, wasserstein
from howsmooth.transport.measures import TimedMeasure, TokenMeasure

# Log weights of a slice that differ by no more than this are equal up to rounding.
LOG_WEIGHT_TOL = 1e-9


@dataclass(frozen=True, eq=False)
class ConditionalTransport:
    """A conditional distance d_p with the distance W_p of each slice.

    Attributes:
        value: d_p; +∞ if the marginals in time differ.
        p: exponent.
        reason: why the value is +∞; None if it is finite.
        times: the distinct times, increasing, (slices,).
        masses: weight of each time, (slices,).
        slices: W_p of each slice, (slices,).
        gap: the largest duality gap of a slice.
        plan: an optimal coupling, if requested.
    """

    value: float
    p: float
    reason: str | None
    times: Tensor
    masses: Tensor
    slices: Tensor
    gap: float
    plan: TransportPlan | None = None

    def as_record(self) -> dict[str, Any]:
        """Return value, exponent, reason, number of slices and gap as plain Python values."""
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
    """Return d_p(μ̄, ν̄) for 1 ≤ p ≤ ∞, exact slice by slice.

    Args:
        mu: a timed measure.
        nu: a timed measure in the same dimension.
        p: exponent, 1 ≤ p ≤ ∞.
        plan: whether to return the coupling, which couples only atoms at the same time.

    Returns:
        The distance; +∞ with a reason if the marginals in time differ.

    Raises:
        InputError: if an argument is invalid.
        NotConverged: if the coupling of a slice was not certified; `partial` is the `ConditionalTransport`.

    Example:
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
    (times, mu_slices), (nu_times, nu_slices) = mu.slices(), nu.slices()
    log_weights = mu.log_marginal()
    reason = _marginal_difference(times, nu_times, log_weights, nu)
    if reason is not None:
        return ConditionalTransport(
            math.inf, p, reason, times, log_weights.exp(), torch.full((len(times),), math.inf), math.nan
        )
    stopped: NotConverged | None = None
    coupling: TransportPlan | None = None
    if mu.n == nu.n == len(times):  # one atom per time: there is a single coupling
        rows, cols = torch.cat(mu_slices), torch.cat(nu_slices)
        distances: Tensor = (mu.points.double()[rows] - nu.points.double()[cols]).norm(dim=1)
        gap = 0.0
        if plan:
            coupling = TransportPlan(rows, cols, mu.log_weights[rows])
    else:
        transports: list[Transport] = []
        for i, j in zip(mu_slices, nu_slices, strict=True):
            try:
                transports.append(wasserstein(_slice(mu, i), _slice(nu, j), p, plan=plan))
            except NotConverged as error:
                stopped = error
                transports.append(error.partial)
        distances = torch.tensor([transport.value for transport in transports], dtype=torch.float64)
        gap = max(transport.gap for transport in transports)
        if plan:
            plans = [transport.plan for transport in transports if transport.plan is not None]
            coupling = TransportPlan(
                torch.cat([i[one.rows] for i, one in zip(mu_slices, plans, strict=True)]),
                torch.cat([j[one.cols] for j, one in zip(nu_slices, plans, strict=True)]),
                torch.cat([one.log_mass + log for log, one in zip(log_weights, plans, strict=True)]),
            )
    value = power_mean(distances.numpy(), log_weights.numpy(), p)
    result = ConditionalTransport(value, p, None, times, log_weights.exp(), distances, gap, coupling)
    if stopped is not None:
        raise NotConverged(str(stopped), result)
    return result


def _slice(measure: TimedMeasure, index: Tensor) -> TokenMeasure:
    """Return the conditional measure of the atoms with these indices."""
    return TokenMeasure(measure.points[index], log_weights=measure.log_weights[index], normalise=True)


def _marginal_difference(times: Tensor, nu_times: Tensor, log_weights: Tensor, nu: TimedMeasure) -> str | None:
    """Return how the marginals in time differ; None if they do not."""
    for which, own, other in (("first", times, nu_times), ("second", nu_times, times)):
        alone = own[~np.isin(own.numpy(), other.numpy())]
        if len(alone):
            return f"time {float(alone[0])!r} occurs in the {which} alone"
    nu_log_weights = nu.log_marginal()
    differs = (log_weights - nu_log_weights).abs() > LOG_WEIGHT_TOL
    if differs.any():
        k = int(torch.nonzero(differs)[0])
        return (
            f"time {float(times[k])!r} has mass {float(log_weights[k].exp()):.10g} in the first and "
            f"{float(nu_log_weights[k].exp()):.10g} in the second"
        )
    return None
