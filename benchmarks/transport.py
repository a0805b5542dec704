"""Time of an exact W₂, compared with POT alone.

    python benchmarks/transport.py [--n 2000] [--d 64] [--repeats 1] [--threads 1]

Two Gaussian point clouds of n points in d dimensions, the second scaled and shifted. All start from the points:

    howsmooth   wasserstein(mu, nu), with potentials that certify it; SciPy's assignment for equal masses and POT's
                simplex for unequal ones, both started by a few Sinkhorn steps
    POT         ot.dist and ot.emd2 with defaults, but for an unlimited number of pivots
    SciPy       cdist and linear_sum_assignment with defaults, where masses are equal

Times are CPU times, which other load on a shared machine affects less than wall times. Accuracy: the certified duality
gap, and the relative difference of W₂ to that of POT. Goal: no slower than POT. Best of the repeats, which alternate.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import ot
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from howsmooth.transport import TokenMeasure, wasserstein


def clouds(n: int, d: int, equal: bool) -> tuple[TokenMeasure, TokenMeasure]:
    """Return two measures of n points (n, d) with equal or random masses."""
    generator = torch.Generator().manual_seed(0)

    def one(scale: float, shift: float) -> TokenMeasure:
        points = scale * torch.randn(n, d, dtype=torch.float64, generator=generator) + shift
        masses = torch.rand(n, dtype=torch.float64, generator=generator)
        return TokenMeasure(points) if equal else TokenMeasure(points, masses, normalise=True)

    return one(1.0, 0.0), one(1.3, 0.1)


def by_pot(mu: TokenMeasure, nu: TokenMeasure) -> float:
    """Return W₂ computed by POT."""
    cost = ot.dist(mu.points.numpy(), nu.points.numpy())
    return float(ot.emd2(mu.weights.numpy(), nu.weights.numpy(), cost, numItermax=10**9)) ** 0.5


def by_scipy(mu: TokenMeasure, nu: TokenMeasure) -> float:
    """Return W₂ of equal masses computed by SciPy."""
    cost = cdist(mu.points.numpy(), nu.points.numpy(), "sqeuclidean")
    return float(np.sqrt(cost[linear_sum_assignment(cost)].mean()))


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Return the CPU time of a call in seconds, and its result."""
    start = time.process_time()
    result = function(*arguments)
    return time.process_time() - start, result


def main() -> None:
    """Run the benchmark with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("n", 2000), ("d", 64), ("repeats", 1), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    wasserstein(*clouds(50, arguments.d, equal=False))  # loads the libraries
    print(
        f"W₂ of {arguments.n} × {arguments.n} points in d = {arguments.d}, {arguments.threads} thread(s), "
        f"POT {ot.__version__}"
    )
    print("masses   howsmooth s  by          gap      difference   POT s    SciPy s   POT / howsmooth")
    for equal in (True, False):
        mu, nu = clouds(arguments.n, arguments.d, equal)
        ours, theirs, scipys = [], [], []
        for _ in range(arguments.repeats):
            took, found = timed(wasserstein, mu, nu)
            ours.append(took)
            took, value = timed(by_pot, mu, nu)
            theirs.append(took)
            scipys.append(timed(by_scipy, mu, nu)[0] if equal else float("nan"))
        print(
            f"{'equal' if equal else 'unequal':8s} {min(ours):11.3f}  {found.method:10s}  {found.gap:.1e}  "
            f"{abs(found.value / value - 1):.1e}    {min(theirs):8.3f}  {min(scipys):8.3f}   "
            f"{min(theirs) / min(ours):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
