"""How fast are the kernels, compared with a plain matrix product and with PyTorch's attention in the same run?

A JVP or VJP is counted as five products of n² · width per head (half of that under a causal mask) for every
implementation. The percentage is the share of the rate of a bf16 matrix product, measured for as short a time. The
error in the same row is relative to float64, of the same call at n = 1,999 with up to four heads. Times are medians by
CUDA events, warm, on random data. Cases that fail or are not installed are reported, and the others still run.

    python benchmarks/gpu.py [--quick] [--only jvp,vjp] [--out benchmarks/results]
    python benchmarks/gpu.py --lengths [--from 7] [--to 20] [--seconds 560]
    python benchmarks/gpu.py --ceiling

`--quick` takes about two minutes. `--lengths` measures only time and memory against n (`gpu_lengths.py`). `--ceiling`
compares kernels and product cold, in a short burst and sustained, one after the other in one process: a card that is
busy for seconds lowers its clock, so that the same product has several rates. GiB is the peak memory of a call beyond
what was allocated before it. `gpu_tiles.py` searches for tiles.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
PLAIN = dict(causal=False, window=None, softcap=None, offset=0, padding=None, precision=None, out_dtype=None)
ROWS: list[dict] = []


# --- measuring -------------------------------------------------------------------------------------------------------


def milliseconds(call, budget: float = 300.0) -> float:
    """Return the median by CUDA events, after a warm-up, with the cache cleared before each run as do_bench does."""
    from triton.testing import do_bench

    once = time_twice(call)[1]
    if once > budget:  # too long for caches and clocks to matter
        return statistics.median([once, *time_twice(call)])
    return do_bench(call, warmup=min(25, 2 * once), rep=max(budget, 3 * once), return_mode="median")


def time_twice(call) -> list[float]:
    """Return the milliseconds of two calls by CUDA events."""
    found = []
    for _ in range(2):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end))
    return found


def memory(call) -> float:
    """Return the peak memory of a call in GiB, beyond what was allocated before it: outputs and temporaries."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


def attempt(name: str, call, **facts) -> dict | None:
    """Run one case and show its row of the table; a failure is a row with its reason."""
    row = dict(name=name, **facts)
    try:
        row |= call()
    except Exception as reason:  # the other cases still run
        row["failed"] = f"{type(reason).__name__}: {str(reason).splitlines()[0][:110] if str(reason) else ''}"
    ROWS.append(row)
    show(row)
    torch.cuda.empty_cache()
    return row


def show(row: dict) -> None:
    """Print one row of the table."""
    if "failed" in row:
        print(f"{row['name']:58s} failed: {row['failed']}", flush=True)
        return
    cells = [f"{row['ms']:10.3f} ms"]
    cells.append(f"{row['tflops']:7.1f} TFLOP/s" if "tflops" in row else " " * 15)
    cells.append(f"{100 * row['share']:5.1f} %" if "share" in row else " " * 7)
    cells.append(f"error {row['error']:.1e}" if "error" in row else "")
    cells.append(f"{row['gib']:7.3f} GiB" if "gib" in row else "")
    cells.append(row.get("note", ""))
    print(f"{row['name']:58s} " + "  ".join(cells), flush=True)


def relative(actual: torch.Tensor, truth: torch.Tensor) -> float:
    """Return the relative error in the Frobenius norm."""
    return float((actual.double() - truth.double()).norm() / truth.double().norm())


# --- truth and peers -------------------------------------------------------------------------------------------------


def tensors(h: int, n: int, width: int, dtype, count: int, seed: int = 0) -> list[torch.Tensor]:
    """Draw random tensors (1, h, n, width)."""
    g = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(1, h, n, width, device="cuda", generator=g).to(dtype) for _ in range(count)]


def plain_attention(q, k, v, scale, causal):
    """Compute attention with all scores in memory."""
    s = scale * (q @ k.mT)
    if causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
        s = s.masked_fill(hidden, -torch.inf)
    return torch.softmax(s, -1) @ v


def truths(q, k, v, dq, dk, dv, g, scale, causal):
    """Return (o, do, (dq, dk, dv)) in float64."""
    at = [t.double() for t in (q, k, v)]

    def f(*x):
        return plain_attention(*x, scale, causal)

    o, do = torch.func.jvp(f, tuple(at), tuple(t.double() for t in (dq, dk, dv)))
    return o, do, torch.func.vjp(f, *at)[1](g.double())


