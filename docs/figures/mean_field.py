"""The pictures of docs/mean_field.md: lengths without end, masked constants, growth with the radius.

    python docs/figures/mean_field.py [--out docs/images]

Writes mean_field_regimes.png, mean_field_masked.png, mean_field_rates.png and, beside those two that took an ascent,
their records as JSON lines. About a minute on an idle core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from howsmooth.report.figure import save_figure
from howsmooth.report.mean_field_figure import masked_figure, rates_figure, regimes_figure
from howsmooth.studies import fit_rate, lengths_up_to, masked_constants, regimes, roughest_measures
from howsmooth.studies.lines import json_line

GAMMA_R2 = (0.5, 2.0, 8.0, 32.0)
SIZES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0)
EXPONENTS = (1.5, 2.0, 3.0, float("inf"))
# ‖A‖R² where two Diracs are best: for positive scores that is far out.
RADII_SQUARED = {"negative": (1, 2, 3, 4, 6, 8, 10, 12), "rotation": (4, 6, 8, 10, 12, 16, 20, 24),
                 "positive": (48, 64, 80, 96, 112, 128)}


def keep(figure, out: Path, name: str, records: list[dict] | None = None) -> None:
    save_figure(figure, out / f"mean_field_{name}.png")
    if records is not None:
        (out / f"mean_field_{name}.jsonl").write_text("".join(json_line(record) + "\n" for record in records))
    print(f"drew {out / f'mean_field_{name}.png'}", flush=True)


def main(out: Path) -> None:
    found = list(regimes(GAMMA_R2, lengths_up_to(40, 121)))
    keep(regimes_figure(found), out, "regimes")
    found = list(masked_constants(EXPONENTS, SIZES))
    keep(masked_figure(found), out, "masked", found)
    found, rates = [], []
    for scores, squared in RADII_SQUARED.items():
        records = list(roughest_measures(scores, squared))
        rates.append(fit_rate(records).as_record())
        found += records
        print(f"{scores}: exponent {rates[-1]['exponent']:.4f} ± {rates[-1]['exponent_error']:.1g}, in theory "
              f"{rates[-1]['true_exponent']:g}, γ {rates[-1]['gamma']:g}")
    keep(rates_figure(found, rates), out, "rates", [*found, *rates])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    main(parser.parse_args().out)
