"""What do mitigations cost? How much smoother and harder to attack a layer becomes, and what the model loses.

    python -m experiments.mitigations [MODEL …] [--out docs/images/mitigations.jsonl] [--layers 0,3,5] [--length 32]
    python -m experiments.mitigations --seed 1 --out docs/images/mitigations_choices.jsonl     # or --text alice

A mitigation replaces a layer by another one (`howsmooth.attack.mitigation`). The record of a layer has, before and
after: the constant at the text's tokens, and the change that ascent from the singular direction achieves with a budget
in units of ‖X‖. The cost is that of the whole model with the layer replaced: the cosine between its embedding (mean of
the last hidden states) and the original one, and the loss on the text if there is a language head. Records of all these
layers at once (layer null) have ascent from noise on the model's input instead. An interrupted run is resumed by the
same command; with the records in docs/images it only prints the table.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch import Tensor

import howsmooth
from experiments.records import Record, Records
from howsmooth.attack.feature import Attack, Budget, Noise, ProjectedGradient, Target, run
from howsmooth.attack.mitigation import L2, Cap, Mitigation, Temperature
from howsmooth.errors import InputError
from howsmooth.lipschitz import local_lipschitz
from howsmooth.models import Model, replace_attention
from howsmooth.report.rows import model_name, number
from howsmooth.report.table import plain_table
from howsmooth.studies import Spec, resolve, spec_of
from howsmooth.studies.plan import prepare_model
from howsmooth.texts.corpora import Corpus, read_corpus
from howsmooth.texts.cutting import TokenChunk

DEFAULT_MITIGATIONS = (Cap(0.5), Cap(0.25), Temperature(1.5), Temperature(2.0), Temperature(4.0), L2())
BUDGET = 0.01  # of ‖X‖
LAYERS = {"minilm": (0, 3, 5), "smollm2": (0, 10, 29)}  # of other models the first, middle and last


def mitigations(
    model: Model,
    corpus: Corpus,
    spec: Spec,
    *,
    tried: Sequence[Mitigation] = DEFAULT_MITIGATIONS,
    budget: float = BUDGET,
    attack: Attack | None = None,
    done: Mapping[tuple, Record] | None = None,
) -> Iterator[Record]:
    """Yield one record per length, layer and mitigation, then one with all these layers mitigated at once.

    Records in `done` (by `key_of`) are reused.
    """
    if not 0 < budget < math.inf:
        raise InputError(f"expected a positive budget in units of ‖X‖, got {budget!r}")
    attack, done = attack or ProjectedGradient(), done or {}
    facts = {**next(prepare_model(spec, model, corpus).bundles()).fields, "model": model.name}
    for n in spec.lengths:
        chunks = model.chunks(corpus, n, spec.samples, special_tokens=spec.adds_special_tokens)
        clean = [_outcome(model, chunk) for chunk in chunks]
        activations = model.activations(chunks[0], spec.layers)
        for layer in (*spec.layers, None):
            layers, before = spec.layers if layer is None else (layer,), None
            for mitigation in tried:
                where = {
                    "model": model.name,
                    "layer": layer,
                    "layers": list(layers),
                    "mitigation": mitigation.name,
                    "n": n,
                    "samples": len(chunks),
                    "budget": budget,
                    "seed": spec.seed,
                }
                if (key := key_of(where | {"text": facts["text"]})) in done:
                    yield done[key]
                    continue
                maps = {one: mitigation(model.attention(one, n)) for one in layers}
                constant_ratio = distance = None
                if layer is None:
                    before = before or _whole(model, chunks[0], {}, budget, spec)
                    after = _whole(model, chunks[0], maps, budget, spec)
                else:
                    f, g, x = model.attention(layer, n), maps[layer], activations[layer]
                    before = before or _layer(f, x, attack, budget, spec)
                    after = _layer(g, x, attack, budget, spec)
                    constant_ratio = after["value"] / before["value"]
                    with torch.no_grad():
                        distance = float(torch.linalg.vector_norm(g(x) - f(x)) / torch.linalg.vector_norm(f(x)))
                yield {
                    **where,
                    "before": before,
                    "after": after,
                    "constant_ratio": constant_ratio,
                    "attack_ratio": after["change"] / before["change"],
                    "output_apart": distance,
                    **_cost(model, chunks, clean, maps),
                    **facts,
                    "status": after["status"],
                }


def key_of(record: Record) -> tuple:
    """Return the settings that identify a record; KeyError for a record of another kind."""
    return (
        tuple(record["layers"]),
        *(record[name] for name in ("model", "layer", "mitigation", "n", "samples", "budget")),
        *(
            record.get(name, usual) for name, usual in (("seed", 0), ("text", "embedded"))
        ),  # records of old have neither
    )


def _layer(f: Callable[[Tensor], Tensor], x: Tensor, attack: Attack, budget: float, spec: Spec) -> Record:
    found = local_lipschitz(f, x, solver=spec.spectral_solver, strict=False)
    size = budget * float(torch.linalg.vector_norm(x))
    attacked = run(attack, Target.of(f, x), Budget(size), seed=spec.seed)
    return found.as_record() | {"change": attacked.change, "gain": attacked.gain, "calls": attacked.calls}


def _whole(model: Model, chunk: TokenChunk, maps: Mapping, budget: float, spec: Spec) -> Record:
    with replace_attention(model, maps):
        target = Target.in_model(model, chunk, None, "model")
        size = budget * float(torch.linalg.vector_norm(target.x))
        found = run(ProjectedGradient(start=Noise(), steps=10), target, Budget(size), seed=spec.seed)
    return {"change": found.change, "gain": found.gain, "calls": found.calls, "status": found.status}


def _outcome(model: Model, chunk: TokenChunk) -> tuple[Tensor, float | None]:
    """Return the embedding of a chunk, and the loss in nats per token if there is a language head."""
    hidden = model.map_at(chunk, map="model")()
    try:
        head = model.language_head
    except InputError:
        head = None
    loss = None
    if head is not None and len(chunk) > 1:
        with torch.no_grad():
            scores = head(hidden[:-1].to(model.dtype))
        loss = float(torch.nn.functional.cross_entropy(scores.double(), chunk.ids[1:].to(scores.device)))
    return hidden.mean(0), loss


def _cost(model: Model, chunks: Sequence[TokenChunk], clean: Sequence[tuple], maps: Mapping) -> Record:
    """Return cosine and losses of the model with these maps in place of its own."""
    with replace_attention(model, maps):
        now = [_outcome(model, chunk) for chunk in chunks]
    cosines = [float(torch.nn.functional.cosine_similarity(a[0], b[0], dim=0)) for a, b in zip(clean, now, strict=True)]
    losses = [(a[1], b[1]) for a, b in zip(clean, now, strict=True) if a[1] is not None]
    before, after = (sum(pair[i] for pair in losses) / len(losses) if losses else None for i in (0, 1))
    return {"cosine": sum(cosines) / len(cosines), "loss_before": before, "loss_after": after}


def mitigation_table(records: Sequence[Record]) -> Table:
    """Return a table with one row per layer and mitigation, the rows of all layers at once last."""
    first = records[0]
    table = plain_table(
        Text(
            f"{model_name(first['model'])}: mitigations, n = {first['n']}, attacked with {first['budget']:g} of ‖X‖",
            style="bold cyan",
        )
    )
    table.add_column("layer", justify="right")
    table.add_column("mitigation", no_wrap=True)
    table.add_column("σ₁ before", justify="right", style="dim")
    table.add_column("after", justify="right", style="bold green")
    for heading in ("attack's change", "output apart", "cosine"):
        table.add_column(heading, justify="right")
    has_loss = any(record["loss_after"] is not None for record in records)
    if has_loss:
        table.add_column("loss", justify="right")
    for index, record in enumerate(records):
        last = index + 1 == len(records) or records[index + 1]["layer"] != record["layer"]
        layer = "together" if record["layer"] is None else str(record["layer"])
        apart = "" if record["output_apart"] is None else f"{100 * record['output_apart']:.0f} %"
        loss = [f"{record['loss_before']:.2f} → {record['loss_after']:.2f}"] if has_loss else []
        sigmas = (
            ("", "")
            if record["constant_ratio"] is None
            else (number(record["before"]["value"]), number(record["after"]["value"]))
        )
        table.add_row(
            layer,
            record["mitigation"],
            *sigmas,
            f"× {record['attack_ratio']:.2f}",
            apart,
            f"{record['cosine']:.3f}",
            *loss,
            end_section=last,
        )
    return table


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.mitigations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="*", default=["minilm", "smollm2"], help="what howsmooth.load takes")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/images/mitigations.jsonl"), help="the records, one JSON line each"
    )
    parser.add_argument("--layers", type=lambda text: tuple(map(int, text.split(","))), help="for example 0,3,5")
    parser.add_argument("--length", type=int, default=32, help="tokens in a chunk")
    parser.add_argument("--samples", type=int, default=2, help="chunks of the text")
    parser.add_argument("--budget", type=float, default=BUDGET, help="norm of the perturbation in units of ‖X‖")
    parser.add_argument("--seed", type=int, default=0, help="seed of the attacks")
    parser.add_argument("--text", default="embedded", help="embedded, alice, ag_news or a file")
    chosen = parser.parse_args(given)
    try:
        saved = Records(chosen.out, key_of, "records of mitigations", '{"model": "')
        for name in dict.fromkeys(chosen.models):
            model, corpus = howsmooth.load(name), read_corpus(chosen.text)
            last = model.layers - 1
            layers = chosen.layers or LAYERS.get(name, tuple(dict.fromkeys((0, last // 2, last))))
            spec = resolve(
                model,
                corpus,
                spec_of(
                    {
                        "layers": layers,
                        "lengths": [chosen.length],
                        "tol": 1e-2,
                        "samples": chosen.samples,
                        "seed": chosen.seed,
                    }
                ),
            )
            records = []
            for record in mitigations(model, corpus, spec, budget=chosen.budget, done=saved.done):
                if key_of(record) not in saved.done:
                    saved.append(record)
                records.append(record)
            reused = sum(key_of(record) in saved.done for record in records)
            print(f"{len(records)} records in {chosen.out}, {reused} of them from before", file=sys.stderr)
            Console(width=120).print(mitigation_table(records))
    except InputError as error:
        parser.error(str(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
