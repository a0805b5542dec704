"""How long does an exact W₂ take, next to POT alone?

    python benchmarks/transport.py [--n 2000] [--d 64] [--repeats 1] [--threads 1]

Two Gaussian clouds of n points in d dimensions, the second stretched and moved. Both sides start from the points:

    howsmooth   wasserstein(mu, nu), with potentials that certify it; equal masses go to SciPy's assignment and unequal
                ones to POT's simplex, both started by a few Sinkhorn steps
    POT         ot.dist and ot.emd2 as they come, with as many pivots as they need
    SciPy       cdist and linear_sum_assignment as they come, where masses are equal

Seconds are of the cores, not of the wall, which on a shared machine measures the neighbours. Accuracy beside each: the
duality gap that was certified, and the relative difference of W₂ to POT's. Goal: no slower than POT. Best of the
repeats, which alternate.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import ot
import torch
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from howsmooth.transport import TokenMeasure, wasserstein


def clouds(n: int, d: int, equal: bool) -> tuple[TokenMeasure, TokenMeasure]:
    draw = torch.Generator().manual_seed(0)

    def one(scale: float, shift: float) -> TokenMeasure:
        points = scale * torch.randn(n, d, dtype=torch.float64, generator=draw) + shift
        masses = torch.rand(n, dtype=torch.float64, generator=draw)
        return TokenMeasure(points) if equal else TokenMeasure(points, masses, normalise=True)

    return one(1.0, 0.0), one(1.3, 0.1)


def by_pot(mu: TokenMeasure, nu: TokenMeasure) -> float:
    cost = ot.dist(mu.points.numpy(), nu.points.numpy())
    return float(ot.emd2(mu.weights.numpy(), nu.weights.numpy(), cost, numItermax=10**9)) ** 0.5


def by_scipy(mu: TokenMeasure, nu: TokenMeasure) -> float:
    cost = cdist(mu.points.numpy(), nu.points.numpy(), "sqeuclidean")
    return float(np.sqrt(cost[linear_sum_assignment(cost)].mean()))


def seconds(call, *arguments):
    began = time.process_time()
    result = call(*arguments)
    return time.process_time() - began, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("n", 2000), ("d", 64), ("repeats", 1), ("threads", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    wasserstein(*clouds(50, arguments.d, equal=False))  # libraries load what they load
    print(
        f"W₂ of {arguments.n} × {arguments.n} points in d = {arguments.d}, {arguments.threads} thread(s), "
        f"POT {ot.__version__}"
    )
    print("masses   howsmooth s  by          gap      difference   POT s    SciPy s   POT / howsmooth")
    for equal in (True, False):
        mu, nu = clouds(arguments.n, arguments.d, equal)
        ours, theirs, scipys = [], [], []
        for _ in range(arguments.repeats):
            took, found = seconds(wasserstein, mu, nu)
            ours.append(took)
            took, value = seconds(by_pot, mu, nu)
            theirs.append(took)
            scipys.append(seconds(by_scipy, mu, nu)[0] if equal else float("nan"))
        print(
            f"{'equal' if equal else 'unequal':8s} {min(ours):11.3f}  {found.method:10s}  {found.gap:.1e}  "
            f"{abs(found.value / value - 1):.1e}    {min(theirs):8.3f}  {min(scipys):8.3f}   "
            f"{min(theirs) / min(ours):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
