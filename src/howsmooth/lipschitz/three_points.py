"""The mean-field constant of measures at three points of the interval, found by a search.

In d = 1 with V = 1, in units of 1/√|A|, tokens lie in [−√a, √a]. `plateau` is the supremum over measures at two
points. Where A > 0 three points are better: a heavy one at one end, one of mass about e^{−3a/4} near the middle of the
other half, one of mass about e^{−a} at the other end. All masses are logarithms, since they underflow for large a. For
A < 0 searches with three points from random starts find nothing above two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from howsmooth.lipschitz.regimes import a_from_gamma, plateau

# Start of the search: where the middle point is relative to −√a/2, in units of its distance 1/√a, and the log masses of
# the middle and of the light point relative to −3a/4 and −a.
_START = (-1.6, -3.5, -3.5)
_RESTARTS = 3


def line_log_norm(x: Sequence[float], log_masses: Sequence[float], sign: float) -> float:
    """Return log ‖J‖ in the weighted norm at atoms on the line, for A = sign and V = 1.

    Args:
        x: Atoms, in units of 1/√|A|.
        log_masses: Logarithms of their masses, up to a constant.
        sign: Sign of A, 1 or −1.

    Example:
        >>> from howsmooth.lipschitz import plateau
        >>> top = plateau(2.0)
        >>> abs(line_log_norm([top.y, top.z], [0.0, top.log_crossover], -1.0) - top.log_value) < 0.01
        True
    """
    atoms, logs = np.asarray(x, dtype=np.float64), np.asarray(log_masses, dtype=np.float64)
    scores = sign * np.outer(atoms, atoms) + logs
    log_p = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    p = np.exp(log_p)
    centred = (p[:, None, :] * (atoms[None, :, None] - atoms[None, None, :])).sum(-1)  # (i, j): x_j − m_i
    own = sign * (p * centred**2).sum(1)
    # D_ij = √(a_i/a_j) P_ij (1 + A x_i (x_j − m_i)) + δ_ij A C_i, scaled by e^{−s} so that it does not overflow
    log_weights = log_p + (logs[:, None] - logs[None, :]) / 2
    s = max(0.0, float(log_weights.max()))
    matrix: NDArray[np.float64] = np.exp(log_weights - s) * (1 + sign * atoms[:, None] * centred)
    matrix += math.exp(-s) * np.diag(own)
    norm = float(np.linalg.norm(matrix, 2)) if np.isfinite(matrix).all() else 0.0
    return s + math.log(norm) if norm > 0 else -math.inf


def three_point_plateau(gamma_r2: float, scores: str = "negative") -> float:
    """Return the logarithm of the largest mean-field constant found at measures on up to three points.

    It is attained, so it is a lower bound on the mean-field constant. It is never below that of `plateau`.

    Args:
        gamma_r2: `γR²`.
        scores: Sign of A, "negative" or "positive".

    Example:
        >>> from howsmooth.lipschitz import plateau
        >>> logs = plateau(4.0, "positive").log_value, three_point_plateau(4.0, "positive")
        >>> [round(math.exp(log), 1) for log in logs]
        [165.8, 278.9]
    """
    two = plateau(gamma_r2, scores).log_value
    a = a_from_gamma(gamma_r2, scores)
    if scores == "negative" or a == 0:
        return two
    end = math.sqrt(a)

    def loss(free: NDArray[np.float64]) -> float:
        middle, mass_of_middle, mass_of_light = free.tolist()
        points = [end, min(max(-end / 2 + middle / end, -end), end), -end]
        value = line_log_norm(points, [0.0, mass_of_middle - 0.75 * a, mass_of_light - a], 1.0)
        return -value if math.isfinite(value) else 1e300

    free, best = np.asarray(_START), math.inf
    for _ in range(_RESTARTS):
        found = minimize(loss, free, method="Nelder-Mead", options={"maxiter": 1000, "xatol": 1e-8, "fatol": 1e-13})
        free, best = found.x, min(best, float(found.fun))
    return max(two, -best)


__all__ = ["line_log_norm", "three_point_plateau"]
