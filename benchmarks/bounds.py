"""Time of the bounds, and their ratio to the measured constant.

Random layers of the shape of GPT-2 (d = 768, 12 heads, causal, all biases; weights of standard deviation 0.02 times
`--spread`) at n tokens normalised by a LayerNorm. Wall time and CPU time of all cores together for three computations:

    on a ball       all bounds of twelve layers on the ball of radius max|x_i|, from the weights
    local           `this_project.local` of one layer, from the weights and tokens
    certify_ball    the certificate at ε = 10⁻³ max|x_i| of one layer, from the weights and tokens, without the
                    quadratic form, whose time depends on its effort

For each, the ratio to σ₁, the constant that `local_lipschitz` measures at the tokens (its time is not included): for
the ball, the mean over layers of the ratio of the smallest upper bound; for the certificate, the ratio of the interval
bound, and of the bound with the upper end of σ₁ as `at_center`. Medians over repeats.

    python benchmarks/bounds.py [--n 512] [--layers 12] [--spread 3.0] [--repeats 3] [--threads 2]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from howsmooth import SelfAttention, local_lipschitz
from howsmooth.bounds import Bound, LayerForm, certify_ball, every, this_project

D, HEADS = 768, 12


def gpt2_shaped(seed: int, n: int, spread: float) -> tuple[SelfAttention, torch.Tensor]:
    """Return a random layer and its tokens (n, d), in float32 as those of models."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    weights = {name: 0.02 * spread * normal(D, D) for name in ("wq", "wk", "wv", "wo")}
    biases = {name: 0.02 * normal(D) for name in ("bq", "bk", "bv", "bo")}
    x = torch.nn.functional.layer_norm(normal(n, D) + normal(D), (D,))
    return SelfAttention(**weights, **biases, heads=HEADS, causal=True), x


def timed(call: Callable[[], Any], repeats: int) -> tuple[float, float, Any]:
    """Return the medians of wall time and of CPU time, and the last result."""
    runs = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        result = call()
        runs.append((time.perf_counter() - wall, time.process_time() - cpu))
    wall, cpu = (statistics.median(times) for times in zip(*runs, strict=True))
    return wall, cpu, result


def main() -> None:
    """Run the benchmark with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--spread", type=float, default=3.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    n = arguments.n
    layers = [gpt2_shaped(seed, n, arguments.spread) for seed in range(arguments.layers)]
    radii = [float(x.norm(dim=-1).max()) for _, x in layers]
    sigmas = [local_lipschitz(f, x) for f, x in layers]
    print(f"n = {n}, d = {D}, {HEADS} heads, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("                       wall s   CPU s   bound/σ₁")

    def on_balls() -> list[list[Bound]]:
        return [every(LayerForm(f), n, radius) for (f, _), radius in zip(layers, radii, strict=True)]

    wall, cpu, found = timed(on_balls, arguments.repeats)
    smallest = [
        min(b.value or float("inf") for b in bounds if isinstance(b, Bound) and b.side == "upper") for bounds in found
    ]
    ratio = statistics.mean(bound / sigma.value for bound, sigma in zip(smallest, sigmas, strict=True))
    print(f"on a ball, {len(layers):2d} layers  {wall:6.2f}  {cpu:6.2f}   {ratio:.4g}", flush=True)

    (f, x), radius, sigma = layers[0], radii[0], sigmas[0]
    wall, cpu, bound = timed(lambda: this_project.local(LayerForm(f), x), arguments.repeats)
    print(f"local                  {wall:6.2f}  {cpu:6.2f}   {bound.value / sigma.value:.4g}", flush=True)
    wall, cpu, certificate = timed(
        lambda: certify_ball(LayerForm(f), x, 1e-3 * radius, at_center=sigma.upper, effort=0), arguments.repeats
    )
    interval, value = (v / sigma.value for v in (certificate.parts["interval"], certificate.value))
    print(f"certify_ball           {wall:6.2f}  {cpu:6.2f}   {interval:.4g} interval, {value:.4g} {certificate.method}")


if __name__ == "__main__":
    main()
