"""Real depth: tokens of MiniLM and SmolLM2 through their layers.

    python docs/figures/depth.py [--out docs/images] [--redraw]

`depth.png` has a row for each model: sizes, directions, clusters, growth of a perturbation. The records behind it are
in `depth.jsonl`, one line for each depth; --redraw draws them again without computing. Two to five minutes on one core.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from howsmooth import load
from howsmooth.report.depth_figure import depth_figure
from howsmooth.report.figure import save_figure
from howsmooth.studies import Text, depth_settings, pass_through
from howsmooth.studies.lines import json_line

RUNS = (("minilm", 64), ("smollm2", 32))
LEFT_OUT = ("versions", "source", "commit", "text_sha256")  # said once, in the first line


def compute(path: Path) -> None:
    text = Text.embedded()
    with path.open("w", encoding="utf-8") as out:
        for name, n in RUNS:
            model = load(name)
            settings = depth_settings(model, text, lengths=[n])
            for passage in pass_through(model, text, settings):
                for record in passage.records(model, text, settings):
                    if out.tell():
                        record = {key: value for key, value in record.items() if key not in LEFT_OUT}
                    out.write(json_line(record) + "\n")
                    out.flush()
                    print(name, record["depth"], record["value"], flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    parser.add_argument("--redraw", action="store_true")
    chosen = parser.parse_args()
    if not chosen.redraw:
        compute(chosen.out / "depth.jsonl")
    lines = (chosen.out / "depth.jsonl").read_text(encoding="utf-8").splitlines()
    save_figure(depth_figure([json.loads(line) for line in lines]), chosen.out / "depth.png")
