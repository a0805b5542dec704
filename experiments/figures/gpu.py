"""Time and memory against n on a GPU, from the results of benchmarks/gpu.py and benchmarks/long_context.py.

    python -m experiments.figures.gpu [benchmarks/results] [--out docs/images]

Reads every `*lengths.jsonl` (the sweep), `*quick.json` and `*full.json` (the table) and `*context*.jsonl` (whole
solves) in the folder. Of points measured more than once it uses that of the last file in alphabetical order.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogFormatterMathtext, LogLocator

from experiments.figures import format_length_axes
from howsmooth.report.style import THEMES

CALLS = {
    ("forward", "bf16"): "forward",
    ("jvp", "bf16"): "JVP",
    ("vjp", "bf16"): "VJP",
    ("jvp", "float32"): "JVP, precise float32",
    ("torch jvp", "bf16"): "PyTorch's JVP (all n² scores)",
}
SOLVES = {True: "a certified constant, whole layer", False: "its lower bound alone"}
TITLES = ("Time", "Peak memory (of single calls: beyond their inputs)")
TYPICAL_INPUTS = {"random", "normalised"}  # kinds of inputs of long_context that are not adversarial


def draw(folder: Path, out: Path) -> None:
    """Draw times and peak memory of calls and solves."""
    calls, solves, gpu = read(folder)
    colours = THEMES["light"]
    figure = Figure(figsize=(11.6, 5.4), dpi=160, layout="constrained", facecolor=colours["background"])
    panels = figure.subplots(1, 2)
    series = {name: calls[key] for key, name in CALLS.items() if key in calls}
    series |= {SOLVES[certified]: points for certified, points in solves.items() if points}
    lengths = sorted({n for points in series.values() for n in points})
    for panel, key, title, unit in zip(panels, ("seconds", "gib"), TITLES, ("seconds", "GiB"), strict=True):
        panel.set_xscale("log", base=2)
        panel.set_yscale("log")
        for name, points in series.items():
            index = [*CALLS.values(), *SOLVES.values()].index(name)
            style = {"color": colours["palette"][index % len(colours["palette"])], "marker": "os^Dvp*X"[index % 8]}
            solved = name in SOLVES.values()
            ns = sorted(n for n in points if points[n].get(key) is not None)
            if ns:
                panel.plot(
                    ns,
                    [points[n][key] for n in ns],
                    label=name,
                    linewidth=0 if solved else 1.6,
                    markersize=5.5,
                    markeredgewidth=0,
                    **style,
                )
        guide(panel, series, key, 2 if key == "seconds" else 1, colours)
        format_length_axes(panel, lengths, colours)
        panel.set_xticks(lengths[::-2])
        panel.xaxis.set_major_formatter(
            FuncFormatter(
                lambda n, _: f"{n:.0f}" if n < 1024 else f"{n / 1024:.0f}k" if n < 2**20 else f"{n / 2**20:.0f}M"
            )
        )
        panel.yaxis.set_major_locator(LogLocator(base=10))
        panel.yaxis.set_major_formatter(LogFormatterMathtext())
        panel.set_title(title, loc="left", fontsize=12, fontweight="bold", color=colours["foreground"])
        panel.set_ylabel(unit, color=colours["foreground"], fontsize=11)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9.5,
        labelcolor=colours["foreground"],
    )
    figure.suptitle(
        f"Causal attention, 12 heads of width 64, on one {gpu}",
        x=0.01,
        ha="left",
        fontsize=13,
        fontweight="bold",
        color=colours["foreground"],
    )
    out.mkdir(parents=True, exist_ok=True)
    figure.savefig(out / "gpu_time_memory.png", facecolor=figure.get_facecolor())
    print(f"drew {out / 'gpu_time_memory.png'}: {', '.join(f'{name} ({len(p)})' for name, p in series.items())}")


def guide(panel: Axes, series: dict, key: str, power: int, colours: dict) -> None:
    """Draw a reference slope below the data: n² for time, n for memory."""
    known = [(n, point[key]) for points in series.values() for n, point in points.items() if point.get(key)]
    if not known:
        return
    last = max(n for n, _ in known)
    low = min(value for n, value in known if n == last)
    ends = [last / 32, last]
    panel.plot(
        ends, [low / 4 * (n / last) ** power for n in ends], color=colours["muted"], linewidth=1.1, dashes=(6, 3)
    )
    panel.annotate(
        "n²" if power == 2 else "n",
        (ends[0], low / 4 / 32**power),
        xytext=(-4, 0),
        ha="right",
        va="center",
        textcoords="offset points",
        color=colours["muted"],
        fontsize=10,
    )


def read(folder: Path) -> tuple[dict, dict, str]:
    """Return calls by (name, dtype), solves by whether they are certified, each n -> {seconds, gib}, and the GPU."""
    calls: dict[tuple, dict[int, dict]] = {}
    solves: dict[bool, dict[int, dict]] = {True: {}, False: {}}
    gpus = []
    rows = []
    for path in sorted([*folder.glob("*quick.json"), *folder.glob("*full.json")]):
        table = json.loads(path.read_text(encoding="utf-8"))
        rows += [row | {"name": row["name"].split("  ")[0], "gpu": table["gpu"]} for row in table["rows"]]
    for path in sorted(folder.glob("*lengths.jsonl")):
        rows += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for row in rows:
        kind = (row["name"], str(row.get("dtype", "")).split()[0] if row.get("dtype") else "")
        if kind in CALLS and "ms" in row and (row["h"], row["width"], row["causal"]) == (12, 64, True):
            calls.setdefault(kind, {})[row["n"]] = {"seconds": row["ms"] / 1e3, "gib": row.get("gib")}
            gpus.append(row["gpu"])
    for path in sorted(folder.glob("*context*.jsonl")):
        for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if record["kind"] in TYPICAL_INPUTS and record["gpu"] is not None:
                # The time of the first solve of a run includes the compilation of kernels.
                first = record["n"] == 128
                solves[record["upper"] is not None][record["n"]] = {
                    "seconds": None if first else record["wall"],
                    "gib": record["peak_gib"],
                }
                gpus.append(record["gpu"])
    return calls, solves, max(set(gpus), key=gpus.count) if gpus else "GPU"


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("benchmarks/results"))
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args(given)
    draw(arguments.folder, arguments.out)


if __name__ == "__main__":
    main()
