"""Files of a view: CSV that can be read back, and Python code that runs as it is and gives the same numbers."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from howsmooth.explorer import Limits, exports
from howsmooth.explorer.catalog import ModelCatalog
from howsmooth.explorer.choice import Choice, prepare
from howsmooth.studies import measure, move_each_token

TEXT = 'The keeper\'s "lamp" {went} out \\n at the quay; $5 = {{x}}\nand the ships came in.'
MODEL = {"model": "minilm", "text": TEXT}
VALUES = {
    "measure": {
        **MODEL,
        "layers": "0, 1",
        "map": "attention",
        "tokens": "no-first",
        "length": 10,
        "layer": 1,
        "gains": True,
    },
    "growth": {**MODEL, "layer": 1, "lengths": (8, 12)},
    "regimes": {"sizes": "0.5, 2", "scores": "negative", "power": 6, "count": 5},
    "split": {"a": -1, "masses": "1,3", "extent": 4, "cells": 12},
    "flow": {"example": "sphere", "tokens": 4, "seed": 1},
    "attack": {**MODEL, "layer": 1, "sizes": "0.01", "attacks": ["noise", "singular"], "length": 8},
    "words-attack": {**MODEL, "method": "hotflip", "objective": "cosine", "edits": 1, "calls": 10, "length": 12},
}
WRITTEN = {
    "measure": ["tokens.png"],
    "growth": ["bounds.png", "growth.png"],
    "regimes": ["regimes.png"],
    "split": ["splitting.png"],
    "flow": ["flow.png"],
}


def run(code: str, folder: Path) -> str:
    """Run a program as a visitor would, in another folder, and return what it prints."""
    (folder / "program.py").write_text(code, encoding="utf-8")
    source = Path(exports.__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        [sys.executable, "-W", "error::SyntaxWarning", "program.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("view", VALUES)
def test_the_code_runs_as_it_is(view, tmp_path):
    assert set(VALUES) == set(exports.CODE)
    printed = run(exports.python_code(view, VALUES[view]), tmp_path)
    assert sorted(path.name for path in tmp_path.glob("*.png")) == WRITTEN.get(view, [])
    if view == "measure":
        work = prepare(Choice("minilm", TEXT, "0,1", length=10, tokens="no-first"), ModelCatalog(Limits()))
        record = list(measure(work.model, work.text, work.settings))[1]
        gains = move_each_token(work.model, work.text, work.layer(1).settings)["gains"]
        line = next(line for line in printed.splitlines() if line.strip().startswith("keeper "))
        assert f"{record['shares'][2]:.2%} of the worst direction" in line
        assert f"{gains[2] / record['value']:.1%} of the constant" in line


def test_the_code_leaves_out_gains_that_the_view_lacks(tmp_path):
    printed = run(exports.python_code("measure", {**VALUES["measure"], "map": "block", "gains": False}), tmp_path)
    assert "of the worst direction" in printed and "of the constant" not in printed
    assert (tmp_path / "tokens.png").is_file()


def test_the_text_of_a_form_is_not_code():
    code = exports.python_code("measure", {**VALUES["measure"], "text": '"""\nraise SystemExit("hacked")\n"""'})
    compiled = compile(code, "program.py", "exec")
    assert 'raise SystemExit("hacked")' not in code.splitlines() and compiled
    with pytest.raises(ValueError):
        exports.python_code("attack", {**VALUES["attack"], "sizes": "__import__('os')"})


def test_csv_of_tokens_has_all_digits_and_can_be_read_back():
    words = ["a,b", 'say "x"', "=1+1"]
    record = {"shares": [0.123456789, 0.5, 0.25], "value": 2.0}
    gains = {"gains": [1.0, 0.1 + 0.2, 0.5], "lower": [0.9, 0.2, 0.4], "upper": [1.1, 0.4, 0.6]}
    rows = exports.token_rows(record, gains, words)
    read = list(csv.DictReader(io.StringIO(exports.csv(rows, list(rows[0])))))
    assert [row["token"] for row in read] == words
    assert [float(row["gain"]) for row in read] == gains["gains"]  # exact: written with all digits
    assert float(read[0]["gain_of_constant"]) == pytest.approx(0.5)
    assert list(exports.token_rows(record, None, words)[0]) == ["position", "token", "share"]
