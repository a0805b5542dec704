"""The heads of a tiny model at the published configuration, at random tokens, and at the two-point input."""

from __future__ import annotations

import json

import pytest
import torch

from experiments import adversarial_heads as experiment
from howsmooth import load
from howsmooth.attack.configurations import castin


def test_heads_are_compared_at_all_inputs_and_resumed(tiny, tmp_path, monkeypatch, capsys):
    line = ["--model", tiny, "--heads", "1", "--lengths", "6", "--seeds", "2", "--out", str(tmp_path / "heads.jsonl")]
    experiment.main(line)
    shown = capsys.readouterr().out
    found = [json.loads(row) for row in (tmp_path / "heads.jsonl").read_text().splitlines()]
    assert f"heads {len(found)}" in shown and all(len(record["random"]) == 2 for record in found)
    head = load(tiny).attention(0, 6).converted(dtype=torch.float64).head(0)
    for sign, value in zip((1, -1), found[0]["signs"], strict=True):
        jacobian = head.jacobian(castin(head, 6, found[0]["R"], sign=sign).tokens).dense()
        assert value == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=0.02)
    A = head.wk.mT @ head.wq * head.scale
    extremes = torch.linalg.eigvalsh((A + A.mT) / 2)
    gamma = max(-float(extremes[0]), float(extremes[-1]) / 8)
    assert found[0]["gamma_r2"] == pytest.approx(gamma * found[0]["R"] ** 2, rel=1e-4)
    monkeypatch.setattr(experiment, "measured", None)  # nothing is computed again
    experiment.main(line)
    assert capsys.readouterr().out == shown


def test_counts_compare_with_the_better_sign():
    records = [
        {"signs": [1.0, 3.0], "random": [2.0, 4.0], "two_point": 5.0, "saturated": 3.0},
        {"signs": [2.0, 1.0], "random": [1.5, 1.5], "two_point": 1.0, "saturated": 9.0},
    ]
    found = experiment.summary(records)
    assert found["random_each"] == [0, 1] and (found["random_any"], found["random_any_worse_sign"]) == (1, 2)
    assert (found["two_point"], found["near_saturated"]) == (1, 1)
