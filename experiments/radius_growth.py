"""How does the largest constant over measures grow with the radius? Ascent over positions and masses, and a fit.

    python -m experiments.radius_growth [--scores negative rotation positive]

‖A‖ = 1 and V = I: A = −1 and A = 1 in d = 1, and a quarter turn in d = 2. From random measures ascent converges to the
two Diracs of the published lower bound, and log Lip grows like αR². The fitted α is compared with D*/2, half the
largest ⟨Az, y − z⟩ in the unit ball, and with γ, the exponent of the published lower bound. An interrupted run is
resumed by the same command; with the records in docs/images it only fits and draws docs/images/mean_field_rates.png.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from scipy.optimize import curve_fit

from experiments.records import Record, Records
from howsmooth.attack import Ascent, Ball, ascend
from howsmooth.bounds import mean_field
from howsmooth.errors import InputError
from howsmooth.lipschitz.regimes import unit_layer
from howsmooth.report.figure import save_figure
from howsmooth.report.panels import MARKERS
from howsmooth.report.style import THEMES, check_plot_path

# ‖A‖R² at which two Diracs are optimal; for positive scores these are large.
RADII_SQUARED: dict[str, tuple[float, ...]] = {
    "negative": (1, 2, 3, 4, 6, 8, 10, 12),
    "rotation": (4, 6, 8, 10, 12, 16, 20, 24),
    "positive": (48, 64, 80, 96, 112, 128),
}
NAMES = {"negative": "A = −1", "positive": "A = +1", "rotation": "A a quarter turn"}
EXPONENTS = {"negative": 1.0, "positive": 1 / 8, "rotation": 1 / 2}  # D*/2
GAMMAS = {"negative": 1.0, "positive": 1 / 8, "rotation": 0.0}


def roughest_measures(
    scores: str,
    radii_squared: Sequence[float],
    *,
    atoms: int = 3,
    restarts: int = 8,
    steps: int = 150,
    seed: int = 0,
    done: Mapping[tuple, Record] | None = None,
) -> Iterator[Record]:
    """Yield one record per R²: the result of ascent over positions and masses from random measures in the ball.

    Records in `done` (by `key_of`) are reused.
    """
    f = unit_layer(scores)
    for squared in radii_squared:
        where = {
            "scores": scores,
            "radius_squared": float(squared),
            "gamma_r2": GAMMAS[scores] * squared,
            "atoms": atoms,
            "restarts": restarts,
        }
        if done and (key := key_of(where)) in done:
            yield done[key]
            continue
        R = math.sqrt(squared)
        start = Ball(R).draw((restarts, atoms, f.d), torch.Generator().manual_seed(seed))
        found = ascend(f, start, Ball(R), move="both", steps=steps, seed=seed, tol=1e-4)
        yield {
            **where,
            **found.estimate.as_record(),
            "value": found.value,
            "ascent_steps": found.steps,
            "places": distinct_positions(found),
            "upper_bound": mean_field.unmasked(f, 2, R).as_record(),
        }


def key_of(record: Record) -> tuple:
    """Return the settings that identify a record; KeyError for a record of another kind."""
    return tuple(record[name] for name in ("scores", "radius_squared", "atoms", "restarts"))


def distinct_positions(found: Ascent, tol: float = 1e-2) -> list[Record]:
    """Return the distinct positions of a measure, the heaviest first; those closer than `tol`·R are merged."""
    rest = sorted(range(len(found.x)), key=lambda i: -float(found.masses[i]))
    radius, listed = float(torch.linalg.vector_norm(found.x, dim=-1).max()), []
    while rest:
        near = [i for i in rest if float((found.x[i] - found.x[rest[0]]).norm()) <= tol * radius]
        mass = float(found.masses[near].sum())
        listed.append({"place": found.x[near[0]].tolist(), "mass": mass, "log_mass": math.log(mass)})
        rest = [i for i in rest if i not in near]
    return sorted(listed, key=lambda entry: -entry["mass"])


@dataclass(frozen=True)
class RadiusGrowth:
    """The fitted law Lip ≈ constant·e^{exponent·R²}(1 + turning·R²), the form of two Diracs, and the theory.

    Attributes:
        scores: Kind of scores.
        exponent: The fitted exponent.
        exponent_error: Its standard error; None with three records, which leave no degree of freedom.
        turning: The fitted coefficient of the polynomial factor.
        constant: The fitted constant.
        gamma: Exponent of the published lower bound.
        true_exponent: D*/2.
    """

    scores: str
    exponent: float
    exponent_error: float | None
    turning: float
    constant: float
    gamma: float
    true_exponent: float

    def log_at(self, squared: float) -> float:
        """Return log Lip of the fit at R²."""
        return self.exponent * squared + math.log1p(self.turning * squared) + math.log(self.constant)


def fit_radius_growth(records: Sequence[Record]) -> RadiusGrowth:
    """Fit the growth of the constant with R² to records of one kind of scores."""
    kinds = {record["scores"] for record in records}
    if len(kinds) != 1 or len({record["radius_squared"] for record in records}) < 3:
        raise InputError(
            f"expected records of one kind of scores at three radii or more, got {len(records)} of "
            f"{', '.join(sorted(kinds)) or 'none'}; add others"
        )
    kind = kinds.pop()
    squared = np.array([record["radius_squared"] for record in records])
    logs = np.log([record["value"] for record in records])
    (exponent, turning, constant), covariance = curve_fit(
        lambda r, exponent, turning, constant: exponent * r + np.log1p(turning * r) + constant,
        squared,
        logs,
        p0=(1.0, 1.0, 0.0),
        bounds=([0, 0, -np.inf], np.inf),
    )
    error = float(np.sqrt(covariance[0, 0])) if len(records) > 3 else None
    return RadiusGrowth(kind, float(exponent), error, float(turning), math.exp(constant), GAMMAS[kind], EXPONENTS[kind])


def rates_figure(records: Sequence[Record], rates: Sequence[RadiusGrowth]) -> Figure:
    """Draw the constants found by ascent over ‖A‖R² (points), and the fitted laws (lines)."""
    colours: dict[str, Any] = THEMES["light"]
    figure = Figure(figsize=(7.2, 5.0), dpi=160, layout="constrained", facecolor=colours["background"])
    panel = figure.subplots()
    panel.set_facecolor(colours["background"])
    panel.tick_params(colors=colours["foreground"], labelsize=10, length=0, which="both")
    panel.grid(True, color=colours["grid"], linewidth=0.8)
    panel.set_axisbelow(True)
    for side in panel.spines.values():
        side.set_visible(False)
    for index, rate in enumerate(rates):
        colour, label = (
            colours["palette"][index],
            f"{NAMES[rate.scores]}: e$^{{{rate.exponent:.3f}\\,R²}}$,  in theory ",
        )
        chosen = sorted((r for r in records if r["scores"] == rate.scores), key=lambda r: r["radius_squared"])
        at = [record["radius_squared"] for record in chosen]
        panel.plot(
            at,
            [math.log10(record["value"]) for record in chosen],
            MARKERS[index],
            color=colour,
            markersize=7,
            markeredgewidth=0,
            zorder=3,
        )
        line = np.linspace(min(at), max(at), 101).tolist()
        panel.plot(
            line,
            [rate.log_at(r) / math.log(10) for r in line],
            color=colour,
            linewidth=1.8,
            zorder=2,
            label=f"{label}{rate.true_exponent:g}",
        )
    panel.set_xscale("log", base=2)
    panel.set_xlabel("‖A‖R²", color=colours["foreground"], fontsize=11)
    panel.set_ylabel("largest constant found over measures", color=colours["foreground"], fontsize=11)
    panel.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    panel.yaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    panel.yaxis.set_major_formatter(FuncFormatter(lambda p, _: f"$10^{{{p:.0f}}}$" if abs(p) > 1e-9 else "1"))
    panel.legend(frameon=False, labelcolor=colours["foreground"], fontsize=9.5, handlelength=2.2, loc="upper left")
    panel.set_title(
        "Growth with the radius, V = I and ‖A‖ = 1",
        color=colours["foreground"],
        fontsize=13,
        fontweight="bold",
        loc="left",
    )
    return figure


def main(given: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.radius_growth",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--scores", nargs="+", choices=list(RADII_SQUARED), default=list(RADII_SQUARED))
    parser.add_argument("--restarts", type=int, default=8, help="random measures to start from")
    parser.add_argument(
        "--out", type=Path, default=Path("docs/images/mean_field_rates.jsonl"), help="the records, one JSON line each"
    )
    parser.add_argument("--plot", type=Path, default=Path("docs/images/mean_field_rates.png"))
    chosen = parser.parse_args(given)
    try:
        check_plot_path(str(chosen.plot))
        saved = Records(chosen.out, key_of, "records of ascents", '{"scores": ')
        found, rates = [], []
        for scores in chosen.scores:
            records = []
            for record in roughest_measures(scores, RADII_SQUARED[scores], restarts=chosen.restarts, done=saved.done):
                if key_of(record) not in saved.done:
                    saved.append(record)
                records.append(record)
            rates.append(rate := fit_radius_growth(records))
            found += records
            print(f"{NAMES[scores]}: {', '.join(f'{name} {value}' for name, value in asdict(rate).items())}")
    except InputError as error:
        parser.error(str(error))
    save_figure(rates_figure(found, rates), chosen.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
