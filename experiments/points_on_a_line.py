"""How many points of a line does the largest mean-field constant need?

    python -m experiments.points_on_a_line [--out docs/images/points_on_a_line.jsonl]

One head in d = 1 with A = ∓1 and V = 1. For each γR² and number of points the constant is maximised over points and log
masses, by Nelder–Mead from random starts: half of them anywhere, half with one random point beside the best measure on
one point less. A record is the best measure; those in the file are not computed again.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from experiments.records import Record, Records
from howsmooth.lipschitz.regimes import SCORES, a_from_gamma
from howsmooth.lipschitz.three_points import line_log_norm

SIZES, POINTS, STARTS, STEPS = (2.0, 8.0), (2, 3, 4, 5), 20, 1500
KEY = ("scores", "gamma_r2", "points", "starts", "steps")


def key_of(record: Record) -> tuple[Any, ...]:
    """Return what identifies a record."""
    return tuple(record[name] for name in KEY)


def search(where: Record, smaller: Record | None) -> Record:
    """Return the record of the best measure that is found, with the best one on fewer points as a start."""
    count, a = where["points"], a_from_gamma(where["gamma_r2"], where["scores"])
    end, sign = math.sqrt(a), -1.0 if where["scores"] == "negative" else 1.0
    spread = 1.2 * (2 * a if sign < 0 else a)  # the best masses are 1 : e^{2a} for A < 0, and 1 : e^a for A > 0
    generator = np.random.default_rng(count)

    def measure(free: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.clip(free[:count], -end, end), np.append(0.0, free[count:])

    def loss(free: NDArray[np.float64]) -> float:
        value = line_log_norm(*measure(free), sign)  # type: ignore[arg-type]
        return -value if math.isfinite(value) else 1e300

    best, found = np.zeros(2 * count - 1), math.inf
    for start in range(where["starts"]):
        x, logs = generator.uniform(-end, end, count), generator.uniform(-spread, 0, count)
        if smaller and start % 2:
            x[:-1], logs[:-1] = smaller["x"], smaller["log_masses"]
        free = np.append(x, (logs - logs[0])[1:])
        for _ in range(3):  # a new simplex, where the last one has collapsed
            run = minimize(loss, free, method="Nelder-Mead", options={"maxiter": where["steps"], "fatol": 1e-12})
            free = run.x
        if run.fun < found:
            best, found = free, run.fun
    x, logs = measure(best)
    return {**where, "log_value": -float(found), "x": x.tolist(), "log_masses": logs.tolist()}


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=float, nargs="+", default=SIZES, help="values of γR²")
    parser.add_argument("--points", type=int, nargs="+", default=POINTS, help="numbers of points, increasing")
    parser.add_argument("--starts", type=int, default=STARTS, help="random starts of each search")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps of Nelder–Mead, three times from each start")
    parser.add_argument("--out", type=Path, default=Path("docs/images/points_on_a_line.jsonl"))
    arguments = parser.parse_args(given)
    store = Records(arguments.out, key_of, "records of points_on_a_line", '{"scores"')
    for scores in SCORES:
        for size in arguments.sizes:
            smaller = None
            for count in arguments.points:
                where = dict(zip(KEY, (scores, size, count, arguments.starts, arguments.steps), strict=True))
                if key_of(where) not in store.done:
                    store.done[key_of(where)] = search(where, smaller)
                    store.append(store.done[key_of(where)])
                smaller = store.done[key_of(where)]
                print(
                    f"{scores} scores, γR² = {size:g}, {count} points: {math.exp(smaller['log_value']):.6g}", flush=True
                )


if __name__ == "__main__":
    main()
