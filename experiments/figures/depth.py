"""Real depth: tokens of MiniLM and SmolLM2 through their layers.

    python -m experiments.figures.depth [--out docs/images] [--redraw]

`depth.png` has a row for each model: sizes, directions, clusters, growth of a perturbation. The records behind it are
in `depth.jsonl`, one line for each depth; --redraw draws them again without computing. Two to five minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from howsmooth import load
from howsmooth.records import json_line
from howsmooth.report.figure import save_figure
from howsmooth.report.flow_figures import depth_figure
from howsmooth.studies import chosen_depths, depth_trajectories, spec_of
from howsmooth.texts.corpora import read_corpus

RUNS = (("minilm", 64), ("smollm2", 32))
ONLY_IN_FIRST_LINE = ("versions", "source", "commit", "text_sha256")


def compute(path: Path) -> None:
    """Compute the records of all runs and write them to a file, one line for each depth."""
    corpus = read_corpus("embedded")
    with path.open("w", encoding="utf-8") as out:
        for name, n in RUNS:
            model = load(name)
            spec = spec_of({"lengths": [n], "samples": 1, "tol": 1e-2})
            depths = chosen_depths(model, corpus, spec)
            for trajectory in depth_trajectories(model, corpus, spec):
                for record in trajectory.records(model, corpus, spec, depths):
                    if out.tell():
                        record = {key: value for key, value in record.items() if key not in ONLY_IN_FIRST_LINE}
                    out.write(json_line(record) + "\n")
                    out.flush()
                    print(name, record["depth"], record["value"], flush=True)


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--redraw", action="store_true")
    chosen = parser.parse_args(given)
    if not chosen.redraw:
        compute(chosen.out / "depth.jsonl")
    lines = (chosen.out / "depth.jsonl").read_text(encoding="utf-8").splitlines()
    save_figure(depth_figure([json.loads(line) for line in lines]), chosen.out / "depth.png")


if __name__ == "__main__":
    main()
