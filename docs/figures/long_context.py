"""Lip against n to a million tokens, from what benchmarks/long_context.py measured.

    python docs/figures/long_context.py benchmarks/results/long_context.jsonl [--out docs/images]
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, LogLocator

from howsmooth.lipschitz import fit_growth
from howsmooth.report.figure import THEMES, dress

NAMES = {"random": "random normalised tokens", "adversarial": "two-point input on the LayerNorm's sphere"}


def main(lines: Path, out: Path) -> None:
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    colours = THEMES["light"]
    figure = Figure(figsize=(8.2, 5.2), dpi=160, layout="constrained", facecolor=colours["paper"])
    panel = figure.subplots()
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    for colour, kind in zip(colours["maps"], NAMES, strict=False):
        chosen = sorted((r for r in records if r["kind"] == kind), key=lambda r: r["n"])
        if not chosen:
            continue
        whole = [r for r in chosen if r["upper"] is not None]
        fit = fit_growth([r["n"] for r in whole], [r["value"] for r in whole])
        panel.errorbar([r["n"] for r in whole], [r["value"] for r in whole],
                       yerr=([r["value"] - r["lower"] for r in whole], [r["upper"] - r["value"] for r in whole]),
                       fmt="o", color=colour, markersize=5.5, markeredgewidth=0, capsize=2,
                       label=f"{NAMES[kind]}:  n$^{{{fit.exponent:.2f}}}$")
        below = [r for r in chosen if r["upper"] is None]
        if below:
            panel.plot([r["n"] for r in below], [r["lower"] for r in below], "^", color=colour, markersize=6.5,
                       label="the same, lower bound only")
        ends = [chosen[0]["n"], chosen[-1]["n"]]
        panel.plot(ends, [fit.at(n) for n in ends], color=colour, linewidth=1.4)
        first = chosen[0]
        panel.plot(ends, [0.5 * first["value"] * math.sqrt(n / first["n"]) for n in ends], color=colours["faint"],
                   linewidth=1.1, dashes=(6, 3), label="√n" if kind == "random" else None)
    lengths = sorted({r["n"] for r in records})
    dress(panel, records, colours)
    panel.set_xticks(lengths[::2])
    panel.xaxis.set_major_formatter(FuncFormatter(
        lambda n, _: f"{n:.0f}" if n < 1024 else f"{n / 1024:.0f}k" if n < 2**20 else f"{n / 2**20:.0f}M"))
    panel.yaxis.set_major_locator(LogLocator(base=10))
    panel.yaxis.set_major_formatter(LogFormatterMathtext())
    layer = records[0]["layer"]
    panel.set_title(f"GPT-2's layer {layer} (true weights, causal) to a million tokens", loc="left", fontsize=12,
                    fontweight="bold", color=colours["ink"])
    panel.set_ylabel("local Lipschitz constant  ‖D$_X$f‖$_2$", color=colours["ink"], fontsize=11)
    panel.legend(frameon=False, labelcolor=colours["ink"], fontsize=9.5)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "long_context.png", facecolor=figure.get_facecolor())
    print(f"drew {out / 'long_context.png'}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args()
    main(arguments.lines, arguments.out)
