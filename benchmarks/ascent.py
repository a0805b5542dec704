"""What does one step of ascent cost, next to one evaluation of σ₁?

    python benchmarks/ascent.py [--lengths 64,128] [--steps 12]

A step computes the Jacobian at the trial point, σ₁ there by a few warm Golub–Kahan steps, and its gradient. It is
compared with two kinds of evaluation of σ₁, each with its own Jacobian:

    certified   singular_values to the relative width 1e-3 at 0.999, from a random start
    warm        warm_triplet from the last vectors: an attained lower bound, no certificate

Goal: a step costs at most 4 certified evaluations. Steps are those of `ascend`, timed from one call of its `progress`
to the next; only steps that increase σ₁ count, as the others need no gradient. The other two are evaluated at the start
of the ascent, alternating with the steps. The errors are those at the end: of the attained value against σ₁ to 1e-8,
and of the gradient against a central difference of σ₁ along it. Weights are random, one restart, in float32 as in
models; the errors are computed in float64.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from howsmooth import SelfAttention
from howsmooth.attack import Ascent, Sphere, ascend
from howsmooth.attack.ascent import WARM_START_NOISE, WARM_STEPS
from howsmooth.spectral import singular_values, warm_triplet

# name: width, heads, causal
SHAPES = {"MiniLM": (384, 12, False), "GPT-2": (768, 12, True)}
GOAL = 4.0


def layer(d: int, heads: int, causal: bool) -> SelfAttention:
    """Return a layer with random weights."""
    generator = torch.Generator().manual_seed(0)
    wq, wk, wv, wo = (torch.randn(d, d, generator=generator) * d**-0.5 for _ in range(4))
    return SelfAttention(2 * wq, 2 * wk, wv, wo, heads=heads, causal=causal)


def seconds(call) -> float:
    """Return the seconds of a call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


class Stopwatch:
    """A `progress` callback that times the steps that increase σ₁, and after each of them the two evaluations."""

    def __init__(self, f: SelfAttention, x: torch.Tensor):
        """Compute the start of the warm evaluation."""
        self.f, self.x, self.value, self.began = f, x, None, 0.0
        v = singular_values(f.jacobian(x), tol=1e-3, strict=False).v[0]
        noise = torch.randn(v.shape, generator=torch.Generator().manual_seed(2))
        self.start = v + WARM_START_NOISE * noise / len(v) ** 0.5
        self.times: dict[str, list[float]] = {"step": [], "certified": [], "warm": []}

    def __call__(self, step: int, values: torch.Tensor) -> None:
        """Record the step, and time the two evaluations if it increased σ₁."""
        took, value = time.perf_counter() - self.began, float(values.max())
        if self.value is not None and value > self.value:  # not the first step, in which libraries are loaded
            self.times["step"].append(took)
            self.times["certified"].append(
                seconds(lambda: singular_values(self.f.jacobian(self.x), tol=1e-3, strict=False))
            )
            self.times["warm"].append(seconds(lambda: warm_triplet(self.f.jacobian(self.x), self.start, WARM_STEPS)))
        self.value, self.began = value, time.perf_counter()


def timed_ascent(f: SelfAttention, n: int, steps: int) -> tuple[Ascent, dict[str, list[float]]]:
    """Run an ascent on the sphere and return it with its times."""
    constraint = Sphere(f.d**0.5)
    x = constraint.project(torch.randn(n, f.d, generator=torch.Generator().manual_seed(1)))
    watch = Stopwatch(f, x)
    return ascend(f, x, constraint, steps=steps, progress=watch), watch.times


def truth(f: SelfAttention, x: torch.Tensor) -> float:
    """Return σ₁ to 1e-8."""
    return float(singular_values(f.jacobian(x), tol=1e-8, strict=False).value[..., 0])


def slope_error(f: SelfAttention, x: torch.Tensor) -> float:
    """Return the relative difference of |∇σ₁| and a central difference of σ₁ along ∇σ₁, both in float64."""
    found = singular_values(f.jacobian(x), tol=1e-10, strict=False)
    g = f.jacobian(x).gradient(found.u[0], found.v[0])
    step = 1e-3 * g / g.norm()
    return abs((truth(f, x + step) - truth(f, x - step)) / 2e-3 / float(g.norm()) - 1)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="64,128")
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    print(
        f"float32, {torch.get_num_threads()} threads, torch {torch.__version__}; medians over steps that increase "
        f"σ₁, of at most {arguments.steps}"
    )
    print("                     ------- seconds -------   -- step over --   ---- error ----")
    print("layer     n  steps     step  certified    warm   certified  warm     value   slope")
    worst = 0.0
    for name, shape in SHAPES.items():
        for n in map(int, arguments.lengths.split(",")):
            f = layer(*shape)
            found, times = timed_ascent(f, n, arguments.steps)
            t = {key: statistics.median(values) for key, values in times.items()}
            precise, at = f.converted(dtype=torch.float64), found.ends[0].double()
            error = abs(float(found.values[0]) / truth(precise, at) - 1)
            over = {key: t["step"] / t[key] for key in ("certified", "warm")}
            worst = max(worst, over["certified"])
            print(
                f"{name:8s}{n:4d}  {len(times['step']):5d}  {t['step']:7.3f}  {t['certified']:9.3f} "
                f"{t['warm']:7.3f}   {over['certified']:9.2f} {over['warm']:5.2f}   {error:7.1e} "
                f"{slope_error(precise, at):7.1e}",
                flush=True,
            )
    print(f"largest: {worst:.2f} certified evaluations for a step (goal {GOAL:g})")


if __name__ == "__main__":
    main()
