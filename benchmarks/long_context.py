"""How does the constant grow to a million tokens? Certified where the time allows, on one GPU.

    python benchmarks/long_context.py --weights gpt2_attention.safetensors [--layer 6] [--to 20] [--out DIR]

A causal layer with the weights of GPT-2 (any safetensors with h.L.ln_1, h.L.attn.c_attn, h.L.attn.c_proj), given
random tokens normalised by its own LayerNorm, and the adversarial two-point input on the sphere that the LayerNorm can
reach. Up to --certified tokens (2^17) Lanczos runs on precise float32 products and the interval is certified to 1 %.
Beyond, it runs on bf16 products and stops on the residual: the value is attained in precise float32, a certified lower
bound, and there is no upper end. Each record is one line of JSON, written the moment it is known.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from howsmooth import SelfAttention, local_lipschitz  # noqa: E402
from howsmooth.attention import Normalisation  # noqa: E402
from howsmooth.bounds import two_points  # noqa: E402
from howsmooth.bounds.normalisation import radius  # noqa: E402
from howsmooth.models.gpt2_file import AttentionFile  # noqa: E402
from howsmooth.studies.facts import provenance  # noqa: E402
from howsmooth.studies.lines import json_line  # noqa: E402


def tokens(kind: str, f: SelfAttention, norm: Normalisation, n: int, device: str) -> torch.Tensor:
    if kind == "adversarial":
        alone, crowd = (t.float().to(device) for t in two_points(f, n, radius(norm)))
        return torch.cat([alone[None], crowd.expand(n - 1, -1)])
    generator = torch.Generator(device).manual_seed(n)
    return norm.to(device=device)(torch.randn(n, f.d, generator=generator, device=device))


def measure(f: SelfAttention, x: torch.Tensor, certified: int, tol: float, max_steps: int | None):
    if len(x) <= certified:
        # A float64 twin to measure rounding against costs nothing up to here.
        return local_lipschitz(f, x, tol=tol, products=None if len(x) <= 4096 else torch.float32, strict=False)
    return local_lipschitz(f, x, tol=tol, products=torch.bfloat16, stop="residual", max_steps=max_steps, strict=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--layer", type=int, default=6)
    parser.add_argument("--from", dest="first", type=int, default=7, help="2 to this many tokens, and up")
    parser.add_argument("--to", dest="last", type=int, default=20)
    parser.add_argument("--kinds", default="random,adversarial")
    parser.add_argument("--certified", type=int, default=2**17)
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--max-steps", type=int, default=14, help="beyond the certified lengths")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    file = AttentionFile(arguments.weights)
    f, norm = file.attention(arguments.layer), file.normalisation(arguments.layer)
    moved = f.to(device=device)
    facts = {"gpu": torch.cuda.get_device_name(0) if device == "cuda" else None, "torch": torch.__version__,
             "layer": arguments.layer, "R": radius(norm), "sha256": file.source["sha256"], **provenance()}
    with open(arguments.out / "long_context.jsonl", "a", encoding="utf-8") as lines:
        for power in range(arguments.first, arguments.last + 1):
            for kind in arguments.kinds.split(","):
                n = 2**power
                x = tokens(kind, f, norm, n, device)
                if device == "cuda":
                    torch.cuda.reset_peak_memory_stats()
                began = time.perf_counter()
                try:
                    estimate = measure(moved, x, arguments.certified, arguments.tol, arguments.max_steps)
                except (torch.OutOfMemoryError, RuntimeError) as reason:
                    print(f"n = {n:8} {kind:12} failed: {str(reason).splitlines()[0][:120]}", flush=True)
                    torch.cuda.empty_cache()
                    continue
                seconds = time.perf_counter() - began
                peak = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else math.nan
                record = {"kind": kind, "n": n, **estimate.as_record(), "wall": seconds, "peak_gib": peak, **facts}
                lines.write(json_line(record) + "\n")
                lines.flush()
                print(f"n = {n:8} {kind:12} {estimate.value:12.6g}  [{estimate.lower:.6g}, {estimate.upper:.6g}]  "
                      f"{estimate.status:16} {estimate.steps:3} steps  "
                      f"residual {estimate.residual / estimate.value:.1e}  "
                      f"{seconds:7.1f} s  {peak:6.1f} GiB", flush=True)
                del estimate, x


if __name__ == "__main__":
    main()
