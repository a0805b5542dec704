"""Exact transport between finitely many atoms: rows, columns and masses of an optimal coupling.

    line          sorted atoms meet in order, for every cost |x − y|^p with p ≥ 1
    nearest       everyone to their nearest atom, where that couples the masses
    assignment    equal masses, by SciPy
    simplex       any masses, by POT's network simplex
    bottleneck    W_∞: the smallest t such that a coupling moves nothing farther than t

All but the first take the cost matrix, (n, m), non-negative. Assignment and simplex also give a dual value, a lower
bound on every coupling's cost that holds by itself.
"""

from __future__ import annotations

import inspect
import warnings
from bisect import bisect_left

import numpy as np

from howsmooth.errors import InputError, NotConverged

# From this many pairs on, potentials from Sinkhorn pay for themselves: steps at a large temperature, then at a small
# one, each relative to the spread of the costs.
WARM_PAIRS = 300 * 300
SINKHORN = ((0.1, 10), (0.02, 20))
# Rounds in search of dual potentials for an assignment; 2,000 points need about 40.
DUAL_ROUNDS = 1000
MOST_PIVOTS = 10**9
# Log masses that differ by this, relative to their size, are the same but for rounding.
ROUNDING = 16 * np.finfo(np.float64).eps
# Masses that are less than this, relative to the largest atom they are left over from, are rounding.
LEFTOVER = 1e-14
# Mass that may be left over by a coupling within t, from rounding in the masses.
MASS_ROUNDING = 1e-12


