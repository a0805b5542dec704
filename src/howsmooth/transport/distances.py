"""The Wasserstein distance W_p between measures on tokens, exact, with a certificate and a plan; W₂ of Gaussians."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import InputError, NotConverged
from howsmooth.transport.measures import TimedMeasure, TokenMeasure
from howsmooth.transport.solvers import (
    ROUNDING,
    Coupling,
    Indices,
    Matrix,
    Vector,
    assignment,
    bottleneck,
    monotone_plan,
    nearest,
    simplex,
    squared_distances,
)

LARGEST_GAP = 1e-6  # relative duality gap above which a coupling is not accepted as optimal
# Costs are rescaled unless the largest is at most this many times the cost of the plan.
MAX_COST_RANGE = 1e6
MAX_RESCALINGS = 50

First = TypeVar("First", bound=TokenMeasure)
Second = TypeVar("Second", bound=TokenMeasure)


@dataclass(frozen=True, eq=False)
class TransportPlan:
    """A coupling of two measures by its nonzero entries.

    Attributes:
        rows: indices of atoms of the first measure, (entries,).
        cols: indices of atoms of the second measure, (entries,).
        log_mass: log of the mass that goes from one to the other, (entries,).
    """

    rows: Tensor
    cols: Tensor
    log_mass: Tensor

    @property
    def mass(self) -> Tensor:
        """Mass of each entry, (entries,)."""
        return self.log_mass.exp()

    def dense(self, n: int, m: int) -> Tensor:
        """Return the coupling as a matrix (n, m)."""
        return torch.zeros(n, m, dtype=torch.float64).index_put((self.rows, self.cols), self.mass, accumulate=True)

    def refined(self, mu: First, nu: Second) -> tuple[First, Second]:
        """Return μ and ν with atoms split so that the plan is a map: one atom of each per entry, in the same order.

        Both have the masses of the plan. The straight path between them is `x.moved(y.points - x.points, t)`.
        """
        return mu._select(self.rows, self.log_mass), nu._select(self.cols, self.log_mass)

    def barycentric(self, mu: TokenMeasure, nu: TokenMeasure) -> Tensor:
        """Return T(x_i) = Σ_j π_ij y_j / a_i, (n, d), the mean destination of the mass of each atom.

        It is the transport map where no atom is split. Otherwise its push-forward is a contraction of ν; `refined`
        keeps all of ν.
        """
        mu, nu = mu.cpu(), nu.cpu()
        share = (self.log_mass - mu.log_weights[self.rows]).exp().unsqueeze(1)
        y = nu.points.double()[self.cols]
        return torch.zeros(mu.n, nu.d, dtype=torch.float64).index_add(0, self.rows, share * y).to(nu.points.dtype)


@dataclass(frozen=True)
class Transport:
    """A distance W_p with its certificate.

    Attributes:
        value: W_p.
        p: exponent.
        method: "sorting", "nearest", "bottleneck", "assignment" or "simplex".
        gap: relative duality gap of value^p: no plan is better by more. For p = ∞ the mass that the plan does not keep
            within the value. NaN if it was not computed.
        n: number of atoms of the first measure.
        m: number of atoms of the second measure.
        plan: an optimal coupling, if requested.
    """

    value: float
    p: float
    method: str
    gap: float
    n: int
    m: int
    plan: TransportPlan | None = None

    def as_record(self) -> dict[str, Any]:
        """Return the fields except the plan as plain Python values."""
        return {
            "value": self.value,
            "p": "inf" if math.isinf(self.p) else self.p,
            "method": self.method,
            "gap": self.gap,
            "n": self.n,
            "m": self.m,
        }


def power_mean(distances: Vector, log_mass: Vector, p: float) -> float:
    """Return (Σ mass · distance^p)^{1/p}, computed in logarithms: it does not overflow for small masses or large p."""
    if math.isinf(p):
        return float(distances.max(initial=0.0))
    moved = distances > 0
    if not moved.any():
        return 0.0
    logs = log_mass[moved] + p * np.log(distances[moved])
    top = logs.max()
    return float(np.exp((top + np.log(np.exp(logs - top).sum())) / p))


def check_exponent(p: float) -> float:
    """Return p as a float, or raise an InputError unless 1 ≤ p ≤ ∞."""
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
    """Return W_p(μ, ν) by an optimal coupling, exact up to rounding.

    Equal atoms are merged first. In d = 1 atoms are sorted. Where nearest neighbours couple the masses, that coupling
    is optimal. Equal masses are an assignment problem (SciPy); otherwise a network simplex is used (POT,
    `pip install 'howsmooth[transport]'`).

    Args:
        mu: a measure, or a sequence of measures.
        nu: a measure, or a sequence of as many measures.
        p: exponent, 1 ≤ p ≤ ∞.
        plan: whether to return the coupling.
        certify: whether to compute dual potentials of an assignment, which takes half of its time; without them `gap`
            is NaN.

    Returns:
        The distance; for two sequences one distance per pair.

    Raises:
        InputError: if an argument is invalid.
        NotConverged: if the optimal coupling is lost in rounding, with a gap above 10⁻⁶; `partial` is the `Transport`.

    Example:
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
    mu, nu = _checked(mu), _checked(nu)
    if mu.d != nu.d:
        raise InputError(f"expected measures in one dimension, got d = {mu.d} and {nu.d}")
    mu, nu = mu.cpu(), nu.cpu()
    merged_mu, mu_group = mu._merge()
    merged_nu, nu_group = nu._merge()
    (rows, cols, logs), distances, method, gap, allowed_gap = _optimal_coupling(merged_mu, merged_nu, p, certify)
    value = power_mean(distances, logs, p)
    coupling = None
    if plan:
        coupling = TransportPlan(*(torch.from_numpy(np.ascontiguousarray(t)) for t in (rows, cols, logs)))
        if merged_mu is not mu or merged_nu is not nu:
            coupling = _split_merged(coupling, (mu, merged_mu, mu_group), (nu, merged_nu, nu_group))
    transport = Transport(value, p, method, gap, mu.n, nu.n, coupling)
    if gap > allowed_gap:
        raise NotConverged(
            f"transport: no coupling was certified as the best for p = {p:g}, the duality gap is "
            f"{gap:.2g}; join or leave out far and light atoms, or take a smaller p or p = ∞",
            transport,
        )
    return transport


