"""The adversarial configuration of Theorem 1 for every head, with both signs, and at the input of the released scripts.

    python -m experiments.figures.adversarial --gpt2 gpt2_attention.safetensors [--out docs/images]

For each head of MiniLM, and of the three layers in the file of GPT-2's attention, the constant of the whole layer is
certified at (Ru, −Ru, …) or (Ru, Ru/2, …), at the same tokens with −u, and at the input that the released scripts
build; that of the head alone at the first two. R is the exact radius of the layer's normalisation, but 10 for GPT-2's
layer 0, as in the paper. A record is a curve over n, in adversarial.jsonl; those in the file are not computed again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from experiments.figures import format_length_axes
from experiments.records import Record, Records
from howsmooth import SelfAttention, load, local_lipschitz
from howsmooth.attack.configurations import castin
from howsmooth.bounds.normalisation import radius as radius_of
from howsmooth.errors import InputError
from howsmooth.fits import fit_law
from howsmooth.lipschitz import Estimate
from howsmooth.models import AttentionFile, Model
from howsmooth.models.released_scripts import adversarial_points
from howsmooth.report.style import THEMES, apply_theme

LENGTHS = (2, 7, 17, 32, 62, 97)
PUBLISHED_RADIUS = {("gpt2", 0): 10.0}
INPUTS = {"u": "u", "-u": "−u", "scripts": "scripts' input"}  # name in records: label
KEY = ("model", "layer", "head", "map", "input")
SIGNS = {"u": 1, "-u": -1}


def key_of(record: Record) -> tuple[Any, ...]:
    """Return what identifies a curve."""
    return tuple(record[name] for name in KEY)


def exponent(record: Record) -> float:
    """Return the exponent of the power law that is fitted to a curve, whether or not it describes the curve."""
    found = fit_law(record["n"], record["value"]).exponent
    assert found is not None, "a curve has at least four lengths"
    return found


def tokens_of(f: SelfAttention, record: Record, n: int, points: tuple[Tensor, Tensor] | None) -> Tensor:
    """Return the tokens (n, d) of a curve at length n."""
    if points is not None:
        return record["R"] * torch.cat([points[0][None], points[1].expand(n - 1, -1)])
    return castin(f, n, record["R"], head=record["head"], sign=SIGNS[record["input"]]).tokens


def curves(model: Model, name: str, layers: Sequence[int], heads: int | None) -> Iterator[Record]:
    """Yield the curves of a model without their values."""
    for layer in layers:
        f = model.attention(layer)
        R = PUBLISHED_RADIUS.get((name, layer)) or radius_of(model.normalisation(layer))
        for head in range(min(heads or f.heads, f.heads)):
            for map_, inputs in (("attention", INPUTS), ("head", SIGNS)):
                for one in inputs:
                    yield {"model": name, "layer": layer, "head": head, "map": map_, "input": one, "R": R}


def measured(model: Model, curve: Record, lengths: Sequence[int], tol: float) -> Record:
    """Return the record of a curve: certified constants at each length."""
    f = model.attention(curve["layer"], max(lengths))
    if not isinstance(f, SelfAttention):
        raise InputError(
            f"expected a model whose attention is known by its weights, got {curve['model']}; name another"
        )
    f = f.converted(dtype=torch.float64)
    points = adversarial_points(model.family, f, curve["head"]) if curve["input"] == "scripts" else None
    g = f.head(curve["head"]) if curve["map"] == "head" else f
    found = []
    for n in lengths:
        one = local_lipschitz(g, tokens_of(f, curve, n, points), tol=tol, strict=False)
        assert isinstance(one, Estimate), "one input has one estimate"
        found.append(one)
    return {
        **curve,
        "tol": tol,
        "confidence": found[0].confidence,
        "n": list(lengths),
        **{end: [float(f"{getattr(one, end):.6g}") for one in found] for end in ("value", "lower", "upper")},
    }


def draw(records: list[Record], out: Path) -> None:
    """Draw the curves of GPT-2's layer 0, head 0, and the exponents of all layers."""
    colours = THEMES["light"]
    palette = dict(zip(INPUTS, colours["palette"], strict=False))
    whole = [record for record in records if record["map"] == "attention"]
    models = list(dict.fromkeys(record["model"] for record in whole))
    first = (models[-1], 0, 0)
    figure = Figure(figsize=(13, 5), dpi=150, layout="constrained", facecolor=colours["background"])
    panels = figure.subplots(1, 1 + len(models))
    for record in records:
        if key_of(record)[:3] == first:
            style = "o--" if record["map"] == "head" else "o-"
            panels[0].plot(record["n"], record["value"], style, color=palette[record["input"]])
    panels[0].set(xscale="log", yscale="log", ylabel="Lipschitz constant")
    format_length_axes(panels[0], records[0]["n"], colours)
    titles = [f"{first[0]}, layer 0, head 0"]
    for panel, model in zip(panels[1:], models, strict=True):
        layers = sorted({record["layer"] for record in whole if record["model"] == model})
        heads = len({key_of(record)[1:3] for record in whole if record["model"] == model})
        titles.append(f"{model}: all {heads} heads")
        for i, one in enumerate(INPUTS):
            chosen = [record for record in whole if record["model"] == model and record["input"] == one]
            x = [layers.index(record["layer"]) + 0.25 * (i - 1) for record in chosen]
            panel.plot(x, [exponent(record) for record in chosen], "o", ms=5, alpha=0.7, mew=0, color=palette[one])
        for level, text in ((0.0, "0"), (0.5, "½")):
            panel.axhline(level, color=colours["muted"], linewidth=1, linestyle=":")
            panel.annotate(text, (1.01, level), xycoords=("axes fraction", "data"), color=colours["muted"])
        panel.set_xticks(range(len(layers)), [str(layer) for layer in layers])
        panel.set(xlabel="layer", ylabel="exponent of the whole layer in n")
        apply_theme(panel, colours)
        panel.grid(False, axis="x")
    for panel, title in zip(panels, titles, strict=True):
        panel.set_title(title, loc="left", fontweight="bold", fontsize=12, color=colours["foreground"])
    handles = [Line2D([], [], color=palette[one], marker="o", label=label) for one, label in INPUTS.items()]
    lines = {"-": "the whole layer", "--": "the head alone"}
    handles += [Line2D([], [], color=colours["muted"], linestyle=one, label=label) for one, label in lines.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=11)
    figure.savefig(out / "adversarial.png", facecolor=figure.get_facecolor())
    print(f"drew {out / 'adversarial.png'}")


