"""W_p between measures on tokens, exactly: a distance with its certificate and its plan; W₂ of Gaussians by formula."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import InputError, NotConverged
from howsmooth.transport.measures import TimedMeasure, TokenMeasure
from howsmooth.transport.solvers import (
    ROUNDING,
    assignment,
    bottleneck,
    monotone_plan,
    nearest,
    simplex,
    squared_distances,
)

LARGEST_GAP = 1e-6  # beyond which a coupling is not given as the best
# Costs whose largest is this many times what the plan costs have digits to spare; else they are taken in another unit.
RANGE = 1e6
ROUNDS = 50


@dataclass(frozen=True, eq=False)
class Plan:
    """A coupling by its entries that are not zero: mass e^{log_mass} goes from atom `rows` to atom `cols`."""

    rows: Tensor
    cols: Tensor
    log_mass: Tensor

    @property
    def mass(self) -> Tensor:
        return self.log_mass.exp()

    def dense(self, n: int, m: int) -> Tensor:
        """The coupling as a matrix (n, m)."""
        return torch.zeros(n, m, dtype=torch.float64).index_put((self.rows, self.cols), self.mass, accumulate=True)

    def refined(self, mu: TokenMeasure, nu: TokenMeasure) -> tuple[TokenMeasure, TokenMeasure]:
        """μ and ν with atoms split so that the plan is a map: one atom of each per entry, in the same order.

        The masses of both are those of the plan; `mu.moved(y − x, t)` of the two is the straight path between them.
        """
        x, y = mu._chosen(self.rows, self.log_mass), nu._chosen(self.cols, self.log_mass)
        return x, y

    def barycentric(self, mu: TokenMeasure, nu: TokenMeasure) -> Tensor:
        """T(x_i) = Σ_j π_ij y_j / a_i, (n, d): where the mass of each atom goes on average.

        It is the transport map where no atom is split. Elsewhere its push-forward is not ν but ν's contraction: use
        `refined` to keep what is lost.
        """
        mu, nu = mu.cpu(), nu.cpu()
        share = (self.log_mass - mu.log_weights[self.rows]).exp().unsqueeze(1)
        y = nu.points.double()[self.cols]
        return torch.zeros(mu.n, nu.d, dtype=torch.float64).index_add(0, self.rows, share * y).to(nu.points.dtype)


@dataclass(frozen=True)
class Transport:
    """A distance W_p and how it was found.

    `gap` certifies it: value^p is within `gap` of the dual value, relative to it, so that no plan can be better by more
    (p = ∞: the mass that the plan could not keep within the value; 0 where none is left). `plan` on request.
    """

    value: float
    p: float
    method: str
    gap: float
    n: int
    m: int
    plan: Plan | None = None

    def as_record(self) -> dict[str, Any]:
        return {
            "value": self.value,
            "p": "inf" if math.isinf(self.p) else self.p,
            "method": self.method,
            "gap": self.gap,
            "n": self.n,
            "m": self.m,
        }


def power_mean(distances: np.ndarray, log_mass: np.ndarray, p: float) -> float:
    """(Σ mass · distance^p)^{1/p}, in logarithms: nothing overflows, however small a mass or large a p."""
    if math.isinf(p):
        return float(distances.max(initial=0.0))
    moved = distances > 0
    if not moved.any():
        return 0.0
    logs = log_mass[moved] + p * np.log(distances[moved])
    top = logs.max()
    return float(np.exp((top + np.log(np.exp(logs - top).sum())) / p))


def check_exponent(p: float) -> float:
    if isinstance(p, bool) or not isinstance(p, int | float) or not p >= 1:
        raise InputError(f"expected an exponent p ≥ 1 (math.inf for W_∞), got {p!r}")
    return float(p)


@overload
def wasserstein(
    mu: TokenMeasure, nu: TokenMeasure, p: float = 2.0, *, plan: bool = False, certify: bool = True
) -> Transport: ...


@overload
def wasserstein(
    mu: Sequence[TokenMeasure], nu: Sequence[TokenMeasure], p: float = 2.0, *, plan: bool = False, certify: bool = True
) -> tuple[Transport, ...]: ...


def wasserstein(
    mu: TokenMeasure | Sequence[TokenMeasure],
    nu: TokenMeasure | Sequence[TokenMeasure],
    p: float = 2.0,
    *,
    plan: bool = False,
    certify: bool = True,
) -> Transport | tuple[Transport, ...]:
    """W_p(μ, ν), 1 ≤ p ≤ ∞, by an optimal coupling: exact but for rounding; two lists give one distance per pair.

    Equal atoms are joined first. In d = 1 atoms are sorted; where nearest neighbours couple the masses they are it;
    equal masses are an assignment (SciPy), all else a network simplex (POT, `pip install 'howsmooth[transport]'`).
    `NotConverged` with the transport as `partial` where the best coupling was lost in rounding (a gap above 10⁻⁶).

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
        return tuple(wasserstein(one, other, p, plan=plan, certify=certify) for one, other in zip(mu, nu, strict=True))
    for measure in (mu, nu):
        if not isinstance(measure, TokenMeasure):
            raise InputError(f"expected TokenMeasures, got {type(measure).__name__}; use TokenMeasure(points, weights)")
        if isinstance(measure, TimedMeasure):
            raise InputError(
                "expected TokenMeasures, got a TimedMeasure; use conditional_distance, or leave the times "
                "out: TokenMeasure(m.points, log_weights=m.log_weights)"
            )
    if mu.d != nu.d:
        raise InputError(f"expected measures in one dimension, got d = {mu.d} and {nu.d}")
    mu, nu = mu.cpu(), nu.cpu()
    one, of_one = mu._joined()
    other, of_other = nu._joined()
    (rows, cols, logs), distances, method, gap, allowed = _couple(one, other, p, certify)
    value = power_mean(distances, logs, p)
    coupling = None
    if plan:
        coupling = Plan(*(torch.from_numpy(np.ascontiguousarray(t)) for t in (rows, cols, logs)))
        coupling = _spread(coupling, mu, one, of_one, nu, other, of_other)
    found = Transport(value, p, method, gap, mu.n, nu.n, coupling)
    if gap > allowed:
        raise NotConverged(
            f"transport: no coupling was certified as the best for p = {p:g}, the duality gap is "
            f"{gap:.2g}; join or leave out far and light atoms, or take a smaller p or p = ∞",
            found,
        )
    return found


