"""Time and memory of one layer's attention against n, from 2⁷ to 2²⁰: what `benchmarks/gpu.py --lengths` runs.

Forward, JVP and VJP of the kernels, causal, 12 heads of width 64, in bf16 and, up to 2¹⁷, in precise float32; beside
them PyTorch's own JVP, which keeps all n² scores, up to 2¹⁴. Each row is one line of JSON, written at once. GiB is the
peak of a call beyond its inputs: its outputs, and whatever it needs on the way.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch

HEADS, WIDTH = 12, 64
LONGEST = {"bf16": 20, "float32": 17, "torch": 14}  # powers of two
LONG = 1000.0  # milliseconds of a call that is timed once, after a first one
CALLS = 4  # of one kind: to begin with, to be timed, to be weighed, and one to spare


def sweep(path: Path, facts: dict, first: int, last: int, seconds: float) -> None:
    """Shortest first, and no length whose calls would not end in time."""
    ends, took = time.perf_counter() + seconds, {}
    with path.open("a", encoding="utf-8") as lines:
        for power in range(first, last + 1):
            for way, longest in LONGEST.items():
                n, expected = 2**power, 4 * CALLS * took.get(way, 0.0) / 1e3
                if power > longest:
                    continue
                if time.perf_counter() + expected > ends:
                    print(f"n {n} {way} left out: about {expected:.0f} s", flush=True)
                    continue
                took[way] = 0.0
                for row in (of_torch if way == "torch" else of_kernels)(n, way):
                    lines.write(json.dumps(row | facts) + "\n")
                    lines.flush()
                    took[way] += row.get("ms", 0.0)
                    said = row.get("failed") or f"{row['ms']:12.3f} ms  {row['gib']:8.4f} GiB"
                    print(f"n {n:8} {row['dtype']:8} {row['name']:10} {said}", flush=True)
                torch.cuda.empty_cache()


def of_kernels(n: int, way: str):
    from howsmooth import kernels

    dtype = torch.bfloat16 if way == "bf16" else torch.float32
    shared = {"n": n, "h": HEADS, "width": WIDTH, "dtype": way, "causal": True}
    options = {"scale": WIDTH**-0.5, "causal": True}
    q, k, v, *rest = drawn(n, dtype, 4)
    o, normaliser = kernels.forward(q, k, v, **options)
    yield row("forward", lambda: kernels.forward(q, k, v, **options), shared)
    tangents = (*rest, *drawn(n, dtype, 2, seed=1))
    yield row("jvp", lambda: kernels.jvp(q, k, v, o, normaliser, *tangents, **options), shared)
    yield row("vjp", lambda: kernels.vjp(q, k, v, o, normaliser, *rest, **options), shared)


def of_torch(n: int, way: str):
    from torch.nn.attention import SDPBackend, sdpa_kernel

    tensors = drawn(n, torch.bfloat16, 6)

    def call():
        with sdpa_kernel(SDPBackend.MATH):

            def f(*x):
                return torch.nn.functional.scaled_dot_product_attention(*x, is_causal=True)

            return torch.func.jvp(f, tuple(tensors[:3]), tuple(tensors[3:]))[1]

    yield row("torch jvp", call, {"n": n, "h": HEADS, "width": WIDTH, "dtype": "bf16", "causal": True})


def drawn(n: int, dtype: torch.dtype, count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(1, HEADS, n, WIDTH, device="cuda", generator=generator, dtype=dtype) for _ in range(count)]


def row(name: str, call, shared: dict) -> dict:
    from gpu import memory, milliseconds, once_and_again  # the benchmark that this file is a part of

    try:
        ms = once_and_again(call)[1]
        return {"name": name, **shared, "ms": ms if ms > LONG else milliseconds(call, 60.0), "gib": memory(call)}
    except Exception as reason:  # one case must not lose the others
        return {"name": name, **shared, "failed": f"{type(reason).__name__}: {str(reason).splitlines()[0][:110]}"}
