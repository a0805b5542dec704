"""How large is the splitting ratio of L2 attention with K = −Q, and of softmax attention with A ≻ 0 in the plane?

    python -m experiments.splitting_limits [--out docs/images/splitting_limits.jsonl]

Records of three kinds, as JSON lines; those in the file are not computed again. Every ratio has 80 digits:

    l2         two atoms at the distance δ (`opposite_l2_measure`): ratio ½e^{t/2}(1 + o(1)) for masses 1 : e^t
    softmax    A = diag(1, 1/κ), two atoms of size s (`ill_conditioned_measure`): the ratio tends to (1 + κ)/(2√κ)
    search     A = diag(1, 1/κ), two atoms with free masses, by Nelder–Mead from random starts: does one reach more?
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from experiments.records import Record, Records
from howsmooth.lipschitz.splitting_cases import ill_conditioned_measure, opposite_l2_measure

DIGITS = 80
DISTANCES = (2, 3, 4, 5, 6, 8, 10)
CONDITIONS = (10, 100, 1000)
SIZES = (10, 100, 1000, 10**4, 10**6)
SEARCHED = (1.1, 2.0, 10.0, 100.0, 1000.0)
KEY = ("kind", "parameter", "size", "seed")


def l2_scores(x: Any, y: Any) -> Any:
    """Return the score −|Qx − Ky|² of x and y in d = 1 with K = −Q = −1."""
    return -((x[0] + y[0]) ** 2)


def ratio(kind: str, parameter: float, points: Sequence[Sequence[Any]], log_masses: Sequence[Any]) -> tuple[Any, Any]:
    """Return max_i ‖∂₁G(x_i, μ)‖ / ‖D‖ and ‖D‖ of two atoms, in the precision of mpmath.

    Args:
        kind: "l2", with K = −Q and V = 1 in d = 1, or "softmax", with A = diag(1, 1/κ) and V = I.
        parameter: κ; not used for "l2".
        points: Two atoms.
        log_masses: Logarithms of their masses, up to a constant.
    """
    d = len(points[0])
    A = [mpmath.mpf(1), 1 / mpmath.mpf(parameter)]
    matrix, own = mpmath.matrix(2 * d, 2 * d), []
    for i, x in enumerate(points):
        if kind == "l2":
            scores = [l2_scores(x, y) for y in points]
            gradients = [[-2 * (x[0] + y[0])] for y in points]  # of the score in its key; in its query it is the same
        else:
            gradients = [[A[c] * x[c] for c in range(d)] for _ in points]
            scores = [mpmath.fsum(g * t for g, t in zip(gradients[0], y, strict=True)) for y in points]
        logs = [score + mass for score, mass in zip(scores, log_masses, strict=True)]
        weights = [mpmath.exp(one - max(logs)) for one in logs]
        p = [weight / mpmath.fsum(weights) for weight in weights]
        # x_j − m_i = P_{i,1−j} (x_j − x_{1−j}), without cancellation
        centred = [[p[1 - j] * (points[j][c] - points[1 - j][c]) for c in range(d)] for j in range(2)]
        in_query = mpmath.matrix(d, d)  # ∂₁G = Σ_j P_ij (x_j − m_i) (∂s_ij/∂x_i)ᵀ
        for j, y in enumerate(points):
            query_gradient = gradients[j] if kind == "l2" else [A[c] * y[c] for c in range(d)]
            for a in range(d):
                for b in range(d):
                    in_query[a, b] += p[j] * centred[j][a] * query_gradient[b]
        own.append(mpmath.mnorm(in_query, "f"))  # of rank one: its norm is that of Frobenius
        for j in range(2):
            scale = mpmath.exp((log_masses[i] - log_masses[j]) / 2)
            for a in range(d):
                for b in range(d):
                    entry = p[j] * ((a == b) + centred[j][a] * gradients[j][b])
                    matrix[d * i + a, d * j + b] = scale * (entry + (in_query[a, b] if i == j else 0))
    norm = max(mpmath.svd_r(matrix, compute_uv=False)) if d > 1 else _norm_2(matrix)
    return max(own) / norm, norm


def _norm_2(m: Any) -> Any:
    """Return the norm of a 2 × 2 matrix."""
    (p, q), (r, s) = (m[0, 0], m[0, 1]), (m[1, 0], m[1, 1])
    return (mpmath.hypot(p + s, q - r) + mpmath.hypot(p - s, q + r)) / 2


def evaluated(where: Record, points: Any, log_masses: Any, limit: float | None) -> Record:
    """Return the record of a measure, evaluated with many digits."""
    points, log_masses = [[mpmath.mpf(t) for t in x] for x in points], [mpmath.mpf(t) for t in log_masses]
    found, norm = ratio("l2" if where["kind"] == "l2" else "softmax", where["parameter"], points, log_masses)
    return {
        **where,
        "points": [[float(t) for t in x] for x in points],
        "log_masses": [float(t) for t in log_masses],
        "norm": float(norm),
        "ratio": float(found),
        "limit": limit,
    }


def limit_of(condition: float) -> float:
    """Return (1 + κ)/(2√κ), the inverse of the smallest cosine between u and Au.

    Example:
        >>> round(limit_of(1000), 4)
        15.8272
    """
    return (1 + condition) / (2 * math.sqrt(condition))


def search(condition: float, seed: int, starts: int, steps: int) -> tuple[list[list[float]], list[float]]:
    """Return the two atoms and log masses with the largest ratio in float64, from random starts of sizes 1 to 10⁴."""
    A, generator = np.array([1.0, 1 / condition]), np.random.default_rng(seed)

    def loss(free: NDArray[np.float64]) -> float:
        x, logs, eye = free[:4].reshape(2, 2), np.array([0.0, free[4]]), np.eye(2)
        scores = (x * A) @ x.T + logs
        p = np.exp(scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))
        u = x[1] - x[0]
        own = (p[:, 0] * p[:, 1])[:, None, None] * np.outer(u, A * u)
        matrix = np.zeros((4, 4))
        for i in range(2):
            for j, away in enumerate((-u, u)):
                block = p[i, j] * (eye + p[i, 1 - j] * np.outer(away, A * x[i])) + (own[i] if i == j else 0)
                matrix[2 * i : 2 * i + 2, 2 * j : 2 * j + 2] = (
                    np.exp(np.clip((logs[i] - logs[j]) / 2, -300, 300)) * block
                )
        if not np.isfinite(matrix).all():
            return math.inf
        norm, largest = np.linalg.norm(matrix, 2), np.linalg.norm(own, axis=(1, 2)).max()
        return float(np.log(norm) - np.log(largest)) if largest > 0 and norm > 0 else math.inf

    best, best_value = np.zeros(5), math.inf
    for _ in range(starts):
        size = 10 ** generator.uniform(0, 4)
        shape = np.array([condition**-0.5, 1.0] * 2 + [10 / size])
        free = generator.normal(size=5) * size * shape
        for _ in range(3):
            with np.errstate(all="ignore"):
                run = minimize(
                    loss, free, method="Nelder-Mead", options={"maxiter": steps, "xatol": 1e-12, "fatol": 1e-14}
                )
            free = run.x
        if run.fun < best_value:
            best, best_value = free, run.fun
    return best[:4].reshape(2, 2).tolist(), [0.0, float(best[4])]


def tasks(starts: int, steps: int) -> Iterator[tuple[Record, Callable[[], Record]]]:
    """Yield the key of each record, and the function that computes it."""

    def opposite(where: Record) -> Record:
        return evaluated(where, *opposite_l2_measure(mpmath.mpf(where["size"]), mpmath), None)

    def ill_conditioned(where: Record) -> Record:
        measure = ill_conditioned_measure(mpmath.mpf(where["parameter"]), mpmath.mpf(where["size"]), mpmath)
        return evaluated(where, *measure, limit_of(where["parameter"]))

    def searched(where: Record) -> Record:
        measure = search(where["parameter"], where["seed"], starts, steps)
        return evaluated(where, *measure, limit_of(where["parameter"]))

    def where(kind: str, parameter: float, size: int, seed: int | None = None) -> Record:
        return {"kind": kind, "parameter": parameter, "size": size, "seed": seed}

    found = [(opposite, where("l2", 1.0, distance)) for distance in DISTANCES]
    found += [(ill_conditioned, where("softmax", float(one), size)) for one in CONDITIONS for size in SIZES]
    found += [(searched, where("search", one, starts, seed)) for one in SEARCHED for seed in (0, 1)]
    for compute, key in found:
        yield key, partial(compute, key)


def described(record: Record) -> str:
    """Return a record in a line."""
    if record["kind"] == "l2":
        predicted = math.exp(record["log_masses"][1] / 2) / 2
        return f"l2       distance {record['size']:g}  ratio {record['ratio']:.6g}  ½e^(t/2) = {predicted:.6g}"
    where = f"seed {record['seed']}" if record["kind"] == "search" else f"s = {record['size']:g}"
    return (
        f"{record['kind']:8} κ = {record['parameter']:g}, {where}  ratio {record['ratio']:.6f}  "
        f"(1 + κ)/(2√κ) = {record['limit']:.6f}"
    )


def key_of(record: Record) -> tuple[Any, ...]:
    """Return what identifies a record."""
    return tuple(record[name] for name in KEY)


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=40, help="random measures from which each search starts")
    parser.add_argument("--steps", type=int, default=600, help="steps of Nelder–Mead, three times from each start")
    parser.add_argument("--out", type=Path, default=Path("docs/images/splitting_limits.jsonl"))
    arguments = parser.parse_args(given)
    store = Records(arguments.out, key_of, "records of splitting_limits", '{"kind"')
    with mpmath.workdps(DIGITS):
        for where, compute in tasks(arguments.starts, arguments.steps):
            record = store.done.get(key_of(where))
            if record is None:
                record = compute()
                store.append(record)
            print(described(record), flush=True)


if __name__ == "__main__":
    main()
