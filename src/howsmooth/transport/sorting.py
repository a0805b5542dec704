"""Transport on the line: sorted atoms meet in order, for every cost |x − y|^p with p ≥ 1."""

from __future__ import annotations

import numpy as np

# Masses that are less than this, relative to the largest atom they are left over from, are rounding.
ROUNDING = 1e-14


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
        next_r = r < last_r and (c == last_c or left <= ROUNDING * largest)
        next_c = c < last_c and (r == last_r or wanted <= ROUNDING * largest)
        largest = 0.0 if next_r and next_c else largest
        if next_r:
            r, left = r + 1, a[r + 1]
        if next_c:
            c, wanted = c + 1, b[c + 1]
    return i[np.array(rows)], j[np.array(cols)], np.log(np.array(mass))
