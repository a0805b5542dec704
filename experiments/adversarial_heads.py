"""Is the configuration of Theorem 1 the worst input of a trained head?

    python -m experiments.adversarial_heads --gpt2 gpt2_attention.safetensors [--out FILE]

For each head of MiniLM, and of the layers in the file of GPT-2's attention, the constant of the head alone is
certified at n tokens: at the configuration of Theorem 1 with u and with −u, at random tokens on the same sphere, one
draw for each seed, and at the two-point input. R is the exact radius of the layer's normalisation, and γ is that of
(A + Aᵀ)/2, without biases. A record is a head at one n; those in the file are not computed again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.records import Record, Records
from howsmooth import SelfAttention, load, local_lipschitz
from howsmooth.attack import Sphere
from howsmooth.attack.checks import single_estimate
from howsmooth.attack.configurations import castin, two_point
from howsmooth.bounds.form import form_of
from howsmooth.bounds.normalisation import radius
from howsmooth.errors import InputError
from howsmooth.models import AttentionFile, Model

LENGTHS, SEEDS = (16, 64), 8
KEY = ("model", "layer", "head", "n")


def key_of(record: Record) -> tuple[Any, ...]:
    """Return what identifies a record."""
    return tuple(record[name] for name in KEY)


def measured(model: Model, layer: int, head: int, n: int, seeds: int, tol: float) -> Record:
    """Return the constants of a head at all inputs, without what identifies it."""
    f = model.attention(layer, n)
    if not isinstance(f, SelfAttention):
        raise InputError(f"expected a model whose attention is known by its weights, got {model.name}; name another")
    g, R = f.converted(dtype=torch.float64).head(head), radius(model.normalisation(layer))

    def lip(x: torch.Tensor) -> float:
        return float(f"{single_estimate(local_lipschitz(g, x, tol=tol, strict=False)).value:.6g}")

    draws = [Sphere(R).draw((n, g.d), torch.Generator().manual_seed(seed)) for seed in range(seeds)]
    return {
        "R": float(R),
        "gamma_r2": gamma_r2(g, R),
        "saturated": float(f"{float(torch.linalg.matrix_norm(_values(g), 2)) * n**0.5:.6g}"),
        "tol": tol,
        "signs": [lip(castin(g, n, R, sign=sign).tokens) for sign in (1, -1)],
        "random": [lip(x) for x in draws],
        "two_point": lip(two_point(g, n, R).tokens),
    }


def gamma_r2(g: SelfAttention, R: float) -> float:
    """Return γR² of a head, which decides at which length its plateau begins."""
    return float(f"{form_of(g).gamma(0, symmetric=True) * float(R) ** 2:.6g}")


def _values(g: SelfAttention) -> torch.Tensor:
    """Return W V of a head."""
    return g.wv if g.wo is None else g.wo @ g.wv


def summary(records: Sequence[Record]) -> dict[str, Any]:
    """Return how many heads of a model have a larger constant at other inputs than at the better sign of u.

    "random_any" counts heads with at least one of the draws above, "random_each" the heads for each seed.
    """
    best = [max(record["signs"]) for record in records]
    draws = [record["random"] for record in records]
    return {
        "heads": len(records),
        "random_each": [sum(one[i] > top for one, top in zip(draws, best, strict=True)) for i in range(len(draws[0]))],
        "random_any": sum(max(one) > top for one, top in zip(draws, best, strict=True)),
        "random_any_worse_sign": sum(max(r["random"]) > min(r["signs"]) for r in records),
        "two_point": sum(record["two_point"] > top for record, top in zip(records, best, strict=True)),
        "near_saturated": sum(0.9 < top / r["saturated"] < 1.1 for r, top in zip(records, best, strict=True)),
    }


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpt2", type=Path, help="file with GPT-2's attention layers; without it, MiniLM alone")
    parser.add_argument("--model", default="minilm", help="the other model: a name, or a folder")
    parser.add_argument("--heads", type=int, help="the first heads alone")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="number of random draws")
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--out", type=Path, default=Path("docs/images/adversarial_heads.jsonl"))
    arguments = parser.parse_args(given)
    store = Records(arguments.out, key_of, "records of adversarial_heads", '{"model"')
    models: list[tuple[str, Model]] = [(Path(arguments.model).name, load(arguments.model))]
    if arguments.gpt2:
        models.append(("gpt2", AttentionFile(arguments.gpt2)))
    for name, model in models:
        for n in arguments.lengths:
            found = []
            for layer in model.layer_numbers:
                heads = model.attention(layer).heads
                for head in range(min(arguments.heads or heads, heads)):
                    record = store.done.get((name, layer, head, n))
                    if record is None:
                        where = {"model": name, "layer": layer, "head": head, "n": n}
                        record = where | measured(model, layer, head, n, arguments.seeds, arguments.tol)
                        store.append(record)
                    found.append(record)
            print(
                f"{name}, n = {n}: " + ", ".join(f"{key} {value}" for key, value in summary(found).items()), flush=True
            )


if __name__ == "__main__":
    main()
