"""Runs the examples and keeps what they print, beside them, and what they draw, in docs/images.

python docs/examples                    # all
python docs/examples flow penalty       # these alone
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

HERE = Path(__file__).resolve().parent
IMAGES = HERE.parent / "images"


def examples() -> list[Path]:
    return sorted(path for path in HERE.glob("*.py") if not path.stem.startswith("_"))


def output(script: Path, folder: Path) -> str:
    """What a script prints when it runs in this folder."""
    before, out = Path.cwd(), io.StringIO()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        os.chdir(before)
    return out.getvalue()


def main() -> None:
    for script in examples():
        if sys.argv[1:] and script.stem not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            text = output(script, Path(folder))
            for picture in Path(folder).glob("*.png"):
                shutil.copy(picture, IMAGES / picture.name)
        script.with_suffix(".txt").write_text(text, encoding="utf-8")
        print(f"{script.name}\n{text}", flush=True)


if __name__ == "__main__":
    main()
