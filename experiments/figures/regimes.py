"""The four regimes of sup Lip on B_R^n in one figure: d = 1, A = −1, V = 1.

    python -m experiments.figures.regimes [--out docs/images]

Lines are this project's lower bound, which configurations attain; points are certified worst cases found by ascent;
dashed lines are the smallest upper bound that applies.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from matplotlib.figure import Figure

from experiments.figures import format_length_axes
from howsmooth import SelfAttention
from howsmooth.attack import Ball, worst_case
from howsmooth.bounds import this_project
from howsmooth.report.style import THEMES

ONE = torch.ones(1, 1, dtype=torch.float64)
LAYER = SelfAttention(-ONE, ONE, ONE, scale=1.0)
RADII = {"small R:  γR² = 0.05": 0.05, "γR² = 2": 2.0, "γR² = 4": 4.0}  # A = −1: γ = 1
LENGTHS = [2**power for power in range(1, 15)]
ASCENDED = [2**power for power in range(1, 9)]


def best_radius(n: int) -> float:
    """Return the radius with 2γr² = log(n − 1), which approximately maximises the lower bound."""
    return math.sqrt(max(math.log(max(n - 1, 2)) / 2, 1e-6))


def largest_radius(name: str, n: int) -> float:
    """Return the radius of the ball of a regime at length n."""
    return best_radius(n) if name == GROWING else math.sqrt(RADII[name])


GROWING = "R growing:  2γR² = log(n − 1)"


@functools.cache
def lower(name: str, n: int) -> float:
    """Return the best known lower bound: over all radii up to R, at n, n/2, n/4, …, or at equal tokens.

    Duplicating all tokens does not decrease the norm, so a bound at n/2 also holds at n. At n equal tokens the
    derivative is the mean, of norm ‖V‖ = 1.
    """
    R, best = largest_radius(name, n), 1.0
    while n > 1:
        shares = torch.linspace(0.02, 1, 50).tolist()
        best = max(best, *(this_project.lower(LAYER, n, R * share).value for share in shares))
        n //= 2
    return best


def upper(name: str, n: int) -> float:
    """Return the smallest upper bound that applies."""
    R = largest_radius(name, n)
    return min(bound(LAYER, n, R).value for bound in (this_project.upper, this_project.upper_in_n_and_a))


def draw(out: Path, restarts: int, steps: int) -> None:
    """Search for worst cases, and draw them between the bounds."""
    colours = THEMES["light"]
    figure = Figure(figsize=(8.2, 5.4), dpi=160, layout="constrained", facecolor=colours["background"])
    panel = figure.subplots()
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    results = []
    for colour, name in zip(colours["palette"], (*RADII, GROWING), strict=False):
        panel.plot(LENGTHS, [lower(name, n) for n in LENGTHS], color=colour, linewidth=2, label=name)
        panel.plot(LENGTHS, [upper(name, n) for n in LENGTHS], color=colour, linewidth=0.9, linestyle="--")
        found = []
        for n in ASCENDED:
            ascent = worst_case(LAYER, n, Ball(largest_radius(name, n)), restarts=restarts, steps=steps)
            found.append(ascent.value)
            results.append(
                {
                    "regime": name,
                    "n": n,
                    "R": largest_radius(name, n),
                    "lower": lower(name, n),
                    "upper": upper(name, n),
                    **ascent.estimate.as_record(),
                }
            )
            print(
                f"{name:32} n = {n:5}  lower {lower(name, n):8.4g}  found {ascent.value:8.4g}  "
                f"upper {upper(name, n):8.4g}"
            )
        panel.plot(ASCENDED, found, "o", color=colour, markersize=5.5, markeredgewidth=0)
    last = LENGTHS[-1]
    guide = [0.18 * math.sqrt(n) for n in LENGTHS]
    panel.plot(LENGTHS, guide, color=colours["muted"], linewidth=1.2, dashes=(2, 2))
    panel.annotate("√n", (last, guide[-1]), xytext=(4, -2), textcoords="offset points", color=colours["muted"])
    panel.annotate(
        "√n·log n",
        (last, lower(GROWING, last)),
        xytext=(-52, 18),
        textcoords="offset points",
        color=colours["palette"][len(RADII)],
    )
    for index, words in ((1, "mean field: no more growth"), (0, "small R: flat from the start")):
        panel.annotate(
            words,
            (last, lower(list(RADII)[index], last)),
            xytext=(-150, -13),
            textcoords="offset points",
            color=colours["palette"][index],
            fontsize=9.5,
        )
    format_length_axes(panel, LENGTHS[1::2], colours)
    panel.set_ylabel("Lipschitz constant on $B_R^n$", color=colours["foreground"], fontsize=11)
    panel.legend(
        frameon=False,
        labelcolor=colours["foreground"],
        fontsize=9.5,
        loc="upper left",
        title="lower bound (line), found (points), upper bound (dashed)",
        title_fontsize=9,
    )
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "regimes.png", facecolor=figure.get_facecolor())
    (out / "regimes.json").write_text(json.dumps(results, indent=1))
    print(f"drew {out / 'regimes.png'}")


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--restarts", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    arguments = parser.parse_args(given)
    draw(arguments.out, arguments.restarts, arguments.steps)


if __name__ == "__main__":
    main()