def _checked(measure: object) -> TokenMeasure:
    """Return the measure, or raise an InputError unless it is a TokenMeasure without times."""
    if not isinstance(measure, TokenMeasure):
        raise InputError(f"expected TokenMeasures, got {type(measure).__name__}; use TokenMeasure(points, weights)")
    if isinstance(measure, TimedMeasure):
        raise InputError(
            "expected TokenMeasures, got a TimedMeasure; use conditional_distance, or leave the times "
            "out: TokenMeasure(m.points, log_weights=m.log_weights)"
        )
    return measure


class _Optimum(NamedTuple):
    coupling: Coupling  # with log masses
    distances: Vector  # of each entry
    method: str
    gap: float
    allowed_gap: float


def _optimal_coupling(mu: TokenMeasure, nu: TokenMeasure, p: float, certify: bool) -> _Optimum:
    """Return an optimal coupling of two measures whose atoms are distinct."""
    x, y = (m.points.double().cpu().numpy() for m in (mu, nu))
    log_a, log_b = (m.log_weights.cpu().numpy() for m in (mu, nu))

    def entry_distances(rows: Indices, cols: Indices) -> Vector:
        distances: Vector = np.linalg.norm(x[rows] - y[cols], axis=1)
        return distances

    if mu.d == 1:
        monotone = monotone_plan(x[:, 0], log_a, y[:, 0], log_b)
        return _Optimum(monotone, entry_distances(*monotone[:2]), "sorting", 0.0, 0.0)
    # Scaling by a power of two is exact and keeps squares from overflow.
    unit = float(2.0 ** np.floor(np.log2(max(np.abs(x).max(), np.abs(y).max(), 1e-300))))
    squares = squared_distances(x / unit, y / unit)
    close = nearest(squares, log_a, log_b)
    if close is not None:
        return _Optimum(close, entry_distances(*close[:2]), "nearest", 0.0, 0.0)
    equal = mu.n == nu.n and mu.equal and nu.equal
    if math.isinf(p):
        rows, cols, mass, unplaced = bottleneck(squares, np.exp(log_a), np.exp(log_b), equal)
        return _Optimum((rows, cols, np.log(mass)), entry_distances(rows, cols), "bottleneck", unplaced, 1.0)
    return _optimum_by_duality(squares, unit, entry_distances, log_a, log_b, p, equal, certify)


