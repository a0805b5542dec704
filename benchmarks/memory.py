"""How much memory does attention take, and does a whole solve stay within its plan?

n = 8192 tokens, d = 768, 12 heads, float32 on the CPU. The probabilities alone would take 3 GiB. The solve, at half the
length, gets a limit into which not all of its Lanczos vectors fit. Peaks are those of the process (its high-water mark,
reset before each part), beyond its memory after weights and inputs are created. Each part runs in a process of its own.

    python benchmarks/memory.py [--n 8192] [--max-memory-gib 1.15]
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
from pathlib import Path

GIB = 2**30
STEPS = 16  # of the solve: random weights have a flat spectrum, and only memory matters here


def high_water_mark() -> int:
    """Return the peak memory of the process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def reset_high_water_mark() -> int:
    """Reset the peak and return the memory now."""
    Path("/proc/self/clear_refs").write_text("5")
    return high_water_mark()


def layer_and_tokens(n: int, causal: bool):
    """Return a layer with random weights, and random tokens."""
    import torch

    from howsmooth import SelfAttention

    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(768, 768, generator=generator) * 768**-0.5 for _ in range(4)]
    return SelfAttention(*weights, heads=12, causal=causal), torch.randn(n, 768, generator=generator)


def op(n: int, causal: bool, part: str, answers) -> None:
    """Measure forward, JVP or VJP of `attend`."""
    import torch

    from howsmooth import attend

    f, x = layer_and_tokens(n, causal)
    with torch.no_grad():
        q, k, v = f.project(x)
    tangents = [torch.randn_like(t) for t in (q, k, v)]
    g = torch.randn_like(q)
    f.head(0)(x[:64])  # loads libraries and starts threads
    base, began = reset_high_water_mark(), time.perf_counter()
    if part == "forward":
        attend(q, k, v, causal=causal)
    elif part == "jvp":
        torch.func.jvp(lambda *t: attend(*t, causal=causal), (q, k, v), tuple(tangents))
    else:
        torch.func.vjp(lambda *t: attend(*t, causal=causal), q, k, v)[1](g)
    answers.put((high_water_mark() - base, time.perf_counter() - began))


def solve(n: int, causal: bool, limit: int, answers) -> None:
    """Measure a whole solve under a memory limit."""
    from howsmooth import local_lipschitz
    from howsmooth.spectral import plan

    f, x = layer_and_tokens(n, causal)
    f.head(0)(x[:64])
    plan(f.jacobian(x[:64]))  # loads everything before the mark is reset
    base, began = reset_high_water_mark(), time.perf_counter()
    needed = plan(f.jacobian(x), max_memory=limit, max_steps=STEPS)
    estimate = local_lipschitz(f, x, max_memory=limit, max_steps=STEPS, strict=False)
    answers.put((high_water_mark() - base, time.perf_counter() - began, str(needed), estimate.as_record()))


def in_own_process(target, *arguments):
    """Run a function in a new process and return its answer."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    process = context.Process(target=target, args=(*arguments, answers))
    process.start()
    answer = answers.get()
    process.join()
    return answer


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=8192)
    parser.add_argument("--max-memory-gib", type=float, default=1.15)
    arguments = parser.parse_args()
    n, limit = arguments.n, int(arguments.max_memory_gib * GIB)
    print(f"n = {n}, d = 768, 12 heads, float32; probabilities would take {12 * n * n * 4 / GIB:.2f} GiB")
    for causal in (False, True):
        for part in ("forward", "jvp", "vjp"):
            peak, seconds = in_own_process(op, n, causal, part)
            print(
                f"op {part:8s} {'causal' if causal else 'full':7s} peak {peak / GIB:5.2f} GiB (target 1.0)  "
                f"{seconds:6.1f} s",
                flush=True,
            )
    peak, seconds, needed, record = in_own_process(solve, n // 2, True, limit)
    print(f"solve, causal, n = {n // 2}, limit {limit / GIB:.2f} GiB: peak {peak / GIB:.2f} GiB  {seconds:.0f} s")
    print(f"  plan: {needed}")
    print(
        f"  {record['value']:.4f} in [{record['lower']:.4f}, {record['upper']:.4f}] at {record['confidence']}, "
        f"{record['status']}, {record['steps']} steps, {record['products']} products"
    )


if __name__ == "__main__":
    main()
