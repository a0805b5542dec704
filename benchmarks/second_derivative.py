"""JVP followed by a backward pass, and double backward, against PyTorch's MATH backend on a GPU.

    python benchmarks/second_derivative.py [--commit C] [--out benchmarks/results]

Times are averages over calls in a row, by CUDA events, ours and the peer's in one process, with the error of each
against float64 at 1,024 tokens beside them. The overhead of a call is measured at 1,024 tokens, where the kernels take
less time than Python: eager, compiled, and in a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from gpu import machine, memory
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from howsmooth import attend

CASES = ((24, 128, 4096, torch.bfloat16), (12, 64, 16384, torch.bfloat16))
LONGEST = 65536


def math_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute attention by PyTorch's MATH backend, the one that has a forward mode."""
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def draw(heads: int, width: int, n: int, dtype: torch.dtype) -> list[Tensor]:
    """Draw q, k, v, their tangents, and cotangents of the output and of the tangent."""
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(1, heads, n, width, device="cuda", generator=generator).to(dtype) for _ in range(8)]


def jvp_backward(f: Callable, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the six gradients of ⟨g, o⟩ + ⟨h, do⟩."""
    leaves, g, h = [t.detach().requires_grad_() for t in tensors[:6]], *tensors[6:]
    return torch.autograd.grad(torch.func.jvp(f, tuple(leaves[:3]), tuple(leaves[3:])), leaves, (g, h))


def double_backward(f: Callable, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Return the gradients of ⟨gradient of ⟨g, o⟩, tangents⟩ in q, k, v and g."""
    at, tangents = [t.detach().requires_grad_() for t in tensors[:3]], tensors[3:6]
    g = tensors[6].detach().requires_grad_()
    first = torch.autograd.grad(f(*at), at, g, create_graph=True)
    return torch.autograd.grad(first, (*at, g), tangents)


def milliseconds(call: Callable[[], object], repeat: int) -> float:
    """Return the time of a call, averaged over `repeat` calls in a row, the smallest of three such averages."""
    call()
    averages = []
    for _ in range(3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        for _ in range(repeat):
            call()
        end.record()
        torch.cuda.synchronize()
        averages.append(start.elapsed_time(end) / repeat)
    return round(min(averages), 4)


def measure(call: Callable[[], object]) -> dict[str, float]:
    """Return the time of a call in milliseconds, and its peak memory in GiB beyond what is allocated."""
    call()
    return {"ms": milliseconds(call, 3), "gib": round(memory(call), 3)}


def error(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """Return the largest error of the tensors relative to their norms."""
    return max(float((a.double() - b).norm() / b.norm()) for a, b in zip(found, truth, strict=True))


def compare(out: dict) -> None:
    """Time and check both derivatives for each case."""
    for heads, width, n, dtype in CASES:
        for name, derivative in (("jvp, backward", jvp_backward), ("double backward", double_backward)):
            short = draw(heads, width, 1024, dtype)
            truth = derivative(math_attention, [t.double() for t in short])
            tensors = draw(heads, width, n, dtype)
            row: dict = {"what": name, "heads": heads, "width": width, "n": n, "dtype": str(dtype)}
            for who, f in (("howsmooth", attend), ("math", math_attention)):
                try:
                    row[who] = measure(lambda f=f, t=tensors, d=derivative: d(f, t)) | {
                        "error": error(derivative(f, short), truth)
                    }
                except torch.OutOfMemoryError:
                    row[who] = "out of memory"
                torch.cuda.empty_cache()
            print(json.dumps(row), flush=True)
            out.setdefault("second_derivative", []).append(row)


def linear_memory(out: dict) -> None:
    """Show that memory is linear in the number of tokens."""
    for n in (LONGEST // 4, LONGEST // 2, LONGEST):
        tensors = draw(12, 64, n, torch.bfloat16)
        row = {"what": "memory of jvp, backward", "n": n} | measure(lambda t=tensors: jvp_backward(attend, t))
        print(json.dumps(row), flush=True)
        out.setdefault("memory", []).append(row)


def overhead(out: dict) -> None:
    """Time a JVP through the public function where Python costs more than the kernels."""
    tensors = draw(12, 64, 1024, torch.bfloat16)
    at, tangents = tuple(tensors[:3]), tuple(tensors[3:6])

    def jvp(q: Tensor, k: Tensor, v: Tensor, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, Tensor]:
        return torch.func.jvp(attend, (q, k, v), (dq, dk, dv))

    row: dict = {"what": "a call at 1,024 tokens, ms"}
    row["forward eager"] = milliseconds(lambda: attend(*at), 100)
    row["jvp eager"] = milliseconds(lambda: jvp(*at, *tangents), 100)
    row["sdpa forward eager"] = milliseconds(lambda: torch.nn.functional.scaled_dot_product_attention(*at), 100)
    try:
        compiled = torch.compile(jvp, fullgraph=True)
        row["jvp compiled"] = milliseconds(lambda: compiled(*at, *tangents), 100)
        reduced = torch.compile(jvp, fullgraph=True, mode="reduce-overhead")
        row["jvp compiled, CUDA graph"] = milliseconds(lambda: reduced(*at, *tangents), 100)
    except Exception as reason:
        row["jvp compiled"] = f"failed: {str(reason).splitlines()[0][:200]}"
    graph = torch.cuda.CUDAGraph()
    jvp(*at, *tangents)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        jvp(*at, *tangents)
    row["jvp in a CUDA graph"] = milliseconds(graph.replay, 100)
    print(json.dumps(row), flush=True)
    out["overhead"] = row


def main() -> None:
    """Run all comparisons and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commit", help="commit to record if git is not available")
    parser.add_argument("--out", default=str(Path(__file__).parent / "results"))
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this needs a CUDA GPU, and PyTorch sees none")
    results = machine(arguments.commit)
    print("  ".join(f"{name} {value}" for name, value in results.items()))
    overhead(results)
    compare(results)
    linear_memory(results)
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "second-derivative.json"
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
