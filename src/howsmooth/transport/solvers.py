"""Exact optimal transport between finitely many atoms: rows, columns and masses of an optimal coupling.

    monotone_plan   d = 1: sorted atoms are coupled in order, which is optimal for every cost |x − y|^p with p ≥ 1
    nearest         each atom to its nearest one, where that couples the masses
    assignment      equal masses, by SciPy
    simplex         any masses, by the network simplex of POT
    bottleneck      W_∞: the smallest t such that a coupling moves nothing farther than t

All but the first take the cost matrix, (n, m), non-negative. Assignment and simplex also return a dual value: a lower
bound on the cost of every coupling, valid whatever the solver.
"""

from __future__ import annotations

import inspect
import warnings
from bisect import bisect_left
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from howsmooth.errors import NotConverged
from howsmooth.extras import require

Vector = npt.NDArray[np.float64]  # (n,)
Matrix = npt.NDArray[np.float64]  # (n, m)
Indices = npt.NDArray[np.intp]
Coupling = tuple[Indices, Indices, Vector]  # rows, columns, and masses or their logarithms

# From this many pairs on, initial potentials from Sinkhorn save more time than they take.
SINKHORN_MIN_PAIRS = 300 * 300
# Temperatures, relative to the standard deviation of the costs, and the number of steps at each.
SINKHORN_SCHEDULE = ((0.1, 10), (0.02, 20))
MAX_DUAL_SWEEPS = 1000  # in search of dual potentials for an assignment; 2,000 points need about 40
MAX_PIVOTS = 10**9
# Log masses that differ by this, relative to their size, are equal up to rounding.
ROUNDING = 16 * float(np.finfo(np.float64).eps)
# Masses below this, relative to the largest atom that they are left over from, are rounding errors.
LEFTOVER_RTOL = 1e-14
# Mass that a coupling within t may leave out, because of rounding in the masses.
UNPLACED_MASS_TOL = 1e-12


def squared_distances(x: Matrix, y: Matrix) -> Matrix:
    """Return |x_i − y_j|², (n, m).

    It is computed as |x|² + |y|² − 2⟨x, y⟩ where that cancels at most two digits, and otherwise from the differences.
    """
    from scipy.spatial.distance import cdist

    own, other = np.square(x).sum(1), np.square(y).sum(1)
    squares: Matrix = x @ y.T
    squares *= -2
    squares += own[:, None]
    squares += other
    if squares.min() > 1e-2 * (own.max() + other.max()):
        return squares
    differences: Matrix = cdist(x, y, "sqeuclidean")
    return differences


def nearest(cost: Matrix, log_a: Vector, log_b: Vector) -> Coupling | None:
    """Couple each atom with its nearest one, if that matches the masses; then no plan is better. Otherwise None.

    It applies to small displacements. Masses may be arbitrarily small, since nothing is subtracted.

    Returns:
        Rows, columns and log masses.
    """
    n, m = cost.shape
    for axis in [1] * (n >= m) + [0] * (m >= n):
        index = cost.argmin(axis)
        sources, targets = (log_a, log_b) if axis else (log_b, log_a)
        reached = len(np.unique(index))
        if reached == len(targets):
            arrived = np.full(len(targets), -np.inf)
            np.logaddexp.at(arrived, index, sources)
            if (np.abs(arrived - targets) <= ROUNDING * (1 + np.abs(targets))).all():
                own = np.arange(len(index))
                return (own, index, log_a) if axis else (index, own, log_b)
        if reached < len(targets) / 2:  # far from a coupling: the other direction would not be one either
            return None
    return None


