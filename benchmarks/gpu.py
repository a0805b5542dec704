"""How fast are the kernels, against the matrix units' own ceiling and against PyTorch's attention in the same run?

A JVP or VJP is counted as five products of n² · width per head (half of that under a causal mask), whatever an
implementation really does; "ceiling" is the share of the bf16 matrix product measured at the start of the run. The
error beside each time is relative to float64, of the same call at n = 1,999 with up to four heads. Times are medians
by CUDA events, warm, on random data. What fails or is not installed says so and leaves the rest standing.

    python benchmarks/gpu.py [--quick] [--sweep] [--only jvp,vjp] [--out benchmarks/results]

`--quick` takes about two minutes. `--sweep` tries tiles and prints the best of each kind, in the form of the table in
`howsmooth/kernels/tiles.py`.
"""

from __future__ import annotations

import argparse
import itertools
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
    """Median by CUDA events, after a warm-up, with the cache cleared before each run as do_bench does."""
    from triton.testing import do_bench

    call()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    once = start.elapsed_time(end)
    return do_bench(call, warmup=min(25, 2 * once), rep=max(budget, 5 * once), return_mode="median")


def attempt(name: str, call, **facts) -> dict | None:
    """One row of the table; a failure is a row with its reason."""
    row = dict(name=name, **facts)
    try:
        row |= call()
    except Exception as reason:  # one case must not lose the others
        row["failed"] = f"{type(reason).__name__}: {str(reason).splitlines()[0][:110] if str(reason) else ''}"
    ROWS.append(row)
    show(row)
    torch.cuda.empty_cache()
    return row


def show(row: dict) -> None:
    if "failed" in row:
        print(f"{row['name']:58s} failed: {row['failed']}", flush=True)
        return
    cells = [f"{row['ms']:10.3f} ms"]
    cells.append(f"{row['tflops']:7.1f} TFLOP/s" if "tflops" in row else " " * 15)
    cells.append(f"{100 * row['share']:5.1f} %" if "share" in row else " " * 7)
    cells.append(f"error {row['error']:.1e}" if "error" in row else "")
    cells.append(row.get("note", ""))
    print(f"{row['name']:58s} " + "  ".join(cells), flush=True)


def relative(actual: torch.Tensor, truth: torch.Tensor) -> float:
    return float((actual.double() - truth.double()).norm() / truth.double().norm())


# --- truth and peers -------------------------------------------------------------------------------------------------

def tensors(h: int, n: int, width: int, dtype, count: int, seed: int = 0) -> list[torch.Tensor]:
    g = torch.Generator("cuda").manual_seed(seed)
    return [torch.randn(1, h, n, width, device="cuda", generator=g).to(dtype) for _ in range(count)]


def plain_attention(q, k, v, scale, causal):
    s = scale * (q @ k.mT)
    if causal:
        hidden = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
        s = s.masked_fill(hidden, -torch.inf)
    return torch.softmax(s, -1) @ v


def truths(q, k, v, dq, dk, dv, g, scale, causal):
    """(o, do, (dq, dk, dv)) in float64."""
    at = [t.double() for t in (q, k, v)]
    f = lambda *x: plain_attention(*x, scale, causal)
    o, do = torch.func.jvp(f, tuple(at), tuple(t.double() for t in (dq, dk, dv)))
    return o, do, torch.func.vjp(f, *at)[1](g.double())


def flash_forward(q, k, v, scale, causal):
    return torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)


def cudnn_forward(q, k, v, scale, causal):
    return torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)


def peer_forward(name, q, k, v, scale, causal):
    return (flash_forward if name == "flash" else cudnn_forward)(q, k, v, scale, causal)[0]


def peer_backward(name, q, k, v, g, scale, causal):
    """A closure over PyTorch's own forward results: its backward alone is timed."""
    n, m = q.shape[2], k.shape[2]
    if name == "flash":
        o, lse, cq, ck, mq, mk, seed, offset, _ = flash_forward(q, k, v, scale, causal)
        return lambda: torch.ops.aten._scaled_dot_product_flash_attention_backward(
            g, q, k, v, o, lse, cq, ck, mq, mk, 0.0, causal, seed, offset, scale=scale)
    o, lse, cq, ck, mq, mk, seed, offset, _ = cudnn_forward(q, k, v, scale, causal)
    return lambda: torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        g, q, k, v, o, lse, seed, offset, None, cq, ck, n, m, 0.0, causal, scale=scale)