def second_truths(q, k, v, dq, dk, dv, g, scale, causal):
    """Return the gradients of ⟨g, do⟩ in q, k and v in float64."""
    tangents = tuple(t.double() for t in (dq, dk, dv))

    def tangent(*x):
        return torch.func.jvp(lambda *y: plain_attention(*y, scale, causal), x, tangents)[1]

    return torch.func.vjp(tangent, *(t.double() for t in (q, k, v)))[1](g.double())


def flash_forward(q, k, v, scale, causal):
    """Call PyTorch's FlashAttention."""
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)


def cudnn_forward(q, k, v, scale, causal):
    """Call PyTorch's cuDNN attention."""
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)


def peer_forward(name, q, k, v, scale, causal):
    """Return the output of a fused attention of PyTorch."""
    return (flash_forward if name == "flash" else cudnn_forward)(q, k, v, scale, causal)[0]


def peer_backward(name, q, k, v, g, scale, causal):
    """Return a closure over the forward results of PyTorch, so that only its backward pass is timed."""
    n, m = q.shape[2], k.shape[2]
    if name == "flash":
        o, lse, cq, ck, mq, mk, seed, offset, _ = flash_forward(q, k, v, scale, causal)
        return lambda: torch.ops.aten._scaled_dot_product_flash_attention_backward(
            g, q, k, v, o, lse, cq, ck, mq, mk, 0.0, causal, seed, offset, scale=scale
        )
    o, lse, cq, ck, mq, mk, seed, offset, _ = cudnn_forward(q, k, v, scale, causal)
    return lambda: torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, o, lse, seed, offset, None, cq, ck, n, m, 0.0, causal, scale=scale
    )


# --- the cases -------------------------------------------------------------------------------------------------------


def ceilings(quick: bool) -> dict:
    """Measure the rate of matrix products and of a copy."""
    found = {}
    for name, dtype, tf32 in (("bf16", torch.bfloat16, False), ("tf32", torch.float32, True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        a, b = (torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2))
        ms = milliseconds(lambda a=a, b=b: a @ b)
        found[name] = 2 * 8192**3 / ms * 1e-9
        row = dict(name=f"product 8192³ {name}", ms=ms, tflops=found[name])
        ROWS.append(row)
        show(row)
    torch.backends.cuda.matmul.allow_tf32 = False
    a = torch.randn(1 << 30, device="cuda")
    b = torch.empty_like(a)
    ms = milliseconds(lambda: b.copy_(a))
    row = dict(
        name="copy of 4 GiB",
        ms=ms,
        bandwidth=2 * a.numel() * 4 / ms * 1e-9,
        note=f"{2 * a.numel() * 4 / ms * 1e-9:.2f} TB/s",
    )
    ROWS.append(row)
    show(row)
    return found


def shares_of_the_ceiling() -> None:
    """Compare the kernels with the matrix product in three modes: cold, twenty calls in a row, and for two seconds."""
    from howsmooth import kernels

    a, b = (torch.randn(8192, 8192, device="cuda").to(torch.bfloat16) for _ in range(2))
    rates: dict[str, float] = {}
    for h, n, width in ((12, 65536, 64), (24, 16384, 128)):
        q, k, v, dq, dk, dv, g = tensors(h, n, width, torch.bfloat16, 7)
        options = dict(scale=width**-0.5)
        o, normaliser = kernels.forward(q, k, v, **options)
        do, mu = kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, **options)
        at = (q, k, v, o, normaliser)
        cases = {
            "product 8192³": (2 * 8192**3, lambda a=a, b=b: a @ b),
            "forward": (flops(2, h, n, width, False), lambda at=at, o=options: kernels.forward(*at[:3], **o)),
            "forward, Triton": (
                flops(2, h, n, width, False),
                lambda at=at, o=options: kernels.forward(*at[:3], implementation="triton", **o),
            ),
            "jvp": (
                flops(5, h, n, width, False),
                lambda at=at, t=(dq, dk, dv), o=options: kernels.jvp(*at, *t, with_means=False, **o),
            ),
            "vjp": (flops(5, h, n, width, False), lambda at=at, g=g, o=options: kernels.vjp(*at, g, **o)),
            "hvp": (
                flops(15, h, n, width, False),
                lambda at=at, t=(dq, dk, dv, do, mu, g), o=options: kernels.hvp(*at, *t, **o),
            ),
        }
        for mode in ("cold", "short", "sustained"):
            for name, (operations, call) in cases.items():
                call()
                torch.cuda.synchronize()
                once = time_twice(call)[1]
                repeat = {"cold": 1, "short": min(20, max(1, int(300 / once))), "sustained": max(1, int(2000 / once))}
                if mode == "cold":
                    time.sleep(1.5)
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
                for _ in range(repeat[mode]):
                    call()
                end.record()
                torch.cuda.synchronize()
                ms = start.elapsed_time(end) / repeat[mode]
                rate = operations / ms * 1e-9
                rates[name] = rate
                label = name if name.startswith("product") else f"{name} n {n} h {h} width {width}"
                row = dict(name=f"{mode:9s} {label}", ms=ms, tflops=rate, share=rate / rates["product 8192³"])
                ROWS.append(row)
                show(row)