def assignment(cost: Matrix, certify: bool) -> tuple[Indices, Indices, float | None]:
    """Return an optimal permutation for equal masses (rows, columns), and the mean dual value if `certify`.

    SciPy's solver is applied to reduced costs: feasible potentials, initially from Sinkhorn, change no optimal plan and
    leave short augmenting paths. 2,000 points in d = 64 take 0.2 s of one core, and as much again for the certificate;
    the plain costs take 1.0 s, and POT's simplex 1.0 s too (0.4 s with the same initial potentials).
    """
    from scipy.optimize import linear_sum_assignment

    reduced, f, g = reduce_costs(cost)
    rows, cols = linear_sum_assignment(reduced)
    if not certify:
        return rows, cols, None
    # Potentials u of the rows; those of the columns make the plan's entries tight: u_i − u_k ≤ r_iσ(k) − r_kσ(k).
    slack = reduced[:, cols] - reduced[rows, cols]
    u = np.zeros(len(rows))
    for _ in range(MAX_DUAL_SWEEPS):
        better = (slack + u).min(1)
        if not (better < u).any():
            break
        u = better
    v = (reduced - u[:, None]).min(0)
    return rows, cols, float(f.mean() + g.mean() + u.mean() + v.mean())


def simplex(cost: Matrix, a: Vector, b: Vector) -> tuple[Indices, Indices, Vector, float]:
    """Return an optimal coupling for any masses (rows, columns, masses), and its dual value.

    POT's network simplex starts from the potentials of Sinkhorn. 2,000 points in d = 64 take 0.4 s of one core; without
    initial potentials 0.8 s.
    """
    ot = import_pot()
    reduced, f, g = reduce_costs(cost, a, b)
    start: dict[str, Any] = {}
    if "potentials_init" in inspect.signature(ot.emd).parameters:  # since POT 0.9.7
        start, f, g = {"potentials_init": (f, g)}, np.zeros_like(f), np.zeros_like(g)
        reduced = cost
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan, log = ot.emd(a, b, reduced, numItermax=MAX_PIVOTS, log=True, **start)
    if log["warning"] is not None:
        raise NotConverged(f"transport: POT stopped early ({log['warning']}); check the weights", plan)
    # Entries below the rounding of both masses are not transported: they do not count, however far they would go.
    rows, cols = np.nonzero(plan > ROUNDING * np.minimum(a[:, None], b))
    # The c-transform of the row potentials is feasible to the last bit, so the dual value is a valid lower bound.
    v = (reduced - log["u"][:, None]).min(0)
    return rows, cols, plan[rows, cols], float(a @ (f + log["u"]) + b @ (g + v))


def reduce_costs(cost: Matrix, a: Vector | None = None, b: Vector | None = None) -> tuple[Matrix, Vector, Vector]:
    """Return cost − f_i − g_j ≥ 0, with near-optimal potentials f (n,) and g (m,); masses a and b default to equal."""
    n, m = cost.shape
    a, b = np.full(n, 1 / n) if a is None else a, np.full(m, 1 / m) if b is None else b
    reduced, f, g = _feasible_potentials(cost, np.zeros(n))
    spread = float(reduced.std())
    if cost.size < SINKHORN_MIN_PAIRS or spread == 0:
        return reduced, f, g
    for temperature, steps in SINKHORN_SCHEDULE:
        kernel = np.exp((reduced * (-1 / (temperature * spread))).astype(np.float32))
        left: npt.NDArray[Any] = a.astype(np.float32)
        right: npt.NDArray[Any] = np.ones(m, np.float32)
        with np.errstate(all="ignore"):
            for _ in range(steps):
                left = a.astype(np.float32) / (kernel @ right)
                right = b.astype(np.float32) / (left @ kernel)
            shift = temperature * spread * np.log(left.astype(np.float64) / a)
        if not np.isfinite(shift).all():  # underflow in float32: keep the potentials so far
            break
        reduced, f, g = _feasible_potentials(cost, f + shift)
    return reduced, f, g


