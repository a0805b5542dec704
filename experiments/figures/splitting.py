"""Where measures split: two and three atoms on a line, and the heads of real models.

    python -m experiments.figures.splitting [--records FILE.jsonl …] [--out docs/images]

Records are those of `howsmooth meanfield splitting MODEL --json FILE.jsonl`; without them, atoms on a line only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from howsmooth.lipschitz.criterion import line_splitting_grid
from howsmooth.report.figure import save_figure
from howsmooth.report.mean_field_figures import heads_figure, line_figure, title
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
    drawn = []
    for which in PICTURES:
        axis, found = line_splitting_grid(**which)
        name = title(which.get("a", -1.0), which.get("masses", (1.0, 1.0)), which.get("third"))
        drawn.append(
            {"title": name + (", masked, x first" if which.get("masked") else ""), "axis": axis, "ratio": found.ratio}
        )
        print(
            f"{drawn[-1]['title']}: {100 * float(found.splits.double().mean()):.3g} % splits, ratio up to "
            f"{float(found.ratio.max()):.5g}"
        )
    save_figure(line_figure(drawn), out / "splitting-line.png")
    for path in records:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        save_figure(heads_figure(lines), out / f"splitting-{model_name(lines[0]['model'])}.png")


def main(given: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=Path, nargs="*", default=[])
    parser.add_argument("--out", type=Path, default=Path("docs/images"))
    arguments = parser.parse_args(given)
    draw(arguments.records, arguments.out)


if __name__ == "__main__":
    main()