# --- the cases -------------------------------------------------------------------------------------------------------

def ceilings(quick: bool) -> dict:
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
    row = dict(name="copy of 4 GiB", ms=ms, bandwidth=2 * a.numel() * 4 / ms * 1e-9,
               note=f"{2 * a.numel() * 4 / ms * 1e-9:.2f} TB/s")
    ROWS.append(row)
    show(row)
    return found


def flops(products: int, h: int, n: int, width: int, causal: bool) -> float:
    return products * 2.0 * n * n * width * h / (2 if causal else 1)


def errors(h, width, dtype, causal, precision=None, ways=()) -> dict:
    """Errors against float64 at n = 1,999 of all that is timed, by name."""
    from howsmooth import kernels

    h, n, scale = min(h, 4), 1999, width**-0.5
    q, k, v, dq, dk, dv, g = tensors(h, n, width, dtype, 7)
    o64, do64, pulled64 = truths(q, k, v, dq, dk, dv, g, scale, causal)
    options = dict(scale=scale, causal=causal, precision=precision)
    o, normaliser = kernels.forward(q, k, v, **options)
    found = {"forward": relative(o, o64)}
    found["jvp"] = relative(kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, **options), do64)
    four = kernels.jvp(q, k, v, o, normaliser, *(torch.stack([t, 2 * t, -t, t]) for t in (dq, dk, dv)), **options)
    found["jvp x4"] = relative(four, torch.stack([do64, 2 * do64, -do64, do64]))
    for way in ("ours", *ways):
        try:
            pulled = kernels.vjp(q, k, v, o, normaliser, g, way=way, **options)
            found[f"vjp {way}"] = max(relative(a, b) for a, b in zip(pulled, pulled64, strict=True))
        except Exception as reason:
            print(f"  error of vjp {way} unknown: {str(reason).splitlines()[0][:120]}")
    for peer in ways:
        try:
            found[f"{peer} forward"] = relative(peer_forward(peer, q, k, v, scale, causal), o64)
            pulled = peer_backward(peer, q, k, v, g, scale, causal)()
            found[f"{peer} backward"] = max(relative(a, b) for a, b in zip(pulled, pulled64, strict=True))
        except Exception as reason:
            print(f"  error of {peer} unknown: {str(reason).splitlines()[0][:120]}")
    return found


def shape_cases(h, n, width, dtype, causal, ceiling, only, precision=None, peers=True) -> None:
    from howsmooth import kernels

    kind = str(dtype).removeprefix("torch.").replace("bfloat16", "bf16") + (f" {precision}" if precision else "")
    label = f"n {n} h {h} width {width} {kind}{' causal' if causal else ''}"
    ways = ("flash", "cudnn") if peers and dtype != torch.float32 else ()
    facts = dict(n=n, h=h, width=width, dtype=kind, causal=causal)
    try:
        wrong = errors(h, width, dtype, causal, precision, ways)
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
            ms = milliseconds(call() if more.get("closure") else call)
            rate = flops(products, h, n, width, causal) / ms * 1e-9
            found = dict(ms=ms, tflops=rate, share=rate / ceiling)
            return found | ({"error": wrong[name]} if name in wrong else {})

        return attempt(f"{name:16s} {label}", body, **facts)

    timed("forward", 2, lambda: kernels.forward(q, k, v, **options))
    one = timed("jvp", 5, lambda: kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, **options))
    several = [torch.stack([t] * 4) for t in (dq, dk, dv)]
    four = timed("jvp x4", 17, lambda: kernels.jvp(q, k, v, o, normaliser, *several, **options))
    if one and four and "ms" in one and "ms" in four:
        print(f"{'':58s} four tangents cost {four['ms'] / one['ms']:.2f} times one")
        four["times_one"] = four["ms"] / one["ms"]
    for way in ("ours", *ways):
        timed(f"vjp {way}", 5, lambda way=way: kernels.vjp(q, k, v, o, normaliser, g, way=way, **options))
    for peer in ways:
        timed(f"{peer} forward", 2, lambda peer=peer: peer_forward(peer, q, k, v, scale, causal))
        timed(f"{peer} backward", 5, lambda peer=peer: peer_backward(peer, q, k, v, g, scale, causal), closure=True)
    if not only or "jvp" in only:
        adjoint(label, q, k, v, o, normaliser, dq, dk, dv, g, options)


