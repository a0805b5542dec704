r"""How does the constant grow up to a million tokens? Certified as far as time allows, on one GPU.

    python benchmarks/long_context.py --weights gpt2_attention.safetensors [--layer 6] [--to 20] [--seconds 560]
    python benchmarks/long_context.py --activations smollm2.safetensors
    python benchmarks/long_context.py --weights gpt2_attention.safetensors --kinds normalised --from 20 \
        --certified 1048576 --tol 0.02 --products products
    python benchmarks/long_context.py extract smollm2 --layer 15 --text alice --n 8192 --file smollm2.safetensors

A causal layer with the weights of GPT-2 (any safetensors with h.L.ln_1, h.L.attn.c_attn, h.L.attn.c_proj), given

    normalised   random tokens after its own LayerNorm; a shorter sample is a prefix of a longer one
    adversarial  the two-point input on the sphere that the LayerNorm can reach, the best pair of each length
    text         with --activations: a layer's weights and its input for a text, extracted on a machine that has the
                 model; the model must be causal, so that a shorter text is a prefix of a longer one

Up to --certified tokens (2^17) Lanczos runs on precise float32 products and the interval is certified to 1 %. Beyond,
random tokens have bf16 products and stop on the residual: the value is attained in precise float32, a certified lower
bound, and there is no upper end. Adversarial inputs, whose scores are too large for bf16, continue in float32 while
--seconds allow it, and are then evaluated on the direction from the closed form: a lower bound, and its residual.
Shorter lengths come first; a length that would exceed the time is skipped with a message. Each record is one line of
JSON, written immediately, with the width that was reached. With --products, every product of a certified solve is saved
in that folder: run the same command again after it was killed, and the solve goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from howsmooth import SelfAttention, local_lipschitz
from howsmooth.bounds.form import LayerForm
from howsmooth.bounds.normalisation import radius
from howsmooth.bounds.two_points import RepeatedToken, two_points
from howsmooth.models import AttentionFile
from howsmooth.models.memory import peak_memory, reset_peak_memory, solver_memory_limit
from howsmooth.questions.inputs import NormalisedInputs
from howsmooth.records import json_line
from howsmooth.records.provenance import provenance
from howsmooth.spectral import saved_products
from howsmooth.spectral.rounding import allowance

MAX_REFERENCE_TOKENS = 4096  # tokens up to which rounding is measured against float64
WEIGHTS = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
CLOSED_FORM_COST = 0.3  # time on the direction from the closed form, relative to a certified solve


class RandomTokens:
    """GPT-2's layer at random normalised tokens."""

    kind = "normalised"

    def __init__(self, file: AttentionFile, layer: int):
        """Read the layer."""
        self.file, self.layer, self.f = file, layer, file.attention(layer)
        self.facts = {
            "model": "gpt2",
            "layer": layer,
            "sha256": file.source["sha256"],
            **NormalisedInputs(file).run_fields,
            "R": radius(file.normalisation(layer).converted(device="cpu")),
        }
        self.longest = None

    def tokens(self, n: int) -> torch.Tensor:
        """Return n random normalised tokens (n, d)."""
        return NormalisedInputs(self.file).draw(n, 0, self.layer)

    def measured(self, x: torch.Tensor, certified: bool, arguments) -> dict:
        """Return the record of a solve."""
        return estimated(self.f, x, certified, arguments, self.kind)


