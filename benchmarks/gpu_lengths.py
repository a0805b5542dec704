"""Time and memory of one layer's attention against n, from 2⁷ to 2²⁰, for `benchmarks/gpu.py --lengths`.

Forward, JVP and VJP of the kernels, causal, 12 heads of width 64, in bf16 and, up to 2¹⁷, in precise float32; for
comparison PyTorch's own JVP, which keeps all n² scores, up to 2¹⁴. Each row is one line of JSON, written immediately.
GiB is the peak memory of a call beyond its inputs: outputs and temporaries.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import torch

HEADS, WIDTH = 12, 64
MAX_POWER = {"bf16": 20, "float32": 17, "torch": 14}  # powers of two
SINGLE_CALL = 1000.0  # milliseconds; longer calls are timed once, after a warm-up
CALLS = 4  # of one kind: warm-up, time, memory, and a reserve


def sweep(path: Path, facts: dict, first: int, last: int, seconds: float) -> None:
    """Measure all lengths, shortest first, without those that would exceed the time."""
    ends, took = time.perf_counter() + seconds, {}
    with path.open("a", encoding="utf-8") as lines:
        for power in range(first, last + 1):
            for variant, longest in MAX_POWER.items():
                n, expected = 2**power, 4 * CALLS * took.get(variant, 0.0) / 1e3
                if power > longest:
                    continue
                if time.perf_counter() + expected > ends:
                    print(f"n {n} {variant} left out: about {expected:.0f} s", flush=True)
                    continue
                took[variant] = 0.0
                for row in torch_rows(n) if variant == "torch" else kernel_rows(n, variant):
                    lines.write(json.dumps(row | facts) + "\n")
                    lines.flush()
                    took[variant] += row.get("ms", 0.0)
                    shown = row.get("failed") or f"{row['ms']:12.3f} ms  {row['gib']:8.4f} GiB"
                    print(f"n {n:8} {row['dtype']:8} {row['name']:10} {shown}", flush=True)
                torch.cuda.empty_cache()


def kernel_rows(n: int, variant: str) -> Iterator[dict]:
    """Yield the rows of forward, JVP and VJP by the kernels."""
    from howsmooth import kernels

    dtype = torch.bfloat16 if variant == "bf16" else torch.float32
    shared = {"n": n, "h": HEADS, "width": WIDTH, "dtype": variant, "causal": True}
    options = {"scale": WIDTH**-0.5, "causal": True}
    q, k, v, *rest = drawn(n, dtype, 4)
    o, normaliser = kernels.forward(q, k, v, **options)
    yield row("forward", lambda: kernels.forward(q, k, v, **options), shared)
    tangents = (*rest, *drawn(n, dtype, 2, seed=1))
    yield row("jvp", lambda: kernels.jvp(q, k, v, o, normaliser, *tangents, **options), shared)
    yield row("vjp", lambda: kernels.vjp(q, k, v, o, normaliser, *rest, **options), shared)


def torch_rows(n: int) -> Iterator[dict]:
    """Yield the row of PyTorch's own JVP."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tensors = drawn(n, torch.bfloat16, 6)

    def call():
        with sdpa_kernel(SDPBackend.MATH):

            def f(*x):
                return torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True)

            return torch.func.jvp(f, tuple(tensors[:3]), tuple(tensors[3:]))[1]

    yield row("torch jvp", call, {"n": n, "h": HEADS, "width": WIDTH, "dtype": "bf16", "causal": True})


def drawn(n: int, dtype: torch.dtype, count: int, seed: int = 0) -> list[torch.Tensor]:
    """Draw random tensors (1, HEADS, n, WIDTH)."""
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(1, HEADS, n, WIDTH, device="cuda", generator=generator, dtype=dtype) for _ in range(count)]


def row(name: str, call, shared: dict) -> dict:
    """Return the time and the memory of a call; a failure is a row with its reason."""
    from gpu import memory, milliseconds, time_twice  # gpu.py imports this file

    try:
        ms = time_twice(call)[1]
        return {"name": name, **shared, "ms": ms if ms > SINGLE_CALL else milliseconds(call, 60.0), "gib": memory(call)}
    except Exception as reason:  # the other cases still run
        return {"name": name, **shared, "failed": f"{type(reason).__name__}: {str(reason).splitlines()[0][:110]}"}