def _couple(mu: TokenMeasure, nu: TokenMeasure, p: float, certify: bool):
    """The coupling (rows, cols, log masses), the distance of each entry, the method, the gap and the largest one."""
    x, y = (m.points.double().cpu().numpy() for m in (mu, nu))
    log_a, log_b = (m.log_weights.cpu().numpy() for m in (mu, nu))

    def along(rows, cols):
        return np.linalg.norm(x[rows] - y[cols], axis=1)

    if mu.d == 1:
        found = monotone_plan(x[:, 0], log_a, y[:, 0], log_b)
        return found, along(*found[:2]), "sorting", 0.0, 0.0
    # A power of two as the unit rounds nothing and keeps squares from overflow.
    unit = 2.0 ** np.floor(np.log2(max(np.abs(x).max(), np.abs(y).max(), 1e-300)))
    squares = squared_distances(x / unit, y / unit)
    close = nearest(squares, log_a, log_b)
    if close is not None:
        return close, along(*close[:2]), "nearest", 0.0, 0.0
    equal = mu.n == nu.n and mu.equal and nu.equal
    if math.isinf(p):
        rows, cols, mass, left = bottleneck(squares, np.exp(log_a), np.exp(log_b), equal)
        return (rows, cols, np.log(mass)), along(rows, cols), "bottleneck", left, 1.0
    return _by_duality(squares, unit, along, log_a, log_b, p, equal, certify)


def _by_duality(squares, unit, along, log_a, log_b, p: float, equal: bool, certify: bool):
    """The same by assignment or simplex, for squared distances in this unit.

    Distances far beyond the answer drown it once they are raised to p. What a plan costs, V^p, bounds the answer: the
    next plan is found with V as the unit and costs cut off where the lightest atom would not pay them. Cut costs are
    lower, so that their dual value is a bound as well.
    """
    a, b = np.exp(log_a), np.exp(log_b)
    length, cap = float(squares.max()) ** 0.5, math.inf
    best, lower = (math.inf, None, 0.0), -math.inf
    for _ in range(ROUNDS):
        with np.errstate(over="ignore"):
            cost = np.minimum((squares / length**2) ** (p / 2), cap)
        if equal:
            rows, cols, dual = assignment(cost, certify)
            logs = log_a
        else:
            rows, cols, mass, dual = simplex(cost, a, b)
            logs = np.log(mass)
        distances = along(rows, cols)
        value = power_mean(distances / unit, logs, p)
        spread = cost.max() / max(float(np.exp(logs) @ cost[rows, cols]), 1e-300)
        if dual is not None and spread > RANGE:
            dual -= ROUNDING * cost.max()
        if dual is not None and dual > 0:
            lower = max(lower, math.log(length) + math.log(dual) / p)
        enough = value == 0 or spread <= RANGE or value >= best[0]
        if value < best[0]:
            best = value, ((rows, cols, logs), distances), spread
        if enough:
            break
        length, cap = value, 4 / float(min(a.min(), b.min()))
    value, found, spread = best
    if equal and not certify:
        return *found, "assignment", math.nan, 0.0
    gap = 0.0 if value == 0 else max(0.0, -math.expm1(p * (lower - math.log(value))))
    # Masses are doubles: where little is moved, a unit of their rounding over the longest way is a part of it.
    return *found, "assignment" if equal else "simplex", gap, LARGEST_GAP + 2 * ROUNDING * spread


