"""A search finds measures that split, and its command stores them."""

from __future__ import annotations

import json

import pytest
import torch

import experiments.splitting_search as experiment
from experiments.splitting_search import main, search
from howsmooth.attention.fields import SoftmaxField
from howsmooth.errors import InputError
from howsmooth.lipschitz import splits

ONE = torch.ones(1, 1, dtype=torch.float64)


def test_search_finds_splitting_measures():
    found = search(SoftmaxField.of(-ONE, ONE), 1, 2, starts=2, steps=60, radius=6, masses=False, seed=1)
    assert 1.2 < found.ratio < 1.49
    again = splits(SoftmaxField.of(-ONE, ONE), found.points, tol=1e-6)
    assert again.splits and again.ratio == pytest.approx(found.ratio, rel=1e-5)


def test_the_command_stores_its_records(tmp_path, monkeypatch, capsys):
    line = [
        "softmax",
        "--starts",
        "2",
        "--steps",
        "60",
        "--radius",
        "6",
        "--equal-masses",
        "--seed",
        "1",
        "--out",
        str(tmp_path / "found.jsonl"),
    ]
    assert main(line) == 0
    shown = capsys.readouterr().out
    record = json.loads((tmp_path / "found.jsonl").read_text(encoding="utf-8"))
    assert 1.2 < record["ratio"] < 1.49 and record["masses"] == pytest.approx([0.5, 0.5])
    assert shown.startswith("ratio 1.") and shown.count("mass 0.5") == 2
    monkeypatch.setattr(experiment, "search", None)  # nothing is computed again
    assert main(line) == 0 and capsys.readouterr().out == shown


def test_bad_input(capsys):
    with pytest.raises(InputError, match="at least 1"):
        search(SoftmaxField.of(ONE, ONE), 2, 0)
    with pytest.raises(SystemExit) as left:
        main(["softmax", "--atoms", "0"])
    assert left.value.code == 2 and "at least 1" in capsys.readouterr().err