def summary(records: list[Record]) -> str:
    """Return how the exponents of whole layers are spread, for each model and input, and for the better sign."""
    lines = []
    by_head: dict[tuple[Any, ...], dict[str, float]] = {}
    for record in records:
        if record["map"] == "attention":
            by_head.setdefault(key_of(record)[:3], {})[record["input"]] = exponent(record)
    for model in dict.fromkeys(key[0] for key in by_head):
        heads = [found for key, found in by_head.items() if key[0] == model]
        spreads = {label: [found[one] for found in heads if one in found] for one, label in INPUTS.items()}
        spreads["larger of ±u"] = [max(found["u"], found["-u"]) for found in heads if {"u", "-u"} <= set(found)]
        for label, values in spreads.items():
            ordered = sorted(values)
            grow = sum(value >= 0.4 for value in ordered)
            lines.append(
                f"{model:8} {label:16} {len(ordered):3} heads  exponents {ordered[0]:.2f} … {ordered[-1]:.2f}  "
                f"median {ordered[len(ordered) // 2]:.2f}  {grow} of at least 0.4"
            )
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpt2", type=Path, help="file with GPT-2's attention layers; without it, MiniLM alone")
    parser.add_argument("--model", default="minilm", help="the other model: a name, or a folder")
    parser.add_argument("--layers", type=int, nargs="*", help="these layers alone")
    parser.add_argument("--heads", type=int, help="the first heads alone")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--tol", type=float, default=1e-2)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args(given)
    store = Records(arguments.out / "adversarial.jsonl", key_of, "curves of adversarial inputs", '{"model"')
    models: list[tuple[str, Model]] = [(Path(arguments.model).name, load(arguments.model))]
    if arguments.gpt2:
        models.append(("gpt2", AttentionFile(arguments.gpt2)))
    records = []
    for name, model in models:
        chosen = [layer for layer in model.layer_numbers if not arguments.layers or layer in arguments.layers]
        for curve in curves(model, name, chosen, arguments.heads):
            record = store.done.get(key_of(curve))
            if record is None:
                record = measured(model, curve, arguments.lengths, arguments.tol)
                store.append(record)
            records.append(record)
    draw(records, arguments.out)
    print(summary(records))


if __name__ == "__main__":
    main()
