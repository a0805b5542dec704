"""Run the examples; store their output beside them and their figures in docs/images.

python docs/examples                    # all examples
python docs/examples flow penalty       # only these
"""

from __future__ import annotations

import contextlib
import io
import os
import runpy
import shutil
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
IMAGES = EXAMPLES.parent / "images"


def examples() -> list[Path]:
    """Return the scripts in this folder."""
    return sorted(path for path in EXAMPLES.glob("*.py") if not path.stem.startswith("_"))


def output(script: Path, folder: Path) -> str:
    """Run a script in a folder and return its output."""
    before, out = Path.cwd(), io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        os.chdir(before)
    return out.getvalue()


def main() -> None:
    """Run the examples named on the command line, or all of them."""
    for script in examples():
        if sys.argv[1:] and script.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            text = output(script, Path(folder))
            for figure in Path(folder).glob("*.png"):
                shutil.copy(figure, IMAGES / figure.name)
        script.with_suffix(".txt").write_text(text, encoding="utf-8")
        print(f"{script.name}\n{text}", flush=True)


if __name__ == "__main__":
    main()
