"""Where measures split: two and three atoms on a line, and the heads of real models.

    python -m experiments.figures.splitting [--records FILE.jsonl …] [--out docs/images]

Records are those of `howsmooth meanfield splitting MODEL --json FILE.jsonl`; without them, atoms on a line only.
Each file becomes a line of splitting-heads.jsonl: how many heads split, and the largest ratio. Of several files of one
model, the first is drawn.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import howsmooth
from experiments.records import Record
from howsmooth.records import sealed_line
from howsmooth.report.rows import model_name

PICTURES = (
    {},
    dict(masses=(1.0, 3.0)),
    dict(masses=(1.0, 10.0)),
    dict(third=1.0, masses=(1.0, 1.0, 1.0)),
    dict(masked=True),
    dict(a=1.0, extent=16.0),
)


def short_name(model: str) -> str:
    """Return the name of a model, "gpt2" for its file gpt2_attention.safetensors."""
    return model_name(model).removesuffix(".safetensors").removesuffix("_attention")


def summary(heads: Sequence[dict[str, Any]]) -> Record:
    """Return how many heads, or maps of another kind, split, where the ratio is largest, and its median at each n."""
    verdicts, largest = Counter(record["verdict"] for record in heads), max(heads, key=lambda one: one["ratio"])
    lengths = sorted({record["n"] for record in heads})
    return {
        "model": short_name(largest["model"]),
        "text": Path(largest["text"] or "").stem,
        "special_tokens": largest["special_tokens"],
        "map": largest["map"],
        "n": lengths,
        "samples": len({record["sample"] for record in heads}),
        "cases": len(heads),
        "split": verdicts["splits"],
        "undecided": verdicts["undecided"],
        "largest": {key: largest[key] for key in ("ratio", "layer", "head", "token", "n")},
        "median": [median(record["ratio"] for record in heads if record["n"] == n) for n in lengths],
    }


def draw(records: list[Path], out: Path) -> None:
    """Draw atoms on a line, and the heads of each file of records."""
    out.mkdir(parents=True, exist_ok=True)
    found = howsmooth.Measurements([howsmooth.ask("splitting-line", **which)[0] for which in PICTURES])
    print(found)
    found.plot(out / "splitting-line.png")
    summaries: dict[str, list[Record]] = {}
    for path in records:
        heads = howsmooth.read(path)
        name = short_name(heads[0]["model"])
        found = summaries.setdefault(name, [])
        if not found:
            heads.plot(out / f"splitting-{name}.png")
        found.append(summary(heads))
    if summaries:
        lines = [sealed_line(one) + "\n" for found in summaries.values() for one in found]
        (out / "splitting-heads.jsonl").write_text("".join(lines), encoding="utf-8")


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args(given)
    draw(arguments.records, arguments.out)


if __name__ == "__main__":
    main()
