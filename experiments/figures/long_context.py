"""The local Lipschitz constant up to a million tokens, from the results of benchmarks/long_context.py.

    python -m experiments.figures.long_context benchmarks/results/*context*.jsonl [--out docs/images]

Of points measured more than once it uses a certified one rather than a lower bound, and then the largest.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, LogLocator

from experiments.figures import format_length_axes
from howsmooth.fits import fit_law
from howsmooth.report.style import THEMES

NAMES = {
    "random": "random normalised tokens, fresh ones at each n",
    "normalised": "random normalised tokens, the first n of one sample",
    "adversarial": "two-point input on the LayerNorm's sphere",
    "text": "text",
}


def draw(files: list[Path], out: Path) -> None:
    """Draw the constants with intervals and fitted laws."""
    records = best([json.loads(line) for path in files for line in path.read_text().splitlines()])
    colours = THEMES["light"]
    figure = Figure(figsize=(8.2, 5.2), dpi=160, layout="constrained", facecolor=colours["background"])
    panel = figure.subplots()
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    roots, hollow = [], False
    for colour, key in zip(
        colours["palette"], sorted({curve(r) for r in records}, key=lambda k: [*NAMES].index(k[0])), strict=False
    ):
        chosen = sorted((r for r in records if curve(r) == key), key=lambda r: r["n"])
        name = NAMES[key[0]] if key[0] != "text" else f"layer {key[2]} of {key[1]} on {chosen[0]['text']}"
        whole = [r for r in chosen if r["upper"] is not None]
        fit = fit_law([r["n"] for r in whole], [r["value"] for r in whole]) if whole else None
        law = f":  n$^{{{fit.exponent:.2f}}}$" if fit is not None and fit.shown else ""
        panel.errorbar(
            [r["n"] for r in whole],
            [r["value"] for r in whole],
            yerr=([r["value"] - r["lower"] for r in whole], [r["upper"] - r["value"] for r in whole]),
            fmt="o",
            color=colour,
            markersize=5.5,
            markeredgewidth=0,
            capsize=2,
            label=name + law,
        )
        below = [r for r in chosen if r["upper"] is None]
        if below:
            panel.plot(
                [r["n"] for r in below],
                [r["lower"] for r in below],
                "^",
                color=colour,
                markersize=6.5,
                label=None if hollow else "lower bound only",
            )
            hollow = True
        ends = [chosen[0]["n"], chosen[-1]["n"]]
        if fit is not None and fit.shown:
            panel.plot(ends, [fit.at(n) for n in ends], color=colour, linewidth=1.4)
        if not any(0.3 < chosen[0]["value"] / base < 3 for base in roots):  # one line for curves that start together
            panel.plot(
                ends,
                [0.5 * chosen[0]["value"] * math.sqrt(n / chosen[0]["n"]) for n in ends],
                linewidth=1.1,
                color=colours["muted"],
                dashes=(6, 3),
                label=None if roots else "√n",
            )
            roots.append(chosen[0]["value"])
    lengths = sorted({r["n"] for r in records})
    format_length_axes(panel, [record["n"] for record in records], colours)
    panel.set_xticks(lengths[::2])
    panel.xaxis.set_major_formatter(
        FuncFormatter(lambda n, _: f"{n:.0f}" if n < 1024 else f"{n / 1024:.0f}k" if n < 2**20 else f"{n / 2**20:.0f}M")
    )
    panel.yaxis.set_major_locator(LogLocator(base=10))
    panel.yaxis.set_major_formatter(LogFormatterMathtext())
    layer = next((r["layer"] for r in records if r["kind"] != "text"), records[0]["layer"])
    panel.set_title(
        f"GPT-2's layer {layer} (trained weights, causal) to a million tokens",
        loc="left",
        fontsize=12,
        fontweight="bold",
        color=colours["foreground"],
    )
    panel.set_ylabel("local Lipschitz constant  ‖D$_X$f‖$_2$", color=colours["foreground"], fontsize=11)
    panel.legend(frameon=False, labelcolor=colours["foreground"], fontsize=9.5)
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "long_context.png", facecolor=figure.get_facecolor())
    print(f"drew {out / 'long_context.png'}")


def curve(record: dict) -> tuple:
    """Return what identifies the curve of a record."""
    return record["kind"], record.get("model", "gpt2"), record["layer"]


def best(records: list[dict]) -> list[dict]:
    """Return one record for each point."""
    found: dict[tuple, dict] = {}
    for record in records:
        key = (*curve(record), record["n"])

        def rank(r: dict) -> tuple[bool, float]:
            return (r["upper"] is not None, r["value"])

        if key not in found or rank(record) > rank(found[key]):
            found[key] = record
    return list(found.values())


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args(given)
    draw(arguments.files, arguments.out)


if __name__ == "__main__":
    main()
