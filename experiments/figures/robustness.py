"""The range of the linear approximation, and attacks at equal budget: MiniLM and SmolLM2, embedded text.

    python -m experiments.figures.robustness [--n 32] [--out docs/images] [--only linearity|attacks]

Records are written to JSON files next to the figures. `experiments.mitigations` makes the tables of mitigations.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatterMathtext, LogLocator, MultipleLocator, NullLocator

import howsmooth
from experiments.figures import format_length_axes
from howsmooth.attack import linearity
from howsmooth.attack.feature import Target
from howsmooth.questions.layer_attack import named_attack
from howsmooth.report.style import THEMES
from howsmooth.texts.corpora import read_corpus

LAYERS = {"minilm": (0, 1, 3, 5), "smollm2": (0, 10, 20, 29)}
SIZES = tuple(10 ** (power / 2) for power in range(-8, 1))
KEPT = (
    "model",
    "layer",
    "n",
    "share",
    "attack",
    "gain",
    "change",
    "spent",
    "noise_gain",
    "certified",
    "sigma",
    "calls",
    "status",
    "seed",
    "dtype",
)
ATTACKS = {"noise": ("o", 4), "sign": ("v", 5), "singular": ("s", 0), "ascent": ("D", 1), "ascent-noise": ("^", 2)}


def curves(n: int) -> list[dict]:
    """Measure the gain of the singular direction at growing sizes."""
    rows = []
    for name, layers in LAYERS.items():
        model = howsmooth.load(name)
        (chunk,) = model.chunks(read_corpus("embedded").content, n, 1)
        for layer in layers:
            found = linearity(Target.in_model(model, chunk, layer))
            rows.append({"model": name, "layer": layer, **found.as_record()})
            leaves = [
                f"{100 * level:g} % {'nowhere' if eta is None else f'at {eta / found.norm:.2g} ‖X‖'}"
                for level, eta in found.leaves.items()
            ]
            print(
                f"{name} layer {layer}: σ₁ = {found.sigma:.4g}, leaves it by {', '.join(leaves)}; most "
                f"{max(found.gains) / found.sigma:.2f} σ₁",
                flush=True,
            )
    return rows


def draw_curves(rows: list[dict], n: int, out: Path) -> None:
    """Draw the gains of `curves`."""
    colours, figure, panels = _panels()
    for panel, name in zip(panels, LAYERS, strict=True):
        chosen = [row for row in rows if row["model"] == name]
        panel.axhspan(0.9, 1.1, color=colours["grid"], alpha=0.7, zorder=0)
        for index, row in enumerate(chosen):
            share = [eta / row["norm"] for eta in row["eta"]]
            panel.plot(
                share,
                [gain / row["sigma"] for gain in row["gains"]],
                "-",
                linewidth=2,
                color=colours["palette"][index],
                label=f"layer {row['layer']}, σ₁ = {row['sigma']:.3g}",
            )
        _dress(panel, colours, name)
        panel.set_xlabel("size of the perturbation, η / ‖X‖", color=colours["foreground"])
        panel.yaxis.set_major_locator(
            MultipleLocator(0.25)
        )  # before the limits: a logarithmic locator does not accept zero
        panel.set_ylim(0, 1.75)
        panel.text(1.2e-6, 1.12, "within 10 % of σ₁", color=colours["muted"], fontsize=9.5)
        panel.legend(frameon=False, fontsize=9.5, labelcolor=colours["foreground"], loc="lower left")
    panels[0].set_ylabel(f"gain of the singular direction / σ₁, n = {n}", color=colours["foreground"], fontsize=11)
    _save(figure, rows, out / "linearity")


def attacks(n: int) -> list[dict]:
    """Run all attacks at equal budgets."""
    rows = []
    for name, layer in (("minilm", 3), ("smollm2", 10)):
        place = {"layers": [layer], "lengths": [n]}
        found = howsmooth.ask("layer-attack", name, dtype="float64", **place, budget=SIZES, attacks=list(ATTACKS))
        rows += [{key: record[key] for key in KEPT} for record in found]
        print(f"{name}: attacked", flush=True)
    return rows


def draw_attacks(rows: list[dict], n: int, out: Path) -> None:
    """Draw the gains of `attacks`."""
    colours, figure, panels = _panels()
    for panel, name in zip(panels, LAYERS, strict=True):
        chosen = [row for row in rows if row["model"] == name]
        for attack, (marker, index) in ATTACKS.items():
            label = named_attack(attack).name
            points = [row for row in chosen if row["attack"]["name"] == label]
            panel.plot(
                [p["share"] for p in points],
                [p["gain"] for p in points],
                f"{marker}-",
                linewidth=1.8,
                markersize=5,
                color=colours["palette"][index],
                label=label,
            )
        sigma = chosen[0]["sigma"]["value"]
        panel.axhline(sigma, color=colours["foreground"], linestyle="--", linewidth=1.2, label="σ₁ at the text")
        ceiling = {row["share"]: row["certified"] for row in chosen}
        panel.plot(
            list(ceiling), list(ceiling.values()), ":", color=colours["foreground"], linewidth=1.6, label="certified"
        )
        panel.set_yscale("log")  # before the ticks, which are those of the scale
        _dress(panel, colours, f"{name}, layer {chosen[0]['layer']}")
        panel.yaxis.set_minor_locator(NullLocator())
        panel.set_ylim(0.5 * min(p["gain"] for p in chosen), 40 * sigma)
        panel.set_xlabel("budget, ‖E‖ / ‖X‖", color=colours["foreground"])
    panels[0].set_ylabel(f"gain ‖f(X+E) − f(X)‖ / ‖E‖, n = {n}", color=colours["foreground"], fontsize=11)
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9.5
    )
    _save(figure, rows, out / "attacks")


def _panels() -> tuple[dict, Figure, np.ndarray]:
    colours = THEMES["light"]
    figure = Figure(figsize=(11.6, 4.8), dpi=160, layout="constrained", facecolor=colours["background"])
    return colours, figure, figure.subplots(1, 2)


def _dress(panel: Axes, colours: dict, title: str) -> None:
    format_length_axes(panel, [], colours)
    panel.set_xscale("log")
    panel.xaxis.set_major_locator(LogLocator(base=10))
    panel.xaxis.set_major_formatter(LogFormatterMathtext())
    panel.xaxis.set_minor_locator(NullLocator())
    panel.set_title(title, loc="left", fontsize=11, fontweight="bold", color=colours["foreground"])


def _save(figure: Figure, rows: list[dict], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_suffix(".png"), facecolor=figure.get_facecolor())
    path.with_suffix(".json").write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    print(f"drew {path.with_suffix('.png')}")


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--only", choices=["linearity", "attacks"])
    arguments = parser.parse_args(given)
    wanted = [arguments.only] if arguments.only else ["linearity", "attacks"]
    if "linearity" in wanted:
        draw_curves(curves(arguments.n), arguments.n, arguments.out)
    if "attacks" in wanted:
        draw_attacks(attacks(arguments.n), arguments.n, arguments.out)


if __name__ == "__main__":
    main()
