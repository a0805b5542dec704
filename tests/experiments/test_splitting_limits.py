"""Ratios with many digits agree with the criterion in float64, and the command is resumed."""

from __future__ import annotations

import json

import mpmath
import pytest
import torch

from experiments import splitting_limits as experiment
from howsmooth.attention.fields import L2Field, SoftmaxField
from howsmooth.lipschitz.criterion import criterion
from tests.tolerances import at_most, less

ONE = torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize("kind, d", [("l2", 1), ("softmax", 2)])
def test_the_ratio_is_that_of_the_criterion(kind, d):
    points = torch.randn(2, d, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    field = (
        L2Field(ONE, -ONE, ONE)
        if kind == "l2"
        else SoftmaxField.of(torch.diag(torch.tensor([1.0, 0.1], dtype=torch.float64)), torch.eye(2).double())
    )
    logs = torch.tensor([0.0, 0.7], dtype=torch.float64)
    with mpmath.workdps(30):
        found, norm = experiment.ratio(kind, 10.0, points.tolist(), logs.tolist())
    expected = criterion(field, points, logs)
    assert float(found) == pytest.approx(expected.ratio, rel=1e-12)
    assert float(norm) == pytest.approx(expected.norm, rel=1e-12)


def test_the_command_evaluates_families_and_searches_and_is_resumed(tmp_path, monkeypatch, capsys):
    for name, value in (("DISTANCES", (3,)), ("CONDITIONS", (10,)), ("SIZES", (100,)), ("SEARCHED", (10.0,))):
        monkeypatch.setattr(experiment, name, value)
    line = ["--starts", "3", "--steps", "100", "--out", str(tmp_path / "limits.jsonl")]
    experiment.main(line)
    shown = capsys.readouterr().out
    found = [json.loads(row) for row in (tmp_path / "limits.jsonl").read_text().splitlines()]
    assert [record["kind"] for record in found] == ["l2", "softmax", "search", "search"]
    assert found[0]["ratio"] == pytest.approx(156.786, rel=1e-5) and found[1]["ratio"] == pytest.approx(
        1.73668, rel=1e-5
    )
    assert all(less(0, record["ratio"]) and at_most(record["ratio"], record["limit"]) for record in found[1:])
    monkeypatch.setattr(experiment, "search", None)  # nothing is computed again
    experiment.main(line)
    assert capsys.readouterr().out == shown
