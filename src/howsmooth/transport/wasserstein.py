"""W_p between measures on tokens, exactly: which method serves, and the distance with its certificate."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from howsmooth.errors import InputError
from howsmooth.transport.bottleneck import bottleneck
from howsmooth.transport.measures import TimedMeasure, TokenMeasure
from howsmooth.transport.plans import Plan, Transport, check_exponent, power_mean
from howsmooth.transport.solving import assignment, nearest, simplex, squared_distances
from howsmooth.transport.sorting import monotone_plan


def wasserstein(mu: TokenMeasure | Sequence[TokenMeasure], nu: TokenMeasure | Sequence[TokenMeasure], p: float = 2.0, *,
                plan: bool = False, certify: bool = True) -> Transport | tuple[Transport, ...]:
    """W_p(μ, ν), 1 ≤ p ≤ ∞, by an optimal coupling: exact but for rounding; two lists give one distance per pair.

    Equal atoms are joined first. In d = 1 atoms are sorted; where nearest neighbours couple the masses they are it;
    equal masses are an assignment (SciPy), all else a network simplex (POT, `pip install 'howsmooth[transport]'`).

    Args:
        plan: whether to give the coupling.
        certify: whether to find dual potentials for an assignment, half of its time; without them `gap` is NaN.

    >>> mu = TokenMeasure(torch.tensor([[0.0], [1.0]]))
    >>> nu = TokenMeasure(torch.tensor([[0.5], [2.5]]))
    >>> wasserstein(mu, nu, 1).value
    1.0
    """
    p = check_exponent(p)
    if isinstance(mu, Sequence) and isinstance(nu, Sequence):
        if len(mu) != len(nu):
            raise InputError(f"expected as many measures on either side, got {len(mu)} and {len(nu)}")
        return tuple(wasserstein(one, other, p, plan=plan, certify=certify)
                     for one, other in zip(mu, nu, strict=True))
    for measure in (mu, nu):
        if not isinstance(measure, TokenMeasure):
            raise InputError(f"expected TokenMeasures, got {type(measure).__name__}; use TokenMeasure(points, weights)")
        if isinstance(measure, TimedMeasure):
            raise InputError("expected TokenMeasures, got a TimedMeasure; use conditional_distance, or leave the times "
                             "out: TokenMeasure(m.points, log_weights=m.log_weights)")
    if mu.d != nu.d:
        raise InputError(f"expected measures in one dimension, got d = {mu.d} and {nu.d}")
    mu, nu = mu.cpu(), nu.cpu()
    one, of_one = mu._joined()
    other, of_other = nu._joined()
    (rows, cols, logs), distances, method, gap = _couple(one, other, p, certify)
    value = power_mean(distances, logs, p)
    coupling = None
    if plan:
        coupling = Plan(*(torch.from_numpy(np.ascontiguousarray(t)) for t in (rows, cols, logs)))
        coupling = _spread(coupling, mu, one, of_one, nu, other, of_other)
    return Transport(value, p, method, gap, mu.n, nu.n, coupling)


def _couple(mu: TokenMeasure, nu: TokenMeasure, p: float, certify: bool):
    """The coupling (rows, cols, log masses), the distance of each entry, the method and the gap."""
    x, y = (m.points.double().cpu().numpy() for m in (mu, nu))
    log_a, log_b = (m.log_weights.cpu().numpy() for m in (mu, nu))

    def along(rows, cols):
        return np.linalg.norm(x[rows] - y[cols], axis=1)

    if mu.d == 1:
        found = monotone_plan(x[:, 0], log_a, y[:, 0], log_b)
        return found, along(*found[:2]), "sorting", 0.0
    # A power of two as the unit rounds nothing and keeps squares from overflow.
    unit = 2.0 ** np.floor(np.log2(max(np.abs(x).max(), np.abs(y).max(), 1e-300)))
    squares = squared_distances(x / unit, y / unit)
    close = nearest(squares, log_a, log_b)
    if close is not None:
        return close, along(*close[:2]), "nearest", 0.0
    equal = mu.n == nu.n and mu.equal and nu.equal
    a, b = np.exp(log_a), np.exp(log_b)
    if math.isinf(p):
        rows, cols, mass, left = bottleneck(squares, a, b, equal)
        return (rows, cols, np.log(mass)), along(rows, cols), "bottleneck", left
    cost = squares if p == 2 else (squares / squares.max()) ** (p / 2)
    if equal:
        rows, cols, dual = assignment(cost, certify)
        gap = math.nan if dual is None else _relative(float(cost[rows, cols].mean()), dual)
        return (rows, cols, log_a), along(rows, cols), "assignment", gap
    rows, cols, mass, dual = simplex(cost, a, b)
    return (rows, cols, np.log(mass)), along(rows, cols), "simplex", _relative(float(mass @ cost[rows, cols]), dual)


def _relative(primal: float, dual: float) -> float:
    return max(0.0, primal - dual) / primal if primal > 0 else 0.0


def _spread(plan: Plan, mu, one, of_one, nu, other, of_other) -> Plan:
    """A plan between joined atoms as one between the atoms they came from: each takes its share."""
    if one is mu and other is nu:
        return plan
    rows, cols, logs = [], [], []
    members = [[torch.nonzero(of == k).flatten() for k in range(whole.n)] for of, whole in
               ((of_one, one), (of_other, other))]
    for r, c, log in zip(plan.rows.tolist(), plan.cols.tolist(), plan.log_mass, strict=True):
        i, j = members[0][r], members[1][c]
        share = ((mu.log_weights[i] - one.log_weights[r]).unsqueeze(1)
                 + (nu.log_weights[j] - other.log_weights[c]).unsqueeze(0))
        rows.append(i.repeat_interleave(len(j)))
        cols.append(j.repeat(len(i)))
        logs.append((log + share).flatten())
    return Plan(torch.cat(rows), torch.cat(cols), torch.cat(logs))
