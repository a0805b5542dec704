"""Gaussian flows, densities on a grid, and the convergence of particles to them.

    python -m experiments.figures.gaussian_flows [--out docs/images]

Writes gaussian_flow.png, density_flow.png, mean_field_rate.png, and the numbers of the page to gaussian_flows.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import torch

from howsmooth.attention.fields import LinearField, SinkhornField, SoftmaxField
from howsmooth.dynamics import (
    Density,
    GaussianState,
    Grid,
    blow_up_time,
    compare_particles,
    density_flow,
    gaussian_flow,
    integrate,
    mean_field_convergence,
)
from howsmooth.questions.flows import positions
from howsmooth.questions.gaussian import flow_fields
from howsmooth.questions.pde import density_fields
from howsmooth.report.chart import Picture
from howsmooth.report.density_charts import density_picture, gaussian_picture, rate_chart
from howsmooth.report.figure import draw, save_figure

EYE, ONE = torch.eye(2, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
A = torch.tensor([[0.6, 0.8], [-0.4, -0.3]], dtype=torch.float64)
V = torch.tensor([[0.6, 0.3], [-0.2, 0.5]], dtype=torch.float64)
START = GaussianState.of([0.4, -0.2], [[0.8, 0.2], [0.2, 0.5]])


def blow_up(out: Path) -> dict:
    """Draw a Gaussian with particles, and compare a blow-up time with its closed form."""
    field = SoftmaxField.of(A, EYE)
    exact = blow_up_time(A, START)
    flow = gaussian_flow(field, START, 2 * exact)
    calm = SoftmaxField.of(A, -0.5 * EYE + 0.8 * torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64))
    shown = gaussian_flow(calm, START, 2.0)
    comparison = compare_particles(shown, calm, 800)
    save_figure(
        draw(
            gaussian_picture(
                [
                    {
                        **flow_fields(shown, comparison),
                        "title": "A Gaussian and 800 particles: softmax attention, V turns and contracts",
                    }
                ]
            )
        ),
        out / "gaussian_flow.png",
    )
    return {
        "closed_form": exact,
        "found": flow.blow_up.time,
        "direction": flow.blow_up.direction.tolist(),
        "steps": flow.steps,
        "seconds": flow.seconds,
        "coupled_at_end": float(comparison.coupled[-1]),
    }


def densities(out: Path) -> dict:
    """Draw a density with particles."""
    grid = Grid.square(2, 6.0, 64)
    centres = ([-2.0, -1.0], [1.5, -1.5], [0.0, 2.0])
    start = Density.mixture([Density.gaussian(GaussianState.of(p, 0.25 * EYE), grid) for p in centres])
    field = SoftmaxField.of(EYE, -EYE)
    flow = density_flow(field, start, 4.0)
    tokens = integrate(field, start.sample(300, torch.Generator().manual_seed(0)), 4.0, frames=flow.times.tolist())
    title = "A density on 64 × 64 cells and 300 particles: softmax attention, V = −I"
    particles = {"kind": "particle comparison", "flow": "", "n": 300, "positions": positions(tokens.tokens)}
    flow_record = {"kind": "density flow", "flow": "", "title": title, **density_fields(flow)}
    save_figure(draw(density_picture([flow_record, particles])), out / "density_flow.png")
    return {"steps": flow.steps, "seconds": flow.seconds, "mass_error": flow.mass_error}


def rates(out: Path) -> list[dict]:
    """Measure and draw the rates of convergence of particles."""
    grid = Grid.square(1, 6.0, 240)
    parts = [Density.gaussian(GaussianState.of([m], [[0.2]]), grid) for m in (-1.5, 0.5, 1.5)]
    ns = (60, 120, 240, 480, 960)
    found = []
    for label, field, start in (
        ("Gaussian, softmax, d = 2 (coupled)", SoftmaxField.of(0.5 * A, V), START),
        ("Gaussian, linear, d = 2 (coupled)", LinearField(0.5 * A, V), START),
        ("Gaussian, Sinkhorn, d = 2 (coupled)", SinkhornField(0.5 * A, V, tol=1e-5), START),
        ("density, softmax, d = 1 (W₂)", SoftmaxField.of(ONE, -ONE), Density.mixture(parts)),
        ("masked density, softmax, d = 1 (d₂)", SoftmaxField.of(ONE, -ONE), Density.slices(parts)),
    ):
        one = mean_field_convergence(field, start, 1.0, ns, repeats=8, rtol=1e-3)
        found.append({"label": label, **one.as_record()})
    chart = rate_chart(found, "Particles converge to their limit")
    picture = Picture([chart], width=7.0, height=4.6 + 0.22 * (len(found) + 1))
    save_figure(draw(picture), out / "mean_field_rate.png")
    return [{key: one[key] for key in ("label", "distance", "d", "rate")} for one in found]


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    folder = parser.parse_args(given).out
    facts = {"blow_up": blow_up(folder), "density": densities(folder), "rates": rates(folder)}
    text = json.dumps(facts, indent=1, ensure_ascii=False)
    (folder / "gaussian_flows.json").write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
