"""Where measures split: two and three atoms on a line, and the heads of real models.

    python -m experiments.figures.splitting [--records FILE.jsonl …] [--out docs/images]

Records are those of `howsmooth meanfield splitting MODEL --json FILE.jsonl`; without them, atoms on a line only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import howsmooth
from howsmooth.report.rows import model_name

PICTURES = (
    {},
    dict(masses=(1.0, 3.0)),
    dict(masses=(1.0, 10.0)),
    dict(third=1.0, masses=(1.0, 1.0, 1.0)),
    dict(masked=True),
    dict(a=1.0, extent=16.0),
)


def draw(records: list[Path], out: Path) -> None:
    """Draw atoms on a line, and the heads of each file of records."""
    out.mkdir(parents=True, exist_ok=True)
    found = howsmooth.Measurements([howsmooth.ask("splitting-line", **which)[0] for which in PICTURES])
    print(found)
    found.plot(out / "splitting-line.png")
    for path in records:
        heads = howsmooth.read(path)
        heads.plot(out / f"splitting-{model_name(heads[0]['model'])}.png")


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args(given)
    draw(arguments.records, arguments.out)


if __name__ == "__main__":
    main()
