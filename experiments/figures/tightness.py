"""Measured constants and worst cases with their bounds, layer by layer: MiniLM, SmolLM2 and GPT-2's attention weights.

    python -m experiments.figures.tightness [--n 64] [--gpt2 gpt2_attention.safetensors] [--out docs/images] [--redraw]

The inputs of GPT-2's layers are random tokens, normalised by their own LayerNorm; those of the other two come from the
embedded text. Without --gpt2 it has no panels. The numbers are in `tightness.json`; --redraw draws them again.
"""

from __future__ import annotations

import argparse
import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes

import howsmooth
from experiments.figures import format_length_axes
from howsmooth.attack import Ellipsoid, worst_case
from howsmooth.bounds import Bound, LayerForm, every, heads_together
from howsmooth.bounds.normalisation import radius
from howsmooth.bounds.titles import title_of
from howsmooth.models import AttentionFile
from howsmooth.report.figure import save_figure
from howsmooth.report.style import THEMES, legend_options, new_figure
from howsmooth.report.texts import separate_tick_labels
from howsmooth.texts import default_text

SHOWN = {  # row of the figure → bound → colour index and marker
    "worst case in the ball": {
        "this_project.theorem1_with_bias": (5, "^"),
        "heads_together.upper": (1, "^"),
        "heads_together.upper_on_outputs": (4, "^"),
        "three_points.lower": (2, "v"),
    },
    "at these tokens": {"yudin2025.local": (4, "s"), "this_project.local": (0, "s")},
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
    for layer in file.layer_numbers:
        f, norm = file.attention(layer), file.normalisation(layer)
        yield layer, f, norm(torch.randn(n, f.d, generator=generator)), norm


def measure(model: str, layers: Iterable[tuple], n: int, restarts: int, steps: int) -> list[dict]:
    """Measure the constant on tokens and in the worst case, and compute all bounds, for each layer."""
    rows = []
    for layer, f, x, norm in layers:
        R = radius(norm)
        on_tokens = howsmooth.local_lipschitz(f, x, strict=False)
        worst = worst_case(f, n, Ellipsoid(norm.converted(dtype=f.dtype)), restarts=restarts, steps=steps)
        form = LayerForm(f)
        outcomes = [*every(form, n, R, x), heads_together.upper_on_outputs(form, n, norm)]
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
            f"{name.split('.')[-1]} {math.exp(min(bounds[name], 700)):.4g}"
            for names in SHOWN.values()
            for name in names
            if name in bounds
        )
        print(
            f"{model:8} layer {layer:2}  R {R:6.1f}  on tokens {on_tokens.value:8.4g}  worst {worst.value:8.4g}  "
            f"{shown}",
            flush=True,
        )
    return rows


def compute(n: int, gpt2: Path | None, restarts: int, steps: int) -> dict[str, list[dict]]:
    """Measure all layers, by the title of their panel."""
    results = {
        "MiniLM on text": measure("minilm", layers_of("minilm", n, None), n, restarts, steps),
        "SmolLM2 on text": measure("smollm2", layers_of("smollm2", n, [0, 5, 10, 15, 20, 25, 29]), n, restarts, steps),
    }
    if gpt2 is not None:
        results["GPT-2, random normalised tokens"] = measure("gpt2", layers_of_gpt2(gpt2, n), n, restarts, steps)
    return results


def draw(results: dict[str, list[dict]], out: Path) -> None:
    """Draw the worst cases above the measured constants: they are different constants, with different bounds."""
    colours = THEMES["light"]
    figure = new_figure(12.6, 7.6, colours, rows=2)
    panels = figure.subplots(
        len(SHOWN), len(results), sharey="row", squeeze=False, width_ratios=[2 + len(rows) for rows in results.values()]
    )
    for row, (scope, names) in enumerate(SHOWN.items()):
        for panel, (title, rows) in zip(panels[row], results.items(), strict=True):
            _draw_panel(panel, rows, names, scope)
            panel.set_title(
                textwrap.fill(title, 22) if row == 0 else "",
                loc="left",
                fontsize=11,
                fontweight="bold",
                color=colours["foreground"],
            )
        panels[row][0].set_ylabel(f"Lipschitz constant, n = {next(iter(results.values()))[0]['n']}\n{scope}")
    handles = {
        label: handle for panel in panels.flat for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, **legend_options(colours))
    save_figure(separate_tick_labels(figure), out / "tightness.png")
    print(f"drew {out / 'tightness.png'}")


def _draw_panel(panel: Axes, rows: list[dict], names: dict[str, tuple[int, str]], scope: str) -> None:
    colours, columns = THEMES["light"], range(len(rows))
    for name, (index, marker) in names.items():
        at = [(i, math.exp(r["bounds"][name])) for i, r in enumerate(rows) if name in r["bounds"]]
        if at:
            label = f"{'≥' if name.endswith('lower') else '≤'} {title_of(name)}"
            panel.plot(*zip(*at, strict=True), marker, color=colours["palette"][index], markersize=6, label=label)
    local = scope == "at these tokens"
    panel.plot(
        columns,
        [r["on_tokens" if local else "worst"]["value"] for r in rows],
        "o" if local else "*",
        color=colours["foreground"],
        markersize=6 if local else 10,
        label="measured" if local else "largest found by ascent, over outputs of the LayerNorm",
    )
    panel.set_yscale("log")
    format_length_axes(panel, columns, colours)
    panel.set_xticks(list(columns), [str(r["layer"]) for r in rows])
    panel.set_xlim(-0.5, len(rows) - 0.5)
    panel.set_xlabel("layer")


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--gpt2", type=Path, help="safetensors with ln_1, c_attn and c_proj of layers 0, 6 and 11")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--restarts", type=int, default=8)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--redraw", action="store_true", help="draw the numbers in OUT/tightness.json")
    arguments = parser.parse_args(given)
    numbers = arguments.out / "tightness.json"
    if not arguments.redraw:
        arguments.out.mkdir(parents=True, exist_ok=True)
        found = compute(arguments.n, arguments.gpt2, arguments.restarts, arguments.steps)
        numbers.write_text(json.dumps(found, indent=1, ensure_ascii=False))
    draw(json.loads(numbers.read_text()), arguments.out)


if __name__ == "__main__":
    main()