def squared_distances(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """|x_i − y_j|², (n, m). As |x|² + |y|² − 2⟨x, y⟩ where that cancels no more than two digits, else term by term."""
    from scipy.spatial.distance import cdist

    own, other = np.square(x).sum(1), np.square(y).sum(1)
    squares = x @ y.T
    squares *= -2
    squares += own[:, None]
    squares += other
    return squares if squares.min() > 1e-2 * (own.max() + other.max()) else cdist(x, y, "sqeuclidean")


def nearest(cost: np.ndarray, log_a: np.ndarray, log_b: np.ndarray):
    """Everyone to their nearest atom, if that couples the masses: then no plan can be better. Else None.

    That is so for small displacements, where masses may be as small as they like: nothing is subtracted.
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
        if reached < len(targets) / 2:  # far from a coupling: the other side would not be one either
            return None
    return None


def assignment(cost: np.ndarray, certify: bool):
    """An optimal permutation for equal masses, and the mean dual value.

    SciPy's solver on reduced costs: feasible potentials, first from Sinkhorn, change no optimal plan, and leave short
    augmenting paths: 2,000 points in d = 64 take 0.2 s of one core and as much again for the certificate, where the
    plain costs take 1.0 s, and POT's simplex 1.0 s too (0.4 s with the same potentials to start from).
    """
    from scipy.optimize import linear_sum_assignment

    reduced, f, g = reduce_costs(cost)
    rows, cols = linear_sum_assignment(reduced)
    if not certify:
        return rows, cols, None
    # Potentials u of the rows; those of the columns make the plan's entries tight: u_i − u_k ≤ r_iσ(k) − r_kσ(k).
    slack = reduced[:, cols] - reduced[rows, cols]
    u = np.zeros(len(rows))
    for _ in range(DUAL_ROUNDS):
        better = (slack + u).min(1)
        if not (better < u).any():
            break
        u = better
    v = (reduced - u[:, None]).min(0)
    return rows, cols, float(f.mean() + g.mean() + u.mean() + v.mean())


def simplex(cost: np.ndarray, a: np.ndarray, b: np.ndarray):
    """An optimal coupling for any masses, by POT from good potentials on, and the dual value of those it ends with.

    2,000 points in d = 64: 0.4 s of one core, from scratch 0.8 s.
    """
    ot = pot()
    reduced, f, g = reduce_costs(cost, a, b)
    start = {}
    if "potentials_init" in inspect.signature(ot.emd).parameters:  # since POT 0.9.7
        start, f, g = {"potentials_init": (f, g)}, np.zeros_like(f), np.zeros_like(g)
        reduced = cost
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan, log = ot.emd(a, b, reduced, numItermax=MOST_PIVOTS, log=True, **start)
    if log["warning"] is not None:
        raise NotConverged(f"transport: POT stopped early ({log['warning']}); look at the weights", plan)
    # What is less than the rounding of both masses is no mass: however far it goes, it does not count.
    rows, cols = np.nonzero(plan > ROUNDING * np.minimum(a[:, None], b))
    # The transform of its row potentials is feasible to the last bit, so the dual value is a true lower bound.
    v = (reduced - log["u"][:, None]).min(0)
    return rows, cols, plan[rows, cols], float(a @ (f + log["u"]) + b @ (g + v))


def reduce_costs(
    cost: np.ndarray, a: np.ndarray | None = None, b: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cost − f_i − g_j ≥ 0 with good potentials f and g."""
    n, m = cost.shape
    a, b = np.full(n, 1 / n) if a is None else a, np.full(m, 1 / m) if b is None else b
    reduced, f, g = _feasible(cost, np.zeros(n))
    spread = float(reduced.std())
    if cost.size < WARM_PAIRS or spread == 0:
        return reduced, f, g
    for share, steps in SINKHORN:
        kernel = np.exp((reduced * (-1 / (share * spread))).astype(np.float32))
        left: np.ndarray = a.astype(np.float32)
        right: np.ndarray = np.ones(m, np.float32)
        with np.errstate(all="ignore"):
            for _ in range(steps):
                left = a.astype(np.float32) / (kernel @ right)
                right = b.astype(np.float32) / (left @ kernel)
            shift = share * spread * np.log(left.astype(np.float64) / a)
        if not np.isfinite(shift).all():  # too far for float32: what there is will do
            break
        reduced, f, g = _feasible(cost, f + shift)
    return reduced, f, g


def _feasible(cost: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The largest g for this f, then the largest f for that g, and the costs reduced by both."""
    reduced = cost - f[:, None]
    g = reduced.min(0)
    reduced -= g
    rest = reduced.min(1)
    reduced -= rest[:, None]
    return reduced, f + rest, g


def pot():
    try:
        import ot
    except ImportError:
        raise InputError(
            "expected POT for transport between different masses, got an installation without it; "
            "install it: pip install 'howsmooth[transport]'"
        ) from None
    return ot


def monotone_plan(x: np.ndarray, log_a: np.ndarray, y: np.ndarray, log_b: np.ndarray):
    """Rows, columns and log masses of the coupling of the quantile functions of (x, a) and (y, b)."""
    i, j = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    if len(x) == len(y) and np.ptp(log_a) == 0 and np.ptp(log_b) == 0:
        return i, j, log_a[i]
    a, b = np.exp(log_a[i]), np.exp(log_b[j])
    if np.array_equal(log_a[i], log_b[j]):  # equal masses in equal order, however small
        return i, j, log_a[i]
    rows, cols, mass = [], [], []
    r, c, last_r, last_c = 0, 0, len(a) - 1, len(b) - 1
    left, wanted, largest = a[0], b[0], 0.0
    while True:
        # The last atom takes whatever is left on the other side: what it has itself is the same but for rounding.
        moved = wanted if r == last_r else left if c == last_c else min(left, wanted)
        rows.append(r)
        cols.append(c)
        mass.append(moved)
        if r == last_r and c == last_c:
            break
        largest = max(largest, a[r], b[c])
        left, wanted = left - moved, wanted - moved
        next_r = r < last_r and (c == last_c or left <= LEFTOVER * largest)
        next_c = c < last_c and (r == last_r or wanted <= LEFTOVER * largest)
        largest = 0.0 if next_r and next_c else largest
        if next_r:
            r, left = r + 1, a[r + 1]
        if next_c:
            c, wanted = c + 1, b[c + 1]
    return i[np.array(rows)], j[np.array(cols)], np.log(np.array(mass))


def bottleneck(distances: np.ndarray, a: np.ndarray, b: np.ndarray, equal: bool):
    """Rows, columns and masses of a coupling with the least largest distance, and the mass it could not place.

    A coupling within t exists iff every set of atoms fits into what it reaches (Hall), which a matching decides for
    equal masses and a transport with costs 0 and 1 for any. No atom is too light to count for the first bound: each
    has to reach some atom of the other side. Beyond that a set counts if its mass exceeds rounding.
    """
    least = max(distances.min(1).max(), distances.min(0).max())
    values = np.unique(distances[distances >= least])

    def within(t: float):
        return (_match if equal else _couple)(distances <= t, a, b)

    return within(values[0]) or within(values[bisect_left(values, True, key=lambda t: within(t) is not None)])


def _match(near: np.ndarray, a: np.ndarray, b: np.ndarray):
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    cols = maximum_bipartite_matching(csr_array(near), perm_type="column")
    return None if (cols < 0).any() else (np.arange(len(cols)), cols, a, 0.0)


def _couple(near: np.ndarray, a: np.ndarray, b: np.ndarray):
    plan = pot().emd(a, b, (~near).astype(np.float64), numItermax=10**9)
    outside = float(plan[~near].sum())
    if outside > MASS_ROUNDING:
        return None
    rows, cols = np.nonzero(plan * near)
    return rows, cols, plan[rows, cols], outside