class Adversarial(RandomTokens):
    """The same layer at two points."""

    kind = "adversarial"

    def __init__(self, file: AttentionFile, layer: int):
        """Read the layer and its bilinear form."""
        super().__init__(file, layer)
        self.facts = {key: self.facts[key] for key in ("model", "layer", "sha256", "R")}
        self.form = LayerForm(self.f.converted(device="cpu"))
        self.pairs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def pair(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the two points for n tokens."""
        if n not in self.pairs:
            self.pairs[n] = two_points(self.form, n, self.facts["R"])
        return self.pairs[n]

    def tokens(self, n: int) -> torch.Tensor:
        """Return one token at the first point and n − 1 at the second."""
        single, repeated = (t.float().to(self.f.device) for t in self.pair(n))
        return torch.cat([single[None], repeated.expand(n - 1, -1)])

    def measured(self, x: torch.Tensor, certified: bool, arguments) -> dict:
        """Return the record of a solve, or of the direction from the closed form."""
        n = len(x)
        with torch.no_grad():
            y, z = (t[None] for t in self.pair(n))
            (closed,), (direction,) = RepeatedToken(self.form, n).derivative(y, z).norm()
        record = {"closed_form": float(closed)}
        if certified:
            return estimated(self.f, x, True, arguments, self.kind) | record
        operator = self.f.jacobian(x, product_dtype=torch.float32)
        v = torch.zeros_like(x)
        v[0] = direction.to(v)
        v = (v / v.norm()).flatten()
        u = operator.matvec(v)
        value = float(u.double().norm())
        defect = operator.rmatvec(u / value) - value * v
        return {
            "value": value,
            "lower": value * (1 - allowance(operator)),
            "upper": None,
            "width": None,
            "confidence": 1.0,
            "residual": float(defect.double().norm()),
            "steps": 0,
            "products": 2,
            "status": "lower bound only",
            "dtype": "float32",
            "product_dtype": "float32",
            **record,
        }


class Text(RandomTokens):
    """A layer and its input for a text, from a file."""

    kind = "text"

    def __init__(self, path: Path, device: str):
        """Read the file that `extract` wrote."""
        with safe_open(path, "pt", device=device) as file:
            self.facts = json.loads(file.metadata()["facts"])
            found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  safe_open cannot be iterated
        rotary = (found["cos"], found["sin"]) if "cos" in found else None
        self.f = SelfAttention(**{name: found.get(name) for name in WEIGHTS}, rotary=rotary, **self.facts["traits"])
        self.x, self.longest = found["x"], len(found["x"])

    def tokens(self, n: int) -> torch.Tensor:
        """Return the first n tokens."""
        return self.x[:n]


def estimated(f: SelfAttention, x: torch.Tensor, certified: bool, arguments, kind: str) -> dict:
    """By the solver: certified, or a lower end alone."""
    limit = solver_memory_limit(x.device, None)
    if certified:
        # For short inputs a float64 reference, which measures rounding, costs little.
        product_dtype = torch.float32 if x.is_cuda and len(x) > MAX_REFERENCE_TOKENS else None
        folder = arguments.products
        began = time.perf_counter()

        def report(step: int, lower: torch.Tensor, upper: torch.Tensor) -> None:
            print(f"  step {step}: {lower:.6g} to {upper:.6g} after {time.perf_counter() - began:.0f} s", flush=True)

        with nullcontext() if folder is None else saved_products(folder / f"{kind}-{len(x)}"):
            found = local_lipschitz(
                f,
                x,
                tol=arguments.tol,
                product_dtype=product_dtype,
                max_memory=limit,
                strict=False,
                progress=None if folder is None else report,
            )
    else:
        product_dtype = torch.bfloat16 if x.is_cuda else None
        found = local_lipschitz(
            f,
            x,
            tol=arguments.tol,
            product_dtype=product_dtype,
            stop="residual",
            strict=False,
            max_steps=arguments.max_steps,
            max_memory=limit,
        )
    return found.as_record() | {"width": found.width, "product_dtype": str(product_dtype).removeprefix("torch.")}


def extract(arguments) -> None:
    """Write a layer and its input for a text, for a machine that has neither the model nor the text."""
    from howsmooth.models import load
    from howsmooth.texts.corpora import read_corpus

    model, corpus = load(arguments.what), read_corpus(arguments.text)
    (piece,) = model.chunks(corpus.content, arguments.n, 1, special_tokens=False)
    f = model.attention(arguments.layer, arguments.n)
    tensors = {name: t.detach().clone().contiguous() for name in WEIGHTS if (t := getattr(f, name)) is not None}
    if f.rotary is not None:
        tensors |= {"cos": f.rotary.cos.contiguous(), "sin": f.rotary.sin.contiguous()}
    tensors["x"] = model.activations(piece, [arguments.layer])[arguments.layer].contiguous()
    if not f.causal:
        sys.exit("expected a causal model, so that a shorter text is a prefix of a longer one")
    traits = {
        "heads": f.heads,
        "kv_heads": f.kv_heads,
        "scale": f.scale,
        "causal": f.causal,
        "window": f.window,
        "softcap": f.softcap,
    }
    facts = {
        "model": arguments.what,
        "layer": arguments.layer,
        "text": corpus.name,
        "text_sha256": corpus.sha256,
        "source": dict(model.source),
        "inputs": "text",
        "traits": traits,
    }
    save_file(tensors, arguments.file, {"facts": json.dumps(facts)})
    print(
        f"wrote layer {arguments.layer} of {arguments.what} and {arguments.n} tokens of {corpus.name} to "
        f"{arguments.file}"
    )


def measure(arguments) -> None:
    """Measure all inputs at all lengths."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kinds = arguments.kinds.split(",")
    subjects = [Text(path, device) for path in arguments.activations]
    if arguments.weights:
        file = AttentionFile(arguments.weights, device=device)
        made = {"normalised": RandomTokens, "adversarial": Adversarial}
        subjects += [made[kind](file, arguments.layer) for kind in kinds if kind in made]
    if not subjects:
        sys.exit("expected --weights or --activations; give one of them")
    facts = {
        "gpu": torch.cuda.get_device_name(0) if device == "cuda" else None,
        "torch": torch.__version__,
        **provenance(),
    }
    ends = time.perf_counter() + arguments.seconds
    took: dict[tuple, tuple[int, float]] = {}  # (subject, certified) -> the last length and its seconds
    arguments.out.mkdir(parents=True, exist_ok=True)
    with open(arguments.out / "long_context.jsonl", "a", encoding="utf-8") as lines:
        for power in range(arguments.first, arguments.last + 1):
            for subject in subjects:
                n = 2**power
                if subject.longest is None or n <= subject.longest:
                    measure_length(subject, n, arguments, facts, ends, took, lines, device)


def measure_length(subject, n: int, arguments, facts: dict, ends: float, took: dict, lines, device: str) -> None:
    """Measure one input at one length, if the time allows it."""
    left = ends - time.perf_counter()
    certified = n <= arguments.certified or subject.kind == "adversarial"
    if n > arguments.certified and subject.kind == "adversarial":
        before, seconds = took.get((subject.kind, True), (n, float("inf")))  # unknown: do not start
        certified = seconds * (n / before) ** 2 <= left / 2  # keep time for the longest
        seconds = 0.0 if before == n else seconds
        took.setdefault((subject.kind, False), (before, CLOSED_FORM_COST * seconds))
    before, seconds = took.get((subject.kind, certified), (n, 0.0))
    expected = seconds * (n / before) ** 2
    name = f"n = {n:8} {subject.kind:12}"
    if expected > left:
        print(f"{name} left out: about {expected:.0f} s, and {max(0.0, left):.0f} s are left", flush=True)
        return
    reset_peak_memory(device)
    began = time.perf_counter()
    try:
        found = subject.measured(subject.tokens(n), certified, arguments)
    except (torch.OutOfMemoryError, RuntimeError, ValueError) as reason:
        print(f"{name} failed: {str(reason).splitlines()[0][:160]}", flush=True)
        if device == "cuda":
            torch.cuda.empty_cache()
        return
    wall, gib = time.perf_counter() - began, (peak_memory(device) or 0) / 2**30
    took[subject.kind, certified] = (n, wall)
    record = {"kind": subject.kind, "n": n, **found, "wall": wall, "peak_gib": gib, **subject.facts, **facts}
    lines.write(json_line(record) + "\n")
    lines.flush()
    width = "no upper end" if found["upper"] is None else f"width {found['width']:.1e}"
    print(
        f"{name} {found['value']:12.6g}  {width:14} residual {found['residual'] / found['value']:.1e}  "
        f"{found['status']:28} {found['steps']:3} steps  {wall:7.1f} s  {gib:6.1f} GiB",
        flush=True,
    )


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["measure", "extract"], default="measure")
    parser.add_argument("what", nargs="?", help="extract: the model")
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--activations", type=Path, nargs="*", default=[])
    parser.add_argument("--layer", type=int, default=6)
    parser.add_argument("--from", dest="first", type=int, default=7, help="start at 2 to this power")
    parser.add_argument("--to", dest="last", type=int, default=20)
    parser.add_argument("--kinds", default="normalised,adversarial")
    parser.add_argument("--certified", type=int, default=2**17)
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--products", type=Path, help="folder in which products are saved")
    parser.add_argument("--max-steps", type=int, default=12, help="beyond the certified lengths")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="limit of the total time")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--text", default="alice", help="extract: as for howsmooth measure")
    parser.add_argument("--n", type=int, default=8192, help="extract: tokens")
    parser.add_argument("--file", type=Path, default=Path("activations.safetensors"), help="extract: file to write")
    arguments = parser.parse_args()
    if arguments.command == "extract":
        extract(arguments)
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