def flops(products: int, h: int, n: int, width: int, causal: bool) -> float:
    """Return the operations of so many products of n² · width per head."""
    return products * 2.0 * n * n * width * h / (2 if causal else 1)


def errors(h, width, dtype, causal, precision=None, peers=()) -> dict:
    """Return the errors against float64 of all timed calls, by name.

    They are measured at n = 1,999; in float32 at 2,048, since its kernels take long to compile and the timed ones are
    used.
    """
    from howsmooth import kernels

    h, n, scale = min(h, 4), 2048 if dtype == torch.float32 else 1999, width**-0.5
    q, k, v, dq, dk, dv, g = tensors(h, n, width, dtype, 7)
    o64, do64, pulled64 = truths(q, k, v, dq, dk, dv, g, scale, causal)
    options = dict(scale=scale, causal=causal, precision=precision)
    o, normaliser = kernels.forward(q, k, v, **options)
    found = {"forward": relative(o, o64)}
    found["jvp"] = relative(kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, **options)[0], do64)
    four = kernels.jvp(q, k, v, o, normaliser, *(torch.stack([t, 2 * t, -t, t]) for t in (dq, dk, dv)), **options)[0]
    found["jvp x4"] = relative(four, torch.stack([do64, 2 * do64, -do64, do64]))
    for name in (None, "triton", *peers):
        try:
            pulled = kernels.vjp(q, k, v, o, normaliser, g, implementation=name, **options)
            found[f"vjp {name}" if name else "vjp"] = max(relative(a, b) for a, b in zip(pulled, pulled64, strict=True))
        except Exception as reason:
            print(f"  error of vjp {name} unknown: {str(reason).splitlines()[0][:120]}")
    for peer in peers:
        try:
            found[f"{peer} forward"] = relative(peer_forward(peer, q, k, v, scale, causal), o64)
            pulled = peer_backward(peer, q, k, v, g, scale, causal)()
            found[f"{peer} backward"] = max(relative(a, b) for a, b in zip(pulled, pulled64, strict=True))
        except Exception as reason:
            print(f"  error of {peer} unknown: {str(reason).splitlines()[0][:120]}")
    return found


def shape_cases(h, n, width, dtype, causal, ceiling, only, precision=None, with_peers=True, budget=300.0) -> None:
    """Time forward, JVP and VJP at one shape, with the fused attention of PyTorch if it applies."""
    from howsmooth import kernels

    kind = str(dtype).removeprefix("torch.").replace("bfloat16", "bf16") + (f" {precision}" if precision else "")
    label = f"n {n} h {h} width {width} {kind}{' causal' if causal else ''}"
    peers = ("flash", "cudnn") if with_peers and dtype != torch.float32 else ()
    facts = dict(n=n, h=h, width=width, dtype=kind, causal=causal)
    try:
        wrong = errors(h, width, dtype, causal, precision, peers)
    except Exception as reason:
        print(f"  errors unknown for {label}: {type(reason).__name__}: {str(reason)[:300]}", flush=True)
        wrong = {}
    try:
        scale = width**-0.5
        options = dict(scale=scale, causal=causal, precision=precision)
        q, k, v, dq, dk, dv, g = tensors(h, n, width, dtype, 7)
        o, normaliser = kernels.forward(q, k, v, **options)
    except Exception as reason:
        print(f"{label}: {type(reason).__name__}: {str(reason)[:300]}", flush=True)
        return

    def timed(name, products, call, **more):
        if only and not any(word in name for word in only):
            return None

        def body():
            run = call() if more.get("closure") else call
            ms = milliseconds(run, budget)
            rate = flops(products, h, n, width, causal) / ms * 1e-9
            found = dict(ms=ms, tflops=rate, share=rate / ceiling, gib=memory(run))
            return found | ({"error": wrong[name]} if name in wrong else {})

        return attempt(f"{name:16s} {label}", body, **facts)

    timed("forward", 2, lambda: kernels.forward(q, k, v, **options))
    one = timed("jvp", 5, lambda: kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, **options))
    several = [torch.stack([t] * 4) for t in (dq, dk, dv)] if not only or "jvp" in only else None
    four = timed("jvp x4", 17, lambda: kernels.jvp(q, k, v, o, normaliser, *several, **options))
    if one and four and "ms" in one and "ms" in four:
        print(f"{'':58s} four tangents cost {four['ms'] / one['ms']:.2f} times one")
        four["times_one"] = four["ms"] / one["ms"]
    timed("vjp", 5, lambda: kernels.vjp(q, k, v, o, normaliser, g, **options))  # the default implementation
    for name in ("triton", *peers) if peers else ():
        timed(
            f"vjp {name}", 5, lambda name=name: kernels.vjp(q, k, v, o, normaliser, g, implementation=name, **options)
        )
    for peer in peers:
        timed(f"{peer} forward", 2, lambda peer=peer: peer_forward(peer, q, k, v, scale, causal))
        timed(f"{peer} backward", 5, lambda peer=peer: peer_backward(peer, q, k, v, g, scale, causal), closure=True)
    if not only or "jvp" in only:
        adjoint(label, q, k, v, o, normaliser, dq, dk, dv, g, options)


