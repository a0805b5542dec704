"""Figures of docs/mean_field.md: regimes up to lengths of 10⁴⁰, and masked constants.

    python -m experiments.figures.mean_field [--out docs/images]

Writes mean_field_regimes.png, mean_field_masked.png and the records of the latter, mean_field_masked.jsonl. The growth
with the radius is drawn by `experiments.radius_growth`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import howsmooth

GAMMA_R2 = (0.5, 2.0, 8.0, 32.0)
SIZES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
EXPONENTS = (1.5, 2.0, 3.0, float("inf"))


def draw(out: Path) -> None:
    """Compute and draw both figures."""
    curves = howsmooth.ask("regimes", gamma_r2=GAMMA_R2, to=40, points=121)
    constants = howsmooth.ask("masked", p=EXPONENTS, sizes=SIZES)
    constants.save(out / "mean_field_masked.jsonl")
    for name, found in (("regimes", curves), ("masked", constants)):
        path = out / f"mean_field_{name}.png"
        found.plot(path)
        print(f"drew {path}", flush=True)


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    draw(parser.parse_args(given).out)


if __name__ == "__main__":
    main()
