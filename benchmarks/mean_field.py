"""Time and memory of the local constant at a measure with 100,000 weighted atoms in d = 64.

    python benchmarks/mean_field.py [--atoms 100000] [--width 64] [--tol 0.1] [--max-steps 6] [--causal]

One head with random weights and atoms (ten clusters; log-normal masses of about e^{±2}), float32 on the CPU. A matrix
of probabilities would take 37 GiB, the Jacobian itself 149 TiB. Each product with J or Jᵀ computes all pairs of atoms,
one block at a time. The peak memory is the high-water mark of the process, reset before the solve, minus its memory
once weights and atoms exist. First, the dense solver in float64 is compared with the matrix-free one for a few atoms.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from howsmooth import SelfAttention
from howsmooth.lipschitz import mean_field_lipschitz

GIB = 2**30


def high_water_mark() -> int:
    """Return the peak memory of this process since the last reset, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def reset_high_water_mark() -> int:
    """Reset the peak memory of this process and return its current memory, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return high_water_mark()


def layer_and_measure(m: int, d: int, causal: bool) -> tuple[SelfAttention, tuple[torch.Tensor, torch.Tensor]]:
    """Return a random head, and m atoms (m, d) with their log weights (m,)."""
    generator = torch.Generator().manual_seed(0)
    wq, wk, wv = (torch.randn(d, d, generator=generator) * d**-0.5 for _ in range(3))
    centres = torch.randn(10, d, generator=generator)
    which = torch.randint(10, (m,), generator=generator)
    x = centres[which] + 0.5 * torch.randn(m, d, generator=generator)
    return SelfAttention(2 * wq, 2 * wk, wv, causal=causal), (x, 2 * torch.randn(m, generator=generator))


def check(d: int, causal: bool) -> None:
    """Compare the dense Jacobian, of 2,000 columns, with the interval of the solver."""
    f, (x, logs) = layer_and_measure(2000 // d, d, causal)
    truth = mean_field_lipschitz(f.converted(dtype=torch.float64), (x.double(), logs.double()), dense=True)
    found = mean_field_lipschitz(f, (x, logs), dense=False, product_dtype=torch.float32)
    print(
        f"{len(x)} atoms: dense {truth.value:.6g}, matrix-free {found.value:.6g} in [{found.lower:.6g}, "
        f"{found.upper:.6g}], relative difference {abs(found.value / truth.value - 1):.1e}"
    )


def main() -> None:
    """Run the benchmark with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--atoms", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--tol", type=float, default=0.1)
    parser.add_argument("--max-steps", type=int, default=6)
    parser.add_argument("--causal", action="store_true")
    arguments = parser.parse_args()
    m, d = arguments.atoms, arguments.width
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, float32, d = {d}")
    check(d, arguments.causal)
    f, measure = layer_and_measure(m, d, arguments.causal)
    base, start = reset_high_water_mark(), time.perf_counter()

    def progress(step: int, lower: torch.Tensor, upper: torch.Tensor) -> None:
        seconds = time.perf_counter() - start
        print(f"  step {step}: [{float(lower):.5g}, {float(upper):.5g}], {seconds:.0f} s", flush=True)

    found = mean_field_lipschitz(
        f,
        measure,
        dense=False,
        tol=arguments.tol,
        max_steps=arguments.max_steps,
        product_dtype=torch.float32,
        strict=False,
        progress=progress,
    )
    peak = high_water_mark() - base
    print(
        f"{m} atoms{', causal' if arguments.causal else ''}: {found.value:.5g} in [{found.lower:.5g}, "
        f"{found.upper:.5g}] at {found.confidence}, {found.status}; {found.products} products in "
        f"{found.seconds:.0f} s, peak {peak / GIB:.2f} GiB (all pairs: {4 * m * m / GIB:.0f} GiB)"
    )


if __name__ == "__main__":
    main()