def adjoint(label, q, k, v, o, normaliser, dq, dk, dv, g, options) -> None:
    """Compare ⟨g, J t⟩ with ⟨Jᵀ g, t⟩ at the full length, where no dense reference fits into memory."""
    from howsmooth import kernels

    def body():
        do = kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, out_dtype=torch.float32, **options)[0]
        pulled = kernels.vjp(q, k, v, o, normaliser, g, implementation="triton", out_dtype=torch.float32, **options)
        left = float((g.double() * do).sum())
        right = sum(float((a.double() * t).sum()) for a, t in zip(pulled, (dq, dk, dv), strict=True))
        size = float(g.double().norm() * do.double().norm())
        return dict(ms=0.0, error=abs(left - right) / size, note="|⟨g, J t⟩ − ⟨Jᵀ g, t⟩| / ‖g‖‖J t‖")

    attempt(f"{'adjoint':16s} {label}", body)


def normal_product(h: int, n: int, width: int, dtype, causal: bool, precision=None) -> None:
    """Time JᵀJ applied to one tangent, which is the cost of a power iteration or a Lanczos step."""
    from howsmooth import kernels

    kind = str(dtype).removeprefix("torch.").replace("bfloat16", "bf16") + (f" {precision}" if precision else "")
    options = dict(scale=width**-0.5, causal=causal, precision=precision)

    def body():
        q, k, v, dq, dk, dv = tensors(h, n, width, dtype, 6)
        o, normaliser = kernels.forward(q, k, v, **options)

        def step():
            do = kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, **options)[0]
            return kernels.vjp(q, k, v, o, normaliser, do, **options)

        ms = min(time_twice(step))
        return dict(ms=ms, tflops=flops(10, h, n, width, causal) / ms * 1e-9, gib=memory(step))

    attempt(f"{'JᵀJ':16s} n {n} h {h} width {width} {kind}{' causal' if causal else ''}", body)


def split_products(h: int, n: int, width: int) -> None:
    """Time the derivative in float32 by products of float16 and by those of tf32, with errors at n = 2,048."""
    from howsmooth import kernels
    from howsmooth.attention import blockwise
    from howsmooth.attention.pattern import Pattern
    from howsmooth.kernels import float32, launch

    scale = width**-0.5

    def calls(n: int, h: int):
        at, g = tensors(h, n, width, torch.float32, 6), tensors(h, n, width, torch.float32, 1, seed=1)[0]
        o, normaliser = kernels.forward(*at[:3], scale=scale, causal=True)
        split = float32.SplitDerivative(*at[:3], o, normaliser, launch.Options(scale, causal=True))
        linearised = (*at[:3], o, normaliser)
        options = dict(scale=scale, causal=True)
        return (at, g), {
            "JVP, float16": lambda: [split.jvp(*at[3:])],
            "JVP, tf32": lambda: [kernels.jvp(*linearised, *at[3:], with_means=False, **options)[0]],
            "VJP, float16": lambda: split.vjp(g),
            "VJP, tf32": lambda: kernels.vjp(*linearised, g, **options),
        }

    (at, g), small = calls(2048, 2)
    at, pattern = [t.double() for t in at], Pattern(scale, causal=True)
    truth = blockwise.Linearisation(*at[:3], *blockwise.forward(*at[:3], pattern), pattern)
    expected = {"J": [truth.jvp(*at[3:])], "V": truth.vjp(g.double())}
    for name, call in calls(n, h)[1].items():

        def body(name=name, call=call):
            error = max(relative(a, b) for a, b in zip(small[name](), expected[name[0]], strict=True))
            ms = min(time_twice(call))
            return dict(ms=ms, tflops=flops(5, h, n, width, True) / ms * 1e-9, error=error, gib=memory(call))

        attempt(f"{name:16s} n {n} h {h} width {width} float32 causal", body)


