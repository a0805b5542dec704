"""W_∞: the smallest t such that a coupling moves nothing farther than t, found among the distances themselves."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from howsmooth.transport.solving import pot

# Mass that may be left over by a coupling within t, from rounding in the masses.
MASS_ROUNDING = 1e-12


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