def _optimum_by_duality(
    squares: Matrix,
    unit: float,
    entry_distances: Callable[[Indices, Indices], Vector],
    log_a: Vector,
    log_b: Vector,
    p: float,
    equal: bool,
    certify: bool,
) -> _Optimum:
    """Return an optimal coupling by assignment or simplex, for squared distances in this unit.

    Distances far above W_p dominate the costs once they are raised to p, and the others lose their digits. The cost V^p
    of a plan bounds the optimum. So the next plan is computed with V as the unit, and costs are capped where even the
    lightest atom would not be moved. Capped costs are lower, so that their dual value is a valid bound as well.
    """
    a, b = np.exp(log_a), np.exp(log_b)
    length, cap = float(squares.max()) ** 0.5, math.inf
    best_value, best_cost_range, lower = math.inf, 0.0, -math.inf
    best: tuple[Coupling, Vector] | None = None
    for _ in range(MAX_RESCALINGS):
        with np.errstate(over="ignore"):
            cost = np.minimum((squares / length**2) ** (p / 2), cap)
        dual: float | None
        if equal:
            rows, cols, dual = assignment(cost, certify)
            logs = log_a
        else:
            rows, cols, mass, dual = simplex(cost, a, b)
            logs = np.log(mass)
        distances = entry_distances(rows, cols)
        value = power_mean(distances / unit, logs, p)
        cost_range = float(cost.max() / max(float(np.exp(logs) @ cost[rows, cols]), 1e-300))
        if dual is not None and cost_range > MAX_COST_RANGE:
            dual -= ROUNDING * float(cost.max())
        if dual is not None and dual > 0:
            lower = max(lower, math.log(length) + math.log(dual) / p)
        is_final = value == 0 or cost_range <= MAX_COST_RANGE or value >= best_value
        if best is None or value < best_value:
            best_value, best, best_cost_range = value, ((rows, cols, logs), distances), cost_range
        if is_final:
            break
        length, cap = value, 4 / float(min(a.min(), b.min()))
    assert best is not None  # set in the first iteration
    if equal and not certify:
        return _Optimum(*best, "assignment", math.nan, 0.0)
    gap = 0.0 if best_value == 0 else max(0.0, -math.expm1(p * (lower - math.log(best_value))))
    # Masses are float64: where little mass moves, their rounding over the longest distance is a part of the gap.
    return _Optimum(*best, "assignment" if equal else "simplex", gap, LARGEST_GAP + 2 * ROUNDING * best_cost_range)


def _split_merged(
    plan: TransportPlan,
    first: tuple[TokenMeasure, TokenMeasure, Tensor],
    second: tuple[TokenMeasure, TokenMeasure, Tensor],
) -> TransportPlan:
    """Return a plan between merged atoms as one between the original atoms, each with its share.

    `first` and `second` are each a measure, the merged measure, and the index of the merged atom of each atom.
    """
    (mu, merged_mu, mu_group), (nu, merged_nu, nu_group) = first, second
    mu_members = [torch.nonzero(mu_group == k).flatten() for k in range(merged_mu.n)]
    nu_members = [torch.nonzero(nu_group == k).flatten() for k in range(merged_nu.n)]
    rows, cols, logs = [], [], []
    for r, c, log in zip(plan.rows.tolist(), plan.cols.tolist(), plan.log_mass, strict=True):
        i, j = mu_members[r], nu_members[c]
        share = (mu.log_weights[i] - merged_mu.log_weights[r]).unsqueeze(1) + (
            nu.log_weights[j] - merged_nu.log_weights[c]
        ).unsqueeze(0)
        rows.append(i.repeat_interleave(len(j)))
        cols.append(j.repeat(len(i)))
        logs.append((log + share).flatten())
    return TransportPlan(torch.cat(rows), torch.cat(cols), torch.cat(logs))


def gaussian_wasserstein(mean: Tensor, covariance: Tensor, other_mean: Tensor, other_covariance: Tensor) -> Tensor:
    """Return W₂ between Gaussians N(m, S) and N(m', S').

        W₂² = |m − m'|² + tr S + tr S' − 2 tr (S^½ S' S^½)^½

    Args:
        mean: m, (…, d).
        covariance: S, (…, d, d); it may be singular.
        other_mean: m', (…, d).
        other_covariance: S', (…, d, d).

    Returns:
        The distances, (…).

    Raises:
        InputError: if shapes do not match, or covariances are not symmetric positive semidefinite.

    Example:
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
    root, other_root = _square_root(covariance), _square_root(other_covariance)
    # tr (S^½ S' S^½)^½ is the sum of the singular values of S'^½ S^½. In terms of the optimal rotation the distance is
    # a sum of squares, min_Q |S^½ − S'^½ Q|², which does not cancel.
    u, _, w = torch.linalg.svd(other_root @ root)
    difference: Tensor = root - other_root @ (u @ w)
    return ((mean - other_mean).square().sum(-1) + difference.square().sum((-2, -1))).sqrt()


def _square_root(covariance: Tensor) -> Tensor:
    """Return the symmetric square root of each matrix (…, d, d)."""
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    root: Tensor = vectors * values.clamp(min=0).sqrt().unsqueeze(-2) @ vectors.mT
    return root
