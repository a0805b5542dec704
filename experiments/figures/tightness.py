"""Measured constants between their bounds, layer by layer: MiniLM, SmolLM2 and GPT-2's attention weights.

    python -m experiments.figures.tightness [--n 64] [--gpt2 gpt2_attention.safetensors] [--out docs/images]

The inputs of GPT-2's layers are random tokens, normalised by their own LayerNorm; those of the other two come from the
embedded text. Without --gpt2 its panel is replaced by a note.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterMathtext, LogLocator

import howsmooth
from howsmooth.attack import Ellipsoid, worst_case
from howsmooth.bounds import Bound, LayerForm, every
from howsmooth.bounds.normalisation import radius
from howsmooth.models import AttentionFile
from howsmooth.report.figure import THEMES, format_length_axes
from howsmooth.texts import default_text

SHOWN = {  # bound → colour index and marker
    "this_project.local": (0, "s"),
    "yudin2025.local": (4, "s"),
    "this_project.upper": (1, "^"),
    "this_project.theorem1_with_bias": (5, "^"),
    "this_project.two_point_lower": (2, "v"),
}


def layers_of(name: str, n: int, chosen: list[int] | None) -> Iterator[tuple]:
    """Yield (layer, map, tokens, normalisation before it) of a model."""
    model = howsmooth.load(name)
    for layer in chosen or range(model.layers):
        yield layer, model.attention(layer, n), model.inputs(default_text(), layer, n), model.normalisation(layer)


def layers_of_gpt2(path: Path, n: int) -> Iterator[tuple]:
    """Yield the same for the layers in a file of GPT-2's attention weights, at random tokens."""
    file = AttentionFile(path)
    generator = torch.Generator().manual_seed(0)
    for layer in file.layers:
        f, norm = file.attention(layer), file.normalisation(layer)
        yield layer, f, norm(torch.randn(n, f.d, generator=generator)), norm


def measure(model: str, layers: Iterable[tuple], n: int, restarts: int, steps: int) -> list[dict]:
    """Measure the constant on tokens and in the worst case, and compute all bounds, for each layer."""
    rows = []
    for layer, f, x, norm in layers:
        R = radius(norm)
        on_tokens = howsmooth.local_lipschitz(f, x, strict=False)
        worst = worst_case(f, n, Ellipsoid(norm.converted(dtype=f.dtype)), restarts=restarts, steps=steps)
        outcomes = every(LayerForm(f), n, R, x)
        bounds = {b.name: b.log_value for b in outcomes if isinstance(b, Bound)}
        rows.append(
            {
                "model": model,
                "layer": layer,
                "n": n,
                "R": R,
                "on_tokens": on_tokens.as_record(),
                "worst": worst.estimate.as_record(),
                "bounds": bounds,
                "refused": {b.bound: b.condition for b in outcomes if not isinstance(b, Bound)},
            }
        )
        shown = "  ".join(
            f"{name.split('.')[-1]} {math.exp(min(bounds[name], 700)):.4g}" for name in SHOWN if name in bounds
        )
        print(
            f"{model:8} layer {layer:2}  R {R:6.1f}  on tokens {on_tokens.value:8.4g}  worst {worst.value:8.4g}  "
            f"{shown}",
            flush=True,
        )
    return rows


def draw(n: int, gpt2: Path | None, out: Path, restarts: int, steps: int) -> None:
    """Measure all layers and draw them."""
    results = {
        "MiniLM on text": measure("minilm", layers_of("minilm", n, None), n, restarts, steps),
        "SmolLM2 on text": measure("smollm2", layers_of("smollm2", n, [0, 5, 10, 15, 20, 25, 29]), n, restarts, steps),
        "GPT-2, random normalised tokens": []
        if gpt2 is None
        else measure("gpt2", layers_of_gpt2(gpt2, n), n, restarts, steps),
    }
    colours = THEMES["light"]
    figure = Figure(figsize=(12.6, 4.9), dpi=160, layout="constrained", facecolor=colours["background"])
    panels = figure.subplots(1, len(results), sharey=True)
    for panel, (title, rows) in zip(panels, results.items(), strict=True):
        panel.set_title(title, loc="left", fontsize=11, fontweight="bold", color=colours["foreground"])
        if not rows:
            panel.text(0.5, 0.5, "weights not given", ha="center", transform=panel.transAxes, color=colours["muted"])
            panel.axis("off")
            continue
        columns = range(len(rows))
        panel.vlines(
            columns,
            [r["on_tokens"]["value"] for r in rows],
            [r["worst"]["value"] for r in rows],
            color=colours["grid"],
            linewidth=5,
            zorder=1,
        )
        for name, (index, marker) in SHOWN.items():
            at = [(i, math.exp(r["bounds"][name])) for i, r in enumerate(rows) if name in r["bounds"]]
            if at:
                mark = "≥" if name.endswith("lower") else "≤"
                panel.plot(
                    *zip(*at, strict=True),
                    marker,
                    color=colours["palette"][index],
                    markersize=6,
                    label=f"{mark} {name}",
                )
        panel.plot(
            columns, [r["on_tokens"]["value"] for r in rows], "o", color=colours["foreground"], label="measured there"
        )
        panel.plot(
            columns,
            [r["worst"]["value"] for r in rows],
            "*",
            color=colours["foreground"],
            markersize=10,
            label="worst case found by ascent",
        )
        panel.set_yscale("log")
        format_length_axes(panel, [{"n": i} for i in columns], colours)
        panel.yaxis.set_major_locator(LogLocator(base=10))
        panel.yaxis.set_major_formatter(LogFormatterMathtext())
        panel.set_xticks(list(columns), [str(r["layer"]) for r in rows])
        panel.set_xlabel("layer", color=colours["foreground"])
    panels[0].set_ylabel(f"Lipschitz constant, n = {n}", color=colours["foreground"], fontsize=11)
    handles = {
        label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False, fontsize=9.5)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "tightness.png", facecolor=figure.get_facecolor())
    (out / "tightness.json").write_text(json.dumps(results, indent=1, ensure_ascii=False))
    print(f"drew {out / 'tightness.png'}")


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--gpt2", type=Path, help="safetensors with ln_1, c_attn and c_proj of layers 0, 6 and 11")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args(given)
    draw(arguments.n, arguments.gpt2, arguments.out, arguments.restarts, arguments.steps)


if __name__ == "__main__":
    main()
