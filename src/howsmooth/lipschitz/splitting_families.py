"""Measures on two atoms whose splitting ratio tends to the largest known value of a kind of map (docs/splitting.md).

The functions are elementary, so that they serve any type of number: `roots` is the module that has `sqrt` and `log`,
`math` or `mpmath`.
"""

from __future__ import annotations

import math
from typing import Any

Measure = tuple[list[list[Any]], list[Any]]  # points, logarithms of the masses


def opposite_l2_measure(distance: Any, roots: Any = math) -> Measure:
    """Return the measure for L2 attention with K = −Q = −1 in d = 1: its ratio is ½e^{t/2}(1 + o(1)), masses 1 : e^t.

    Args:
        distance: The distance δ > 1 of the two atoms.
        roots: Module with `sqrt` and `log`.

    Example:
        >>> points, log_masses = opposite_l2_measure(4.0)
        >>> [round(x, 4) for (x,) in points], round(log_masses[1], 4)
        ([-2.0635, 1.9365], 19.1107)
    """
    q = (1 - roots.sqrt(1 - 1 / distance**2)) / 2  # of the light atom in the row of the heavy one: q(1 − q)δ² = ¼
    total = -1 / (2 * (1 - q) * distance)  # x + y, for which moving the light atom does not move the heavy one's image
    x, y = (total - distance) / 2, (total + distance) / 2
    return [[x], [y]], [0 * x, 4 * y * y - total * total - roots.log(q / (1 - q))]


def ill_conditioned_measure(condition: Any, size: Any, roots: Any = math) -> Measure:
    """Return the measure for softmax attention with A = diag(1, 1/κ), V = I: its ratio tends to (1 + κ)/(2√κ).

    Args:
        condition: The condition number κ.
        size: The size s > 1, which tends to infinity.
        roots: Module with `sqrt` and `log`.

    Example:
        >>> points, log_masses = ill_conditioned_measure(10.0, 100.0)
        >>> [[round(t, 3) for t in point] for point in points], round(log_masses[1], 3)
        ([[81.793, -258.824], [181.793, 57.404]], 27.631)
    """
    root = roots.sqrt(condition)
    u = [size, size * root]  # y − x, with the smallest cosine between u and Au
    Au = [size, size / root]
    least_score = -6 * roots.log(size)  # ⟨Ax, u⟩, far enough below 0 that D_xy, of order s² e^{q/2}, vanishes
    excess = (2 * size * size - least_score) / (size * size * (1 + condition))  # ⟨Au, u⟩ = 2s², |u|² = s²(1 + κ)
    Ax = [a - excess * t for a, t in zip(Au, u, strict=True)]
    x = [Ax[0], condition * Ax[1]]
    return [x, [s + t for s, t in zip(x, u, strict=True)]], [0 * size, -least_score]


__all__ = ["ill_conditioned_measure", "opposite_l2_measure"]
