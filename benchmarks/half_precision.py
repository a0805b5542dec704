"""What do products in half precision save? One layer like GPT-2's, certified with products in each dtype, in one run.

    python benchmarks/half_precision.py 131072 [--tol 1e-2] [--weights gpt2_attention.safetensors --layer 6]

A causal layer with 12 heads of width 64, with random weights or those of a file (any safetensors with GPT-2's names
h.L.ln_1, h.L.attn.c_attn, h.L.attn.c_proj), at random tokens after its LayerNorm. For each length the dtypes run one
after the other, each once to compile the kernels and then --repeats times, of which the fastest is shown. Each row has
the number of products in half precision and in float32, the relative width of the certified interval, and how many
times faster it is than float32. All intervals of a length must overlap. Half precision needs a GPU with kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from safetensors import safe_open

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from howsmooth import SelfAttention, local_lipschitz
from howsmooth.attention import AttentionJacobian
from howsmooth.attention.normalisation import Normalisation
from howsmooth.errors import InputError

HEADS, WIDTH = 12, 768
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
ROW = "{:>8} {:>9} {:>9} {:>6} {:>6} {:>8} {:>9} {:>12}  {}"


def random_layer(device: str) -> tuple[SelfAttention, Normalisation]:
    """Return a layer with random weights, whose scores have a standard deviation of about 2, and a LayerNorm."""
    generator = torch.Generator().manual_seed(0)
    wq, wk, wv, wo = (torch.randn(WIDTH, WIDTH, generator=generator).to(device) * WIDTH**-0.5 for _ in range(4))
    norm = Normalisation(torch.ones(WIDTH, device=device), torch.zeros(WIDTH, device=device), 1e-5)
    return SelfAttention(2 * wq, wk, wv, wo, heads=HEADS, causal=True), norm


def stored_layer(path: Path, layer: int, device: str) -> tuple[SelfAttention, Normalisation]:
    """Return a layer of GPT-2 and its LayerNorm; `howsmooth.models.AttentionFile` would need transformers."""
    with safe_open(path, "pt", device=device) as file:

        def get(name: str) -> torch.Tensor:
            return file.get_tensor(f"h.{layer}.{name}").float()

        # Conv1D's weight is (in, out), the transpose of torch.nn.Linear's.
        weights = [part.T.contiguous() for part in (*get("attn.c_attn.weight").chunk(3, 1), get("attn.c_proj.weight"))]
        biases = dict(zip(("bq", "bk", "bv"), get("attn.c_attn.bias").chunk(3), strict=True))
        f = SelfAttention(*weights, **biases, bo=get("attn.c_proj.bias"), heads=HEADS, causal=True)
        return f, Normalisation(get("ln_1.weight"), get("ln_1.bias"), 1e-5)


def count_products() -> dict[torch.dtype | None, int]:
    """Return a counter of products by their dtype, which is updated at each product from now on."""
    count: dict[torch.dtype | None, int] = {}

    def counted(product):
        def call(self, vector):
            count[self.product_dtype] = count.get(self.product_dtype, 0) + 1
            return product(self, vector)

        return call

    AttentionJacobian.matvec = counted(AttentionJacobian.matvec)
    AttentionJacobian.rmatvec = counted(AttentionJacobian.rmatvec)
    return count


def certify(f: SelfAttention, x: torch.Tensor, dtype: torch.dtype, count: dict, arguments) -> dict:
    """Certify the layer at x with products in one dtype, and return the fastest of the repeated solves."""
    rows = []
    for _ in range(1 + arguments.repeats):
        count.clear()
        began = time.perf_counter()
        found = local_lipschitz(f, x, tol=arguments.tol, product_dtype=dtype, seed=arguments.seed, strict=False)
        if x.is_cuda:
            torch.cuda.synchronize()
        record = {
            "seconds": time.perf_counter() - began,
            "n": len(x),
            "product_dtype": str(dtype).removeprefix("torch."),
        }
        record |= {
            name: getattr(found, name) for name in ("value", "lower", "upper", "width", "status", "steps", "notes")
        }
        record |= {"in_half": count.get(dtype, 0) if dtype.itemsize == 2 else 0, "in_float32": count[torch.float32]}
        rows.append(record)
    return min(rows[1:], key=lambda row: row["seconds"])


def main() -> None:
    """Run the benchmark with the arguments of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lengths", type=int, nargs="+", metavar="n", help="numbers of tokens")
    parser.add_argument("--weights", type=Path, help="safetensors with GPT-2's names; random weights by default")
    parser.add_argument("--layer", type=int, default=6, help="of that file")
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file to append the rows to, as lines of JSON")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if arguments.weights:
        f, norm = stored_layer(arguments.weights, arguments.layer, device)
    else:
        f, norm = random_layer(device)
    where = torch.cuda.get_device_name(0) if device == "cuda" else "CPU"
    print(f"{where}, torch {torch.__version__}, certified to {arguments.tol:g}")
    print(ROW.format("n", "products", "seconds", "half", "f32", "speed-up", "width", "value", "status"))
    count = count_products()
    for n in arguments.lengths:
        x = norm(torch.randn(n, f.d, generator=torch.Generator().manual_seed(1)).to(device))
        rows = []
        for dtype in DTYPES:
            try:
                row = certify(f, x, dtype, count, arguments)
            except InputError as reason:
                print(f"{n:>8} {str(dtype).removeprefix('torch.'):>9} left out: {reason}")
                continue
            rows.append(row)
            width = "none" if row["width"] is None else f"{row['width']:.1e}"
            print(
                ROW.format(
                    n,
                    row["product_dtype"],
                    f"{row['seconds']:.3f}",
                    row["in_half"],
                    row["in_float32"],
                    f"{rows[0]['seconds'] / row['seconds']:.2f}",
                    width,
                    f"{row['value']:.6g}",
                    "; ".join([row["status"], *row["notes"]]),
                ),
                flush=True,
            )
            if arguments.out:
                with open(arguments.out, "a", encoding="utf-8") as lines:
                    lines.write(
                        json.dumps({"gpu": where, "torch": torch.__version__, "tol": arguments.tol} | row) + "\n"
                    )
        lower, upper = max(row["lower"] for row in rows), min(row["upper"] or float("inf") for row in rows)
        print(
            f"{n:>8} the intervals overlap: {'yes' if lower <= upper else f'NO, {lower:.6g} > {upper:.6g}'}", flush=True
        )


if __name__ == "__main__":
    main()
