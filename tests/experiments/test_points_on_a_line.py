"""Searches for measures with more points: they are resumed, and find no more than what the page says."""

from __future__ import annotations

import json
import math

import pytest

from experiments import points_on_a_line as experiment
from howsmooth.lipschitz import plateau
from howsmooth.lipschitz.three_points import line_log_norm, three_point_plateau
from tests.docs.comparison import ROOT
from tests.tolerances import at_most, less


def test_a_small_search_finds_the_best_two_points_and_is_resumed(tmp_path, monkeypatch, capsys):
    out = tmp_path / "found.jsonl"
    line = ["--sizes", "2", "--points", "2", "3", "--starts", "4", "--steps", "400", "--out", str(out)]
    experiment.main(line)
    shown, records = capsys.readouterr().out, [json.loads(row) for row in out.read_text().splitlines()]
    asked = [("negative", 2), ("negative", 3), ("positive", 2), ("positive", 3)]
    assert [(one["scores"], one["points"]) for one in records] == asked  # exact: words and counts, as asked for
    for one in records:
        sign = -1.0 if one["scores"] == "negative" else 1.0
        assert line_log_norm(one["x"], one["log_masses"], sign) == pytest.approx(one["log_value"])
        assert at_most(plateau(2.0, one["scores"]).log_value, one["log_value"] + 1e-6)
    monkeypatch.setattr(experiment, "search", None)  # nothing is computed again
    experiment.main(line)
    assert capsys.readouterr().out == shown


def test_no_search_finds_more_than_three_points():
    path = ROOT / "docs" / "images" / "points_on_a_line.jsonl"
    records = [json.loads(row) for row in path.read_text(encoding="utf-8").splitlines()]
    assert {one["points"] for one in records} == {2, 3, 4, 5}
    for one in records:
        best = three_point_plateau(one["gamma_r2"], one["scores"])
        assert at_most(one["log_value"], best + 1e-9)
        if one["points"] > 3:
            assert less(best - 1e-6, one["log_value"]) and math.isfinite(best)