def math_jvp(h: int, n: int, width: int, causal: bool) -> None:
    """Time PyTorch's own forward mode: its MATH backend, and the same formula written out."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from howsmooth import kernels

    q, k, v, dq, dk, dv = tensors(h, n, width, torch.bfloat16, 6)
    scale = width**-0.5
    label = f"n {n} h {h} width {width} bf16{' causal' if causal else ''}"

    def backend():
        with sdpa_kernel(SDPBackend.MATH):

            def f(*x):
                return torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal, scale=scale)

            return torch.func.jvp(f, (q, k, v), (dq, dk, dv))[1]

    def written_out():
        return torch.func.jvp(lambda *x: plain_attention(*x, scale, causal), (q, k, v), (dq, dk, dv))[1]

    o, normaliser = kernels.forward(q, k, v, scale=scale, causal=causal)

    def ours():
        return kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, scale=scale, causal=causal)[0]

    mine = attempt(f"{'jvp':16s} {label}", lambda: dict(ms=milliseconds(ours)))
    for name, call in (("MATH jvp", backend), ("jvp written out", written_out)):
        row = attempt(f"{name:16s} {label}", lambda call=call: dict(ms=milliseconds(call)))
        if row and "ms" in row and mine and "ms" in mine:
            print(f"{'':58s} {row['ms'] / mine['ms']:.1f} times ours")
            row["times_ours"] = row["ms"] / mine["ms"]
    try:
        import jvp_flash_attention  # noqa: F401
        from jvp_flash_attention.jvp_attention import JVPAttn
    except ImportError:
        print("jvp_flash_attention is not installed")
    else:
        attempt(
            f"{'jvp_flash_attention':16s} {label}",
            lambda: dict(
                ms=milliseconds(
                    lambda: torch.func.jvp(lambda *x: JVPAttn.fwd_dual(*x, causal=causal), (q, k, v), (dq, dk, dv))[1]
                )
            ),
        )


def short(h: int, width: int) -> None:
    """Time n = 1,024, where launches matter: the host's time of 20 calls in addition to the device's."""
    from howsmooth import kernels

    q, k, v, dq, dk, dv, g = tensors(h, 1024, width, torch.bfloat16, 7)
    scale = width**-0.5
    o, normaliser = kernels.forward(q, k, v, scale=scale)
    calls = {
        "jvp": lambda: kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, scale=scale),
        "forward": lambda: kernels.forward(q, k, v, scale=scale),
        "vjp": lambda: kernels.vjp(q, k, v, o, normaliser, g, scale=scale),
        "flash forward": lambda: flash_forward(q, k, v, scale, False),
        "cudnn forward": lambda: cudnn_forward(q, k, v, scale, False),
    }
    found = {}
    for name, call in calls.items():

        def body(call=call):
            ms = milliseconds(call, 100)
            began = time.perf_counter()
            for _ in range(20):
                call()
            torch.cuda.synchronize()
            host = (time.perf_counter() - began) / 20 * 1e3
            return dict(ms=ms, host_ms=host, graph_ms=graph_milliseconds(call))

        found[name] = row = attempt(f"{name:16s} n 1024 h {h} width {width} bf16", body)
        if "ms" in row:
            print(f"{'':58s} {row['host_ms']:.3f} ms per call by the host's clock, {row['graph_ms']:.4f} ms in a graph")
    one, other = found["jvp"], found["flash forward"]
    if "ms" in one and "ms" in other:
        print(
            f"{'':58s} jvp / flash forward: "
            + ", ".join(
                f"{one[key] / other[key]:.2f} by {name}"
                for key, name in (("ms", "events"), ("host_ms", "host"), ("graph_ms", "graph"))
            )
        )


def graph_milliseconds(call, copies: int = 20) -> float:
    """Return the device's time per call, without the host's, by replaying a graph of 20 calls."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(copies):
            call()
    return statistics.median(time_twice(graph.replay)[1] for _ in range(5)) / copies


