"""What does a GPU save for many short sequences? One batched solve against one thread per core on the CPU, in one run.

    python benchmarks/gpu_batches.py [--n 512] [--samples 64] [--weights gpt2_attention.safetensors --layer 6]

A causal layer with 12 heads of width 64, as in `half_precision.py`, at random tokens. The GPU certifies all in one
solve, the CPU `--cpu-samples` of them one after the other, on two threads; its time is multiplied up. Values of both
are compared.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from half_precision import random_layer, stored_layer

from howsmooth import local_lipschitz


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=512, help="tokens of a sample")
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--cpu-samples", type=int, default=4)
    parser.add_argument("--weights", type=Path, help="safetensors with GPT-2's names; random weights by default")
    parser.add_argument("--layer", type=int, default=6, help="of that file")
    parser.add_argument("--tol", type=float, default=1e-3)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("this needs a CUDA GPU, and PyTorch sees none")
    layer = stored_layer(arguments.weights, arguments.layer, "cuda") if arguments.weights else random_layer("cuda")
    f, norm = layer
    generator = torch.Generator().manual_seed(1)
    x = norm(torch.randn(arguments.samples, arguments.n, f.d, generator=generator).cuda())

    def on_gpu():
        began = time.perf_counter()
        found = local_lipschitz(f, x, tol=arguments.tol, strict=False)
        torch.cuda.synchronize()
        return time.perf_counter() - began, found

    on_gpu()  # compiles
    seconds, found = min((on_gpu() for _ in range(3)), key=lambda pair: pair[0])
    torch.set_num_threads(2)
    on_cpu, began = f.converted(device="cpu"), time.perf_counter()
    alone = [local_lipschitz(on_cpu, sample.cpu(), tol=arguments.tol) for sample in x[: arguments.cpu_samples]]
    cpu_seconds = (time.perf_counter() - began) / len(alone) * arguments.samples
    widest = max(estimate.width for estimate in found)
    gap = max(abs(a.value / b.value - 1) for a, b in zip(found, alone, strict=False))
    print(
        f"{torch.cuda.get_device_name(0)}: {arguments.samples} samples of {arguments.n} tokens in {seconds:.2f} s, "
        f"widest interval {widest:.1e}; two threads {cpu_seconds:.1f} s, {cpu_seconds / seconds:.0f} times as long; "
        f"values differ by {gap:.1e}"
    )


if __name__ == "__main__":
    main()