def _spread(plan: Plan, mu, one, of_one, nu, other, of_other) -> Plan:
    """A plan between joined atoms as one between the atoms they came from: each takes its share."""
    if one is mu and other is nu:
        return plan
    rows, cols, logs = [], [], []
    members = [
        [torch.nonzero(of == k).flatten() for k in range(whole.n)] for of, whole in ((of_one, one), (of_other, other))
    ]
    for r, c, log in zip(plan.rows.tolist(), plan.cols.tolist(), plan.log_mass, strict=True):
        i, j = members[0][r], members[1][c]
        share = (mu.log_weights[i] - one.log_weights[r]).unsqueeze(1) + (
            nu.log_weights[j] - other.log_weights[c]
        ).unsqueeze(0)
        rows.append(i.repeat_interleave(len(j)))
        cols.append(j.repeat(len(i)))
        logs.append((log + share).flatten())
    return Plan(torch.cat(rows), torch.cat(cols), torch.cat(logs))


def gaussian_wasserstein(mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor) -> Tensor:
    """W₂(N(m, S), N(m', S')) = (|m − m'|² + tr S + tr S' − 2 tr (S^½ S' S^½)^½)^½ for means (…, d), one per member.

    Covariances (…, d, d) may be singular.

    >>> zero, eye = torch.zeros(2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    >>> round(float(gaussian_wasserstein(zero, eye, zero + 3, 4 * eye)), 6)
    4.472136
    """
    for which, m, s in (("first", mean, covariance), ("second", other_mean, other_covariance)):
        if not (isinstance(m, Tensor) and isinstance(s, Tensor) and m.is_floating_point() and s.is_floating_point()):
            raise InputError(
                f"expected a mean and a covariance as tensors of a floating dtype, got {type(m).__name__} "
                f"and {type(s).__name__} for the {which}; use torch.tensor"
            )
        if m.dim() < 1 or s.shape[-2:] != (m.shape[-1], m.shape[-1]):
            raise InputError(
                f"expected a mean (…, d) and a covariance (…, d, d), got {tuple(m.shape)} and "
                f"{tuple(s.shape)} for the {which}"
            )
        if not (torch.isfinite(m).all() and torch.isfinite(s).all()):
            raise InputError(f"expected finite means and covariances, got NaN or ∞ in the {which}")
        rounding = 64 * torch.finfo(s.dtype).eps * s.shape[-1] * s.abs().amax((-2, -1))  # of each member
        least = torch.linalg.eigvalsh((s + s.mT) / 2).amin(-1)
        if ((s - s.mT).abs().amax((-2, -1)) > rounding).any() or (least < -rounding).any():
            raise InputError(f"expected symmetric covariances without negative eigenvalues, got others in the {which}")
    if mean.shape[-1] != other_mean.shape[-1]:
        raise InputError(f"expected Gaussians in one dimension, got {mean.shape[-1]} and {other_mean.shape[-1]}")
    root, other_root = _root(covariance), _root(other_covariance)
    # tr (S^½ S' S^½)^½ is the sum of the singular values of S'^½ S^½: no square is taken that a root undoes. In terms
    # of the optimal rotation the distance is a sum of squares, min_Q |S^½ − S'^½ Q|², which does not cancel.
    u, _, w = torch.linalg.svd(other_root @ root)
    difference = root - other_root @ (u @ w)
    return ((mean - other_mean).square().sum(-1) + difference.square().sum((-2, -1))).sqrt()


def _root(covariance: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    return vectors * values.clamp(min=0).sqrt().unsqueeze(-2) @ vectors.mT
