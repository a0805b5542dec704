"""Time of J v and Jᵀ u of each map against the map's own forward pass, and of a chain against its layers.

    OMP_NUM_THREADS=1 python benchmarks/map_products.py 128 512

Processor time in float32, the median of nine, of MiniLM on its embedded text. Each product is compared with the float64
Jacobian, since a time stands next to its accuracy.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from statistics import median

import torch

import howsmooth
from howsmooth.lipschitz import jacobian
from howsmooth.texts import read_corpus

MAPS = ("norm", "mlp", "mixer", "block", "layer", "weights:q", "weights:all", "cache:both", "chain:0..2", "model")


def seconds(computation: Callable[[], object]) -> float:
    """Return the median processor time of nine runs, after one."""
    computation()
    times = []
    for _ in range(9):
        began = time.process_time()
        computation()
        times.append(time.process_time() - began)
    return median(times)


def main(lengths: list[int]) -> None:
    """Print a line for each map and length."""
    model, corpus = howsmooth.load("minilm"), read_corpus("embedded")
    for n in lengths:
        (chunk,) = model.chunks(corpus, n, 1)
        product: dict[str, float] = {}
        for name in (*MAPS, "layer 0", "layer 1", "layer 2"):
            kind, _, number = name.partition(" ")
            whole = kind.startswith("chain") or kind == "model"
            at = model.map_at(chunk, None if whole else int(number or 2), kind)
            J = jacobian(at.f, at.x)
            exact = J.precise() or J
            v, u = (torch.randn(size, generator=torch.Generator().manual_seed(0)) for size in J.shape[::-1])
            with torch.no_grad():
                own = seconds(at)
            forward, backward = seconds(lambda: J.matvec(v)), seconds(lambda: J.rmatvec(u))  # noqa: B023
            product[name] = forward
            wanted = exact.matvec(v.double())
            error = float((J.matvec(v).double() - wanted).norm() / wanted.norm())
            print(
                f"n = {n}, {name}: pass {1e3 * own:.2f} ms, J v {forward / own:.2f}, Jᵀ u {backward / own:.2f} passes, "
                f"relative error of J v {error:.1e}"
            )
        layers = sum(product[f"layer {i}"] for i in range(3))
        print(f"n = {n}: J v of the chain takes {product['chain:0..2'] / layers:.2f} of the sum of its layers")


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1:]] or [128])
