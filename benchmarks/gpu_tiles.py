"""Which tiles are fastest? Times candidates and prints the best of each kind, in the form of `kernels/tiles.py`.

All candidates are compiled first, in 14 processes, and compared with float64 there at n = 2,048: a fast one with wrong
results does not count. float32 is tried with several compositions of its products
(`howsmooth.kernels.launch.FLOAT32_PRODUCTS`).

    python benchmarks/gpu_tiles.py [--kinds jvp,jvps,dq,dkdv,forward] [--dtype bfloat16] [--masks full,causal]
                                   [--seconds 420] [--out folder]

The mask `sparse` is a sparse mask of ten documents packed into one sequence.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu import flops, machine, relative, tensors, time_twice

from howsmooth import SparseMask
from howsmooth.attention import blockwise
from howsmooth.attention.pattern import Pattern

PRECISIONS = {"bfloat16": (None,), "float16": (None,), "float32": ("tf32x3", "bf16x3")}
# Errors up to this are rounding.
ALLOWED = {None: 1e-2, "tf32x3": 1e-5, "bf16x3": 1e-4}
NOT_TRIED = "not tried: an earlier candidate crashed this process"
has_crashed = False


def candidates(kind: str, width: int, itemsize: int) -> list:
    """Return the tiles that fit into shared memory and registers."""
    from howsmooth.kernels.tiles import Tiles

    found = []
    for rows, keys, warps in (
        (64, 32, 4),
        (64, 64, 4),
        (128, 16, 8),
        (128, 32, 8),
        (128, 64, 8),
        (128, 32, 4),
        (128, 64, 4),
        (64, 32, 8),
        (64, 16, 4),
        (64, 64, 8),
    ):
        choices = itertools.product(
            (2, 3) if keys == 64 else (2, 3, 4),
            (None, 128) if warps == 8 else (None,),
            (2, 4) if kind == "jvps" else (1,),
        )
        for stages, registers, tangents in choices:
            stationary = (
                rows
                * width
                * itemsize
                * {"forward": 1, "jvps": 1 + tangents, "hvp queries": 3, "hvp keys": 4}.get(kind, 2)
            )
            streamed = (
                keys
                * width
                * itemsize
                * {"jvp": 4, "jvps": 2 + 2 * tangents, "hvp queries": 4, "hvp keys": 3}.get(kind, 2)
            )
            accumulators = rows * width * {"jvps": tangents, "dkdv": 2, "hvp keys": 2}.get(kind, 1) / (32 * warps)
            if stationary + streamed * (stages - 1) > 227 << 10 or accumulators > (80 if registers else 192):
                continue
            if itemsize == 4 and (registers or stages > 3 or rows * 4 != warps * 64):
                continue
            found.append(Tiles(rows, keys, warps, stages, tangents, registers))
    return found


def documents(n: int) -> SparseMask:
    """Return the mask of ten documents whose ends are not those of blocks."""
    return SparseMask.documents(torch.arange(n, device="cuda") // (n // 10 + 7))


def sweep_call(kind: str, tiles, h: int, n: int, width: int, dtype_name: str, mask: str, precision=None):
    """Return a closure that launches this kernel (for dq and dkdv both, the other one with its own tiles)."""
    from howsmooth.kernels import launch
    from howsmooth.kernels.tiles import choose

    dtype = getattr(torch, dtype_name)
    q, k, v, dq, dk, dv, g = tensors(h, n, width, dtype, 7)
    causal = mask == "causal"
    sparse = documents(n).kernel_arguments() if mask == "sparse" else None
    options = launch.Options(scale=width**-0.5, causal=causal, precision=precision, sparse=sparse)
    if kind == "forward":
        return lambda: launch.forward(q, k, v, options, tiles=tiles)
    o, normaliser = launch.forward(q, k, v, options, implementation="triton")
    if kind == "jvp":
        return lambda: launch.jvp(q, k, v, o, normaliser, dq, dk, dv, options, tiles=tiles, with_means=False)
    if kind == "jvps":
        several = [torch.stack([t] * 4) for t in (dq, dk, dv)]
        return lambda: launch.jvp(q, k, v, o, normaliser, *several, options, tiles=tiles, with_means=False)
    if kind.startswith("hvp"):
        do, mu = launch.jvp(q, k, v, o, normaliser, dq, dk, dv, options)
        own = [choose(name, q.element_size(), width, h, n, causal) for name in ("hvp queries", "hvp keys")]
        pair = (tiles, own[1]) if kind == "hvp queries" else (own[0], tiles)
        return lambda: launch.hvp(q, k, v, o, normaliser, dq, dk, dv, do, mu, g, options, tiles=pair)
    own = [choose(name, q.element_size(), width, h, n, causal) for name in ("dq", "dkdv")]
    pair = (tiles, own[1]) if kind == "dq" else (own[0], tiles)
    return lambda: launch.vjp(q, k, v, o, normaliser, g, options, "triton", tiles=pair)


def failure(job) -> str | None:
    """Compile one candidate, which fills Triton's cache on disk, and return why it does not work, or None.

    Wrong results are a failure, too: two heads are compared with float64.
    """
    global has_crashed
    if has_crashed:
        return NOT_TRIED
    try:
        out = sweep_call(*job)()
        torch.cuda.synchronize()
        kind, _, h, n, width, dtype, mask, precision = job
        two = [t[:, :2] for t in tensors(h, n, width, getattr(torch, dtype), 7)]
        pattern = Pattern(width**-0.5, mask == "causal", mask=documents(n) if mask == "sparse" else None)
        q, k, v, dq, dk, dv, g = (t.double() for t in two)
        o, normaliser = blockwise.forward(q, k, v, pattern)
        linearised = blockwise.Linearisation(q, k, v, o, normaliser, pattern)
        do = linearised.jvp(dq, dk, dv)
        pulled = linearised.hvp(dq, dk, dv, g) if kind.startswith("hvp") else linearised.vjp(g)
        pairs = {
            "forward": lambda: [(out[0], o)],
            "jvp": lambda: [(out[0], do)],
            "jvps": lambda: [(t, do) for t in out[0]],
        }
        pairs = pairs.get(kind, lambda: zip(out, pulled, strict=True))()
        wrong = max(relative(mine[:, :2], truth) for mine, truth in pairs)
        return None if wrong < ALLOWED[precision] else f"wrong by {wrong:.1e}"
    except Exception as reason:
        has_crashed = "CUDA error" in str(reason)
        return f"{type(reason).__name__}: {str(reason).splitlines()[0][:100] if str(reason) else ''}"


def compile_all(jobs: list) -> list[str | None]:
    """Return why each job does not work, or None. Jobs that a crashed process did not try go to new processes."""
    reasons: list[str | None] = [NOT_TRIED] * len(jobs)
    for _ in range(4):
        left = [i for i, reason in enumerate(reasons) if reason == NOT_TRIED]
        if not left:
            break
        with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
            for i, reason in zip(left, pool.map(failure, [jobs[i] for i in left], chunksize=2), strict=True):
                reasons[i] = reason
    return reasons


def sweep(kinds, dtype: str, masks: list[str], seconds: float, out: dict) -> None:
    """Time all candidates that work, and print the five best of each kind."""
    shapes = [(12, 64), (32, 128)] if dtype != "float32" else [(12, 64)]
    n, began = 16384 if dtype != "float32" else 8192, time.time()
    jobs = [
        (kind, tiles, h, 2048, width, dtype, mask, precision)
        for h, width in shapes
        for kind in kinds
        for mask in masks
        for precision in PRECISIONS[dtype]
        for tiles in candidates(kind, width, getattr(torch, dtype).itemsize)
        if mask != "sparse" or (tiles.keys >= 32 and tiles.rows // 16 == tiles.warps and tiles.stages < 4)
    ]
    print(f"{len(jobs)} candidates; compiling in 14 processes", flush=True)
    reasons = compile_all(jobs)
    for job, reason in zip(jobs, reasons, strict=True):
        if reason and (reason.startswith("wrong") or "CUDA" in reason):
            print("  ", job[0], job[1], job[-1], reason)
    print(f"compiled after {time.time() - began:.0f} s, {sum(r is not None for r in reasons)} do not work", flush=True)
    groups: dict[tuple, list] = {}
    failed = [(*map(str, job), reason) for job, reason in zip(jobs, reasons, strict=True) if reason]
    for job, reason in zip(jobs, reasons, strict=True):
        if reason is None:
            groups.setdefault((job[0], *job[2:3], *job[4:]), []).append(job)
    for key, mine in groups.items():
        timed = []
        for job in mine:
            if time.time() - began > seconds:
                print("out of time")
                break
            try:
                call = sweep_call(job[0], job[1], job[2], n, *job[4:])
                timed.append((min(time_twice(call) + time_twice(call)), job[1]))
            except Exception as reason:
                failed.append((*map(str, job), str(reason)[:100]))
            call = None
        timed.sort(key=lambda pair: pair[0])
        kind, h, width, dtype, mask, precision = key
        products = {"forward": 2, "jvp": 5, "jvps": 17, "hvp queries": 15, "hvp keys": 15}.get(kind, 5)
        print(f"{kind} width {width} {dtype}{f' {precision}' if precision else ''} {mask}")
        for ms, tiles in timed[:5]:
            rate = flops(products, h, n, width, mask == "causal") / ms * 1e-9
            print(f"   {ms:8.3f} ms  {rate:6.1f} TFLOP/s  {tiles}", flush=True)
        out.setdefault("sweep", []).append(
            dict(
                kind=kind,
                h=h,
                n=n,
                width=width,
                dtype=dtype,
                mask=mask,
                precision=precision,
                times=[[ms, str(tiles)] for ms, tiles in timed],
            )
        )
    out["sweep_failed"] = failed


def main() -> None:
    """Run the sweep and write its times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="jvp,jvps,dq,dkdv,forward")
    parser.add_argument("--dtype", default="bfloat16", choices=list(PRECISIONS))
    parser.add_argument("--masks", default="full,causal", help="of full, causal and sparse")
    parser.add_argument("--seconds", type=float, default=420, help="when to stop")
    parser.add_argument("--commit", help="commit to record if git is not available")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this needs a CUDA GPU, and PyTorch sees none")
    results = machine(arguments.commit)
    print("  ".join(f"{name} {value}" for name, value in results.items()))
    try:
        kinds, masks = arguments.kinds.split(","), arguments.masks.split(",")
        sweep(kinds, arguments.dtype, masks, arguments.seconds, results)
    finally:
        folder = Path(arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"gpu-tiles-{arguments.dtype}.json"
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        print(f"written to {path.name}")


if __name__ == "__main__":
    main()