def _feasible_potentials(cost: Matrix, f: Vector) -> tuple[Matrix, Vector, Vector]:
    """Return the costs reduced by both potentials: the largest g for this f, then the largest f for that g."""
    reduced = cost - f[:, None]
    g = reduced.min(0)
    reduced -= g
    rest = reduced.min(1)
    reduced -= rest[:, None]
    return reduced, f + rest, g


def import_pot() -> ModuleType:
    """Return the module `ot` of POT, or raise MissingPackage if it is not installed."""
    require("POT", purpose="for transport between different masses")
    import ot

    module: ModuleType = ot
    return module


def monotone_plan(x: Vector, log_a: Vector, y: Vector, log_b: Vector) -> Coupling:
    """Return rows, columns and log masses of the coupling of the quantile functions of (x, a) and (y, b)."""
    i, j = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    if len(x) == len(y) and np.ptp(log_a) == 0 and np.ptp(log_b) == 0:
        return i, j, log_a[i]
    a, b = np.exp(log_a[i]), np.exp(log_b[j])
    if np.array_equal(log_a[i], log_b[j]):  # equal masses in equal order, however small
        return i, j, log_a[i]
    rows, cols, mass = [], [], []
    r, c, last_r, last_c = 0, 0, len(a) - 1, len(b) - 1
    supply, demand, largest = a[0], b[0], 0.0
    while True:
        # The last atom takes all that remains on the other side, which equals its own mass up to rounding.
        moved = demand if r == last_r else supply if c == last_c else min(supply, demand)
        rows.append(r)
        cols.append(c)
        mass.append(moved)
        if r == last_r and c == last_c:
            break
        largest = max(largest, a[r], b[c])
        supply, demand = supply - moved, demand - moved
        next_r = r < last_r and (c == last_c or supply <= LEFTOVER_RTOL * largest)
        next_c = c < last_c and (r == last_r or demand <= LEFTOVER_RTOL * largest)
        largest = 0.0 if next_r and next_c else largest
        if next_r:
            r, supply = r + 1, a[r + 1]
        if next_c:
            c, demand = c + 1, b[c + 1]
    return i[np.array(rows)], j[np.array(cols)], np.log(np.array(mass))


def bottleneck(distances: Matrix, a: Vector, b: Vector, equal: bool) -> tuple[Indices, Indices, Vector, float]:
    """Return a coupling with the least largest distance (rows, columns, masses), and the mass that it leaves out.

    A coupling within t exists iff the mass of every set of atoms is at most the mass within t of it (Hall). A bipartite
    matching decides this for equal masses, and a transport with costs 0 and 1 for any masses. Every atom, however
    light, must have an atom of the other measure within t. Beyond that, a set counts if its mass exceeds rounding.
    """
    least = max(distances.min(1).max(), distances.min(0).max())
    values = np.unique(distances[distances >= least])

    def within(t: float) -> tuple[Indices, Indices, Vector, float] | None:
        return (_matching if equal else _transport_within)(distances <= t, a, b)

    coupling = within(values[0]) or within(values[bisect_left(values, True, key=lambda t: within(t) is not None)])
    if coupling is None:  # within the largest distance everything can be coupled
        raise NotConverged("transport: no coupling within the largest distance was found; check the weights", None)
    return coupling


def _matching(near: npt.NDArray[np.bool_], a: Vector, b: Vector) -> tuple[Indices, Indices, Vector, float] | None:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    cols = maximum_bipartite_matching(csr_array(near), perm_type="column")
    return None if (cols < 0).any() else (np.arange(len(cols)), cols, a, 0.0)


def _transport_within(
    near: npt.NDArray[np.bool_], a: Vector, b: Vector
) -> tuple[Indices, Indices, Vector, float] | None:
    plan = import_pot().emd(a, b, (~near).astype(np.float64), numItermax=MAX_PIVOTS)
    outside = float(plan[~near].sum())
    if outside > UNPLACED_MASS_TOL:
        return None
    rows, cols = np.nonzero(plan * near)
    return rows, cols, plan[rows, cols], outside
