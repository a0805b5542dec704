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

import howsmooth
from howsmooth.records import json_line
from howsmooth.report.figure import draw, save_figure
from howsmooth.report.flow_charts import depth_picture

RUNS = (("minilm", 64), ("smollm2", 32))
NOT_DRAWN = ("words", "coordinates", "axes")
ONLY_IN_FIRST_LINE = ("versions", "source", "commit", "text_sha256")


def compute(path: Path) -> None:
    """Compute the records of all runs and write them to a file, one line for each depth."""
    with path.open("w", encoding="utf-8") as out:
        for name, n in RUNS:
            for record in howsmooth.ask("depth", name, lengths=[n]):
                hidden = NOT_DRAWN + (ONLY_IN_FIRST_LINE if out.tell() else ())
                out.write(json_line({key: value for key, value in record.items() if key not in hidden}) + "\n")
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
    save_figure(draw(depth_picture([json.loads(line) for line in lines])), chosen.out / "depth.png")


if __name__ == "__main__":
    main()