def adjoint(label, q, k, v, o, normaliser, dq, dk, dv, g, options) -> None:
    """⟨g, J t⟩ and ⟨Jᵀ g, t⟩ at the full length, where no dense truth fits."""
    from howsmooth import kernels

    def body():
        do = kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, out_dtype=torch.float32, **options)
        pulled = kernels.vjp(q, k, v, o, normaliser, g, way="ours", out_dtype=torch.float32, **options)
        left = float((g.double() * do).sum())
        right = sum(float((a.double() * t).sum()) for a, t in zip(pulled, (dq, dk, dv), strict=True))
        size = float(g.double().norm() * do.double().norm())
        return dict(ms=0.0, error=abs(left - right) / size, note="|⟨g, J t⟩ − ⟨Jᵀ g, t⟩| / ‖g‖‖J t‖")

    attempt(f"{'adjoint':16s} {label}", body)


def math_jvp(h: int, n: int, width: int, causal: bool) -> None:
    """PyTorch's own forward mode: its MATH backend, and the same written out."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from howsmooth import kernels

    q, k, v, dq, dk, dv = tensors(h, n, width, torch.bfloat16, 6)
    scale = width**-0.5
    label = f"n {n} h {h} width {width} bf16{' causal' if causal else ''}"

    def backend():
        with sdpa_kernel(SDPBackend.MATH):
            f = lambda *x: torch.nn.functional.scaled_dot_product_attention(*x, is_causal=causal, scale=scale)
            return torch.func.jvp(f, (q, k, v), (dq, dk, dv))[1]

    def written_out():
        return torch.func.jvp(lambda *x: plain_attention(*x, scale, causal), (q, k, v), (dq, dk, dv))[1]

    o, normaliser = kernels.forward(q, k, v, scale=scale, causal=causal)
    ours = lambda: kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, scale=scale, causal=causal)
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
        attempt(f"{'jvp_flash_attention':16s} {label}", lambda: dict(ms=milliseconds(
            lambda: torch.func.jvp(lambda *x: JVPAttn.fwd_dual(*x, causal=causal), (q, k, v), (dq, dk, dv))[1])))


def short(h: int, width: int, ceiling: float) -> None:
    """n = 1,024: the launch counts, so the time of 20 calls on the host's clock stands beside the device's."""
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
    for name, call in calls.items():
        def body(call=call):
            ms = milliseconds(call, 100)
            began = time.perf_counter()
            for _ in range(20):
                call()
            torch.cuda.synchronize()
            return dict(ms=ms, note=f"{(time.perf_counter() - began) / 20 * 1e3:.3f} ms a call by the host's clock")

        attempt(f"{name:16s} n 1024 h {h} width {width} bf16", body)


# --- tiles -----------------------------------------------------------------------------------------------------------

def candidates(kind: str, width: int, itemsize: int) -> list:
    from howsmooth.kernels.tiles import Tiles

    found = []
    for rows, keys, warps in ((64, 32, 4), (64, 64, 4), (128, 16, 8), (128, 32, 8), (128, 64, 8), (128, 32, 4),
                              (128, 64, 4), (64, 32, 8), (64, 16, 4), (64, 64, 8)):
        choices = itertools.product((2, 3) if keys == 64 else (2, 3, 4), (None, 128) if warps == 8 else (None,),
                                    (2, 4) if kind == "jvps" else (1,))
        for stages, registers, tangents in choices:
            held = rows * width * itemsize * {"forward": 1, "jvps": 1 + tangents}.get(kind, 2)
            walked = keys * width * itemsize * {"jvp": 4, "jvps": 2 + 2 * tangents}.get(kind, 2)
            accumulators = rows * width * {"jvps": tangents, "dkdv": 2}.get(kind, 1) / (32 * warps)
            if held + walked * (stages - 1) > 227 << 10 or accumulators > (80 if registers else 192):
                continue
            found.append(Tiles(rows, keys, warps, stages, tangents, registers))
    return found


def sweep_call(kind: str, tiles, h: int, n: int, width: int, dtype_name: str, causal: bool, precision=None):
    """A closure that launches this kernel (for dq and dkdv: both, the other one with its own tiles)."""
    from howsmooth.kernels import launch
    from howsmooth.kernels.tiles import choose

    dtype = getattr(torch, dtype_name)
    q, k, v, dq, dk, dv, g = tensors(h, n, width, dtype, 7)
    rest = (width**-0.5, causal, None, None, 0, None, precision, None)
    if kind == "forward":
        return lambda: launch.forward(q, k, v, *rest, tiles=tiles)
    o, normaliser = launch.forward(q, k, v, *rest)
    if kind == "jvp":
        return lambda: launch.jvp(q, k, v, o, normaliser, dq, dk, dv, *rest, tiles=tiles)
    if kind == "jvps":
        several = [torch.stack([t] * 4) for t in (dq, dk, dv)]
        return lambda: launch.jvp(q, k, v, o, normaliser, *several, *rest, tiles=tiles)
    own = [choose(name, q.element_size(), width, h, n) for name in ("dq", "dkdv")]
    pair = (tiles, own[1]) if kind == "dq" else (own[0], tiles)
    return lambda: launch.vjp(q, k, v, o, normaliser, g, *rest, "ours", tiles=pair)


def compiles(job) -> str | None:
    """In a process of its own: fills Triton's cache on disk, and says why a choice of tiles does not work. One that
    is fast and wrong does not work either: two heads are compared with float64."""
    try:
        out = sweep_call(*job)()
        torch.cuda.synchronize()
        kind, _, h, n, width, dtype, causal, _ = job
        two = [t[:, :2] for t in tensors(h, n, width, getattr(torch, dtype), 7)]
        o, do, pulled = truths(*two, width**-0.5, causal)
        pairs = {"forward": lambda: [(out[0], o)], "jvp": lambda: [(out, do)], "jvps": lambda: [(t, do) for t in out]}
        pairs = pairs.get(kind, lambda: zip(out, pulled, strict=True))()
        wrong = max(relative(mine[:, :2], truth) for mine, truth in pairs)
        return None if wrong < 1e-2 else f"wrong by {wrong:.1e}"
    except Exception as reason:
        return f"{type(reason).__name__}: {str(reason).splitlines()[0][:100] if str(reason) else ''}"


def sweep(kinds, seconds: float, out: dict) -> None:
    shapes = [(12, 64, "bfloat16", None), (32, 128, "bfloat16", None)]
    n, began = 16384, time.time()
    jobs = [(kind, tiles, h, 2048, width, dtype, causal, precision)
            for h, width, dtype, precision in shapes for kind in kinds for causal in (False, True)
            for tiles in candidates(kind, width, 2)]
    print(f"{len(jobs)} choices; compiling in 14 processes", flush=True)
    with ProcessPoolExecutor(14, mp_context=multiprocessing.get_context("spawn")) as pool:
        reasons = list(pool.map(compiles, jobs, chunksize=4))
    for job, reason in zip(jobs, reasons, strict=True):
        if reason and reason.startswith("wrong"):
            print("  ", job[0], job[1], reason)
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
                call()
                torch.cuda.synchronize()
                times = []
                for _ in range(5):
                    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                    start.record()
                    call()
                    end.record()
                    torch.cuda.synchronize()
                    times.append(start.elapsed_time(end))
                timed.append((statistics.median(times), job[1]))
            except Exception as reason:
                failed.append((*map(str, job), str(reason)[:100]))
            del call
        timed.sort(key=lambda pair: pair[0])
        kind, h, width, dtype, causal, precision = key
        products = {"forward": 2, "jvp": 5, "jvps": 17}.get(kind, 5)
        print(f"{kind} width {width} {dtype}{' causal' if causal else ''}")
        for ms, tiles in timed[:5]:
            rate = flops(products, h, n, width, causal) / ms * 1e-9
            print(f"   {ms:8.3f} ms  {rate:6.1f} TFLOP/s  {tiles}", flush=True)
        out.setdefault("sweep", []).append(dict(kind=kind, h=h, n=n, width=width, dtype=dtype, causal=causal,
                                                times=[[ms, str(tiles)] for ms, tiles in timed]))
    out["sweep_failed"] = failed


def precise_way(way: str) -> dict:
    from howsmooth import kernels
    from howsmooth.kernels import launch

    launch.PRECISE = way
    wrong = errors(4, 64, torch.float32, False, "precise")
    q, k, v, dq, dk, dv = tensors(12, 8192, 64, torch.float32, 6)
    o, normaliser = kernels.forward(q, k, v, scale=0.125)
    ms = milliseconds(lambda: kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, scale=0.125), 100)
    return dict(ms=ms, tflops=flops(5, 12, 8192, 64, False) / ms * 1e-9, error=max(wrong.values()),
                note=str({name: f"{value:.0e}" for name, value in wrong.items()}))


def precise_ways() -> None:
    """Which way to make precise products of float32. Each in a process of its own: an illegal access ends a process."""
    for way in ("tf32x3", "bf16x6", "bf16x3", "ieee"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            attempt(f"jvp n 8192 h 12 width 64 float32 {way}", lambda: pool.submit(precise_way, way).result())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--kinds", default="jvp,jvps,dq,dkdv,forward", help="what to sweep")
    parser.add_argument("--seconds", type=float, default=420, help="when to stop sweeping")
    parser.add_argument("--only", default="", help="words, comma-separated: only cases with one of them in their name")
    parser.add_argument("--commit", help="what is measured, where git does not know")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA GPU, and PyTorch sees none")
    import triton

    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True,
                                cwd=Path(__file__).parent).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    facts = dict(gpu=torch.cuda.get_device_name(), torch=torch.__version__, triton=triton.__version__,
                 cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version(), python=sys.version.split()[0],
                 commit=arguments.commit or commit, when=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    print("  ".join(f"{name} {value}" for name, value in facts.items()))
    only = [word for word in arguments.only.split(",") if word]
    results = dict(facts)
    try:
        ceiling = ceilings(arguments.quick)["bf16"]
        if arguments.sweep:
            sweep([kind for kind in arguments.kinds.split(",") if kind], arguments.seconds, results)
        else:
            run_cases(arguments.quick, ceiling, only, results)
    finally:
        folder = Path(arguments.out)
        folder.mkdir(parents=True, exist_ok=True)
        name = "sweep" if arguments.sweep else "quick" if arguments.quick else "full"
        path = folder / f"gpu-{name}.json"
        path.write_text(json.dumps(results | {"rows": ROWS}, indent=1) + "\n", encoding="utf-8")
        print(f"written to {path.name}")


def run_cases(quick: bool, ceiling: float, only: list[str], results: dict) -> None:
    bf16 = torch.bfloat16
    for h, width in ((12, 64), (32, 128)):
        for causal in (False, True):
            for n in ((16384,) if quick else (16384, 65536)):
                shape_cases(h, n, width, bf16, causal, ceiling, only)
    if quick:
        for causal in (False, True):
            shape_cases(12, 65536, 64, bf16, causal, ceiling, only, peers=False)
    if not only:
        short(12, 64, ceiling)
        math_jvp(12, 16384, 64, False)
        if not quick:
            short(32, 128, ceiling)
            math_jvp(12, 16384, 64, True)
            shape_cases(12, 16384, 64, torch.float16, False, ceiling, only)
        precise_ways()


if __name__ == "__main__":
    main()
