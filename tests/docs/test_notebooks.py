"""The notebooks run, print what they show, open in Colab, and are small."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import howsmooth
from tests import reasons
from tests.docs.comparison import ROOT, difference

FOLDER = ROOT / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]
MAX_BYTES = 300_000


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def text(cell: dict) -> str:
    return "".join(cell["source"])


def printed(cell: dict) -> str:
    """Return what a cell prints to stdout."""
    return "".join("".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream")


def code(path: Path) -> list[dict]:
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def test_there_are_four():
    assert NAMES == ["bounds", "first_measurement", "own_model", "watch_training"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_is_executed_and_small(path):
    cells = code(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run make notebooks"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result"}, "no error"
    assert path.stat().st_size < MAX_BYTES
    assert not re.search(r"(/home/|/root/|/tmp/|site-packages|[A-Z]:\\\\)", path.read_text(encoding="utf-8"))
    shown = ["".join(output["data"]["text/html"]) for output in outputs if "text/html" in output.get("data", {})]
    assert len(shown) >= 3 and all(html.startswith('<div class="howsmooth">') for html in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_a_notebook_opens_in_colab_and_is_linked(path):
    link = f"https://colab.research.google.com/github/howsmooth/howsmooth/blob/main/notebooks/{path.name}"
    assert f"]({link})" in text(read(path)["cells"][0])
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({link})" in readme and f"](notebooks/{path.name})" in readme


def test_links_between_notebooks_have_targets():
    for path in NOTEBOOKS:
        for cell in read(path)["cells"]:
            for target in re.findall(r"\]\((?!http)([^)]+)\)", text(cell)):
                assert (FOLDER / target).exists(), f"{path.name}: {target}"


@pytest.mark.slow
def test_notebooks_run_and_print_what_they_show(tmp_path):
    """In a kernel of their own, in one process: what differs from the stored output by more than rounding is found."""
    pytest.importorskip("nbclient", reason=reasons.extra("nbclient", "notebook"))
    pytest.importorskip("ipykernel", reason=reasons.extra("ipykernel", "notebook"))
    environment = {**os.environ, "PYTHONPATH": str(Path(howsmooth.__file__).parents[1]), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(FOLDER), "--out", str(tmp_path)]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-5000:]
    for path in NOTEBOOKS:
        fresh, stored = read(tmp_path / path.name), read(path)
        assert [text(cell) for cell in fresh["cells"]] == [text(cell) for cell in stored["cells"]]
        for new, old in zip(code(tmp_path / path.name), code(path), strict=True):
            assert difference(printed(new), printed(old)) is None, f"{path.name}: {text(old)}"
            assert [output["output_type"] for output in new["outputs"]] == [
                output["output_type"] for output in old["outputs"]
            ]
