"""Figures of docs/mean_field.md: regimes up to lengths of 10⁴⁰, and masked constants.

    python -m experiments.figures.mean_field [--out docs/images]

Writes mean_field_regimes.png, mean_field_masked.png and the records of the latter, mean_field_masked.jsonl. The growth
with the radius is drawn by `experiments.radius_growth`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from howsmooth.records import json_line
from howsmooth.report.figure import save_figure
from howsmooth.report.mean_field_figures import masked_figure, regimes_figure
from howsmooth.studies import lengths_up_to, masked_constants, regimes

GAMMA_R2 = (0.5, 2.0, 8.0, 32.0)
SIZES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
EXPONENTS = (1.5, 2.0, 3.0, float("inf"))


def save(figure: Figure, out: Path, name: str, records: list[dict] | None = None) -> None:
    """Save a figure and its records."""
    save_figure(figure, out / f"mean_field_{name}.png")
    if records is not None:
        (out / f"mean_field_{name}.jsonl").write_text("".join(json_line(record) + "\n" for record in records))
    print(f"drew {out / f'mean_field_{name}.png'}", flush=True)


def draw(out: Path) -> None:
    """Compute and draw both figures."""
    found = list(regimes(GAMMA_R2, lengths_up_to(40, 121)))
    save(regimes_figure(found), out, "regimes")
    found = list(masked_constants(EXPONENTS, SIZES))
    save(masked_figure(found), out, "masked", found)


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    draw(parser.parse_args(given).out)


if __name__ == "__main__":
    main()