def precise_cases(lengths: tuple[int, ...], precisions: tuple[str, ...], ceiling: float) -> None:
    """Time float32 with each composition of its products, in a process each: an illegal access ends a process.

    The share is of the bf16 rate: three products of tf32, at half the rate of bf16, can reach a sixth of it.
    """
    for precision in precisions:
        try:
            with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
                ROWS.extend(pool.submit(precise_case, lengths, precision, ceiling).result())
        except Exception as reason:  # the other cases still run
            ROWS.append(dict(name=f"float32 {precision}", failed=f"{type(reason).__name__}: {str(reason)[:110]}"))
            show(ROWS[-1])


def precise_case(lengths: tuple[int, ...], precision: str, ceiling: float) -> list[dict]:
    """Time float32 with one composition of its products."""
    for n in lengths:
        for causal in (False, True):
            shape_cases(
                12, n, 64, torch.float32, causal, ceiling, [], precision=precision, with_peers=False, budget=60.0
            )
            normal_product(12, n, 64, torch.float32, causal, precision)
    return ROWS


def machine(commit: str | None) -> dict:
    """Return the GPU, the versions, the commit and the time."""
    import triton

    try:
        commit = (
            commit
            or subprocess.run(
                ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
            ).stdout.strip()
        )
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    return dict(
        gpu=torch.cuda.get_device_name(),
        torch=torch.__version__,
        triton=triton.__version__,
        cuda=torch.version.cuda,
        cudnn=torch.backends.cudnn.version(),
        python=sys.version.split()[0],
        commit=commit,
        when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", help="comma-separated words: only cases with one of them in their name")
    parser.add_argument("--lengths", action="store_true", help="only time and memory against n")
    parser.add_argument("--ceiling", action="store_true", help="only the rates of kernels and of a matrix product")
    parser.add_argument("--from", dest="first", type=int, default=7, help="with --lengths: start at 2 to this power")
    parser.add_argument("--to", dest="last", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=560.0, help="with --lengths: limit of the total time")
    parser.add_argument("--commit", help="commit to record if git is not available")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA GPU, and PyTorch sees none")
    facts = machine(arguments.commit)
    print("  ".join(f"{name} {value}" for name, value in facts.items()))
    if arguments.lengths:
        sys.modules.setdefault("gpu", sys.modules[__name__])
        from gpu_lengths import sweep

        Path(arguments.out).mkdir(parents=True, exist_ok=True)
        sweep(Path(arguments.out) / "gpu-lengths.jsonl", facts, arguments.first, arguments.last, arguments.seconds)
        return
    only = [word for word in arguments.only.split(",") if word]
    results = dict(facts)
    name = "ceiling" if arguments.ceiling else "quick" if arguments.quick else "full"
    try:
        if arguments.ceiling:
            shares_of_the_ceiling()
        else:
            run_cases(arguments.quick, ceilings(arguments.quick)["bf16"], only)
    finally:
        folder = Path(arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"gpu-{name}.json"
        path.write_text(json.dumps(results | {"rows": ROWS}, indent=1) + "\n", encoding="utf-8")
        print(f"written to {path.name}")


def run_cases(quick: bool, ceiling: float, only: list[str]) -> None:
    """Run all cases, or those that `only` selects."""
    bf16, f32, budget = torch.bfloat16, torch.float32, 60.0 if quick else 300.0
    for h, width in ((12, 64), (32, 128)):
        for causal in (False, True):
            shape_cases(h, 16384, width, bf16, causal, ceiling, only, budget=budget)
            shape_cases(h, 65536, width, bf16, causal, ceiling, only, budget=budget, with_peers=not quick)
    if only:
        return
    short(12, 64)
    for causal in (False, True):
        normal_product(12, 131072, 64, bf16, causal)
    math_jvp(12, 16384, 64, False)
    precise_cases((16384,) if quick else (16384, 65536), ("tf32x3",), ceiling)
    split_products(12, 65536, 64)
    normal_product(12, 131072, 64, f32, True)
    if not quick:
        short(32, 128)
        math_jvp(12, 16384, 64, True)
        shape_cases(12, 16384, 64, torch.float16, False, ceiling, only)
        normal_product(12, 131072, 64, f32, False)


if __name__ == "__main__":
    main()
