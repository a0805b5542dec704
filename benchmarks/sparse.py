"""How much time does a sparse mask save? Forward, JVP, VJP and second derivative, against the same without a mask.

Documents of equal length packed into one sequence, and scattered blocks, both at about 10 % density. Errors are
relative to float64 at n = 2,048 with the same density. Times are medians by CUDA events, all from one run.

    python benchmarks/sparse.py [--n 16384] [--width 64] [--heads 12]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from gpu import milliseconds, relative, tensors

from howsmooth import SparseMask, kernels
from howsmooth.attention import blockwise
from howsmooth.attention.pattern import Pattern


def masks(n: int) -> dict[str, SparseMask]:
    """Return masks of about 10 % density."""
    scattered = torch.rand(n // 128, n // 128, generator=torch.Generator().manual_seed(0)) < 0.1
    scattered.fill_diagonal_(True)
    scattered = scattered.cuda()
    documents = torch.arange(n, device="cuda") // (n // 10 // 128 * 128)
    return {
        "ten documents": SparseMask.documents(documents),
        "scattered blocks": SparseMask.from_function(lambda i, j: scattered[i // 128, j // 128], n, device="cuda"),
        "documents, unaligned": SparseMask.documents(torch.arange(n, device="cuda") // (n // 10 + 7)),
    }


def calls(q, k, v, dq, dk, dv, g, options):
    """Return the four computations as closures."""
    o, normaliser = kernels.forward(q, k, v, implementation="triton", **options)
    do, mu = kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, **options)
    return {
        "forward": lambda: kernels.forward(q, k, v, implementation="triton", **options)[:1],
        "jvp": lambda: kernels.jvp(q, k, v, o, normaliser, dq, dk, dv, with_means=False, **options)[:1],
        "vjp": lambda: kernels.vjp(q, k, v, o, normaliser, g, implementation="triton", **options),
        "hvp": lambda: kernels.hvp(q, k, v, o, normaliser, dq, dk, dv, do, mu, g, **options),
    }


def errors(heads: int, width: int) -> dict[str, dict[str, float]]:
    """Return the errors against float64 at n = 2,048, by mask and computation."""
    at = tensors(min(heads, 2), 2048, width, torch.bfloat16, 7)
    q, k, v, dq, dk, dv, g = (t.double() for t in at)
    found = {}
    for name, mask in masks(2048).items():
        pattern = Pattern(width**-0.5, mask=mask)
        o, normaliser = blockwise.forward(q, k, v, pattern)
        truth = blockwise.Linearisation(q, k, v, o, normaliser, pattern)
        expected = {
            "forward": (o,),
            "jvp": (truth.jvp(dq, dk, dv),),
            "vjp": truth.vjp(g),
            "hvp": truth.hvp(dq, dk, dv, g),
        }
        mine = calls(*at, dict(scale=width**-0.5, sparse=mask.kernel_arguments()))
        found[name] = {
            what: max(relative(a, b) for a, b in zip(mine[what](), wanted, strict=True))
            for what, wanted in expected.items()
        }
    return found


def main() -> None:
    """Print one row for each mask and computation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=16384)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=12)
    arguments = parser.parse_args()
    wrong = errors(arguments.heads, arguments.width)
    at = tensors(arguments.heads, arguments.n, arguments.width, torch.bfloat16, 7)
    scale = arguments.width**-0.5
    dense = {name: milliseconds(call, 100) for name, call in calls(*at, dict(scale=scale)).items()}
    print(f"n {arguments.n}, {arguments.heads} heads of width {arguments.width}, bf16")
    for name, mask in masks(arguments.n).items():
        for what, call in calls(*at, dict(scale=scale, sparse=mask.kernel_arguments())).items():
            ms = milliseconds(call, 100)
            print(
                f"{name:22s} {mask.density:6.1%} of the blocks  {what:8s} {ms:8.3f} ms  dense {dense[what]:8.3f} ms  "
                f"{dense[what] / ms:5.1f} times faster  error {wrong[name][what]:.1e}",
                flush=True,
            )


if __name__ == "__main__":
    main()
