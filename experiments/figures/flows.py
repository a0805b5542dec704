"""Figures of flows of particles: the shapes that clusters form, and perturbations along depth.

    python -m experiments.figures.flows [--out docs/images]

`flows.png` draws the named examples and checks their expectations. `flow.gif` animates the polytope. `flow_growth.png`
has three panels: the distance between L layers X + Γ/L and the flow that they discretise; σ₁ of the derivative of the
flow on the sphere and the product of its layers' constants; the local Lipschitz constant of each kind of attention
along its own flow. Its data are in `flow_growth.json`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import howsmooth
from howsmooth.attention import Field
from howsmooth.dynamics import Velocity, integrate, local_constant, perturbation_growth
from howsmooth.dynamics.declaration import ATTENTION_NAMES, EXAMPLE_NAMES, Attention, Tokens
from howsmooth.dynamics.example import field_of, tokens_of
from howsmooth.report.chart import Picture
from howsmooth.report.figure import draw, save_animation, save_figure
from howsmooth.report.flow_charts import particle_frames, paths_chart
from howsmooth.report.style import THEMES, apply_theme

COLOURS = THEMES["light"]
KINDS = (*ATTENTION_NAMES, "masked")
BETAS = (1.0, 4.0, 9.0)
LAYERS = (8, 16, 32, 64, 128, 256)


def shapes(out: Path) -> None:
    """Draw the named examples, and animate the polytope."""
    charts = []
    for name in EXAMPLE_NAMES:
        found = howsmooth.ask("particles", example=name).records
        print(f"{name}: {found[-1]['ending']}; {'; '.join(found[-1]['unmet']) or 'as stated'}")
        charts.append(paths_chart(found, name.replace("_", " ")))
        if name == "polytope":
            save_animation(out / "flow.gif", particle_frames(found))
    save_figure(draw(Picture(charts, width=4.4, height=4.2)), out / "flows.png")


def field_named(name: str, d: int) -> Field:
    """Return attention of a kind with A = V = I; "masked" is causal softmax."""
    return field_of(Attention(name="softmax", causal=True) if name == "masked" else Attention(name=name), d)


def growth(out: Path) -> None:
    """Draw discretisation errors, growth of perturbations and local constants."""
    figure = Figure(figsize=(14.4, 4.4), dpi=130, layout="constrained", facecolor=COLOURS["background"])
    left, middle, right = figure.subplots(1, 3)
    x = tokens_of(Tokens(count=16, dim=4, law="normal", seed=0), sphere=True)
    found: dict[str, list] = {"discretisation": [], "growth": [], "local": []}
    _discretisation(left, x, found["discretisation"])
    for beta, colour in zip(BETAS, COLOURS["palette"], strict=False):
        velocity = Velocity(field_of(Attention(A=beta), 4), sphere=True)
        grown = perturbation_growth(velocity, x, 12.0, steps=96, depths=24)
        found["growth"] += [{"beta": beta, **g.as_record()} for g in grown]
        depths = [g.depth for g in grown]
        middle.plot(depths, [g.value for g in grown], color=colour, linewidth=2, label=f"β = {beta:g}")
        middle.plot(depths, [math.exp(g.log_product) for g in grown], "--", color=colour, linewidth=1.3)
    middle.set_yscale("log")
    _name(middle, "depth t", "σ₁ of the flow's derivative", "On the sphere: flow (line), product of layers (dashed)")
    for name, colour in zip(KINDS, COLOURS["palette"], strict=False):
        field = field_named(name, 4)
        path = integrate(Velocity(field, sphere=True), x, 12.0, frames=25)
        values = [float(local_constant(field, state).value[0]) for state in path.tokens]
        found["local"] += [{"kind": name, "t": t, "value": v} for t, v in zip(path.times.tolist(), values, strict=True)]
        right.plot(path.times, values, color=colour, linewidth=1.8, label=name)
    right.set_ylim(bottom=0)
    _name(right, "depth t", "‖DΓ‖₂ at the tokens", "Local constant of Γ along its own flow, A = V = I")
    figure.savefig(out / "flow_growth.png", facecolor=figure.get_facecolor())
    (out / "flow_growth.json").write_text(json.dumps(found, indent=1))


def _discretisation(panel: Axes, x: torch.Tensor, found: list) -> None:
    velocity = Velocity(field_of(Attention(A=4.0), 4), sphere=True)
    exact = integrate(velocity, x, 4.0, solver="dop853", rtol=1e-12, atol=1e-13, frames=2).last
    for (scheme, order), colour in zip((("residual", 1), ("rk4", 4)), COLOURS["palette"], strict=False):
        errors = [
            float((integrate(velocity, x, 4.0, solver=scheme, steps=steps, frames=2).last - exact).norm())
            for steps in LAYERS
        ]
        found += [
            {"scheme": scheme, "layers": steps, "error": error} for steps, error in zip(LAYERS, errors, strict=True)
        ]
        panel.plot(LAYERS, errors, "o-", color=colour, linewidth=1.8, label=f"{scheme} (order {order})")
        panel.plot(
            LAYERS, [errors[-1] * (LAYERS[-1] / steps) ** order for steps in LAYERS], ":", color=COLOURS["muted"]
        )
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    _name(panel, "layers L to depth 4", "‖X_L − X(4)‖", "L layers against the flow, β = 4")


def _name(panel: Axes, x: str, y: str, title: str) -> None:
    panel.set_xlabel(x, color=COLOURS["foreground"])
    panel.set_ylabel(y, color=COLOURS["foreground"])
    panel.set_title(title, color=COLOURS["foreground"], fontsize=10, fontweight="bold", loc="left")
    panel.legend(frameon=False, labelcolor=COLOURS["foreground"], fontsize=9)
    apply_theme(panel, COLOURS)


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    folder = parser.parse_args(given).out
    folder.mkdir(parents=True, exist_ok=True)
    shapes(folder)
    growth(folder)


if __name__ == "__main__":
    main()
