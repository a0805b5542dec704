"""Signals before a divergence: AUROC by its definition, thresholds of healthy runs, and the command at a small size."""

from __future__ import annotations

import json
import math

import pytest
import torch

from experiments.alarm import __main__ as command
from experiments.alarm import evaluation, runs
from tests.tolerances import assert_close, at_most, less


def made(seed: int, onset: int | None, **signals) -> dict:
    """A run of 100 steps, measured every 10; a signal is a function of the step."""
    logs = [
        {"step": step, **{name: float(signals.get(name, lambda s: 1.0)(step)) for name in runs.SIGNALS}}
        for step in range(0, 100, 10)
    ]
    return {"fault": "none", "seed": seed, "size": [1, 8, 8, 100], "onset": onset, "logs": logs}


def test_auroc_is_the_share_of_ordered_pairs():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (40,), generator=generator).tolist()  # with ties
    labels = (torch.rand(40, generator=generator) < 0.3).tolist()
    ones, zeros = ([s for s, label in zip(scores, labels, strict=True) if label == which] for which in (True, False))
    pairs = [(a > b) + 0.5 * (a == b) for a in ones for b in zeros]
    assert_close(evaluation.auroc(scores, labels), sum(pairs) / len(pairs))
    assert math.isnan(evaluation.auroc([1.0], [True]))


def test_samples_are_before_the_divergence_and_have_a_known_future():
    assert evaluation.samples(made(0, 55), "loss", "level", 0.2) == [
        (1.0, step >= 35) for step in (0, 10, 20, 30, 40, 50)
    ]
    assert len(evaluation.samples(made(0, None), "loss", "level", 0.2)) == 9  # from step 90 on nobody knows
    assert [step for step, _ in evaluation.series(made(0, None), "loss", "rise")] == [20, 30, 40, 50, 60, 70, 80, 90]


def test_a_signal_that_knows_is_found_and_one_that_does_not_is_not(monkeypatch):
    monkeypatch.setattr(evaluation, "RESAMPLES", 50)
    given = []
    for seed in range(24):
        onset = 60 + seed if seed % 3 == 0 else None

        def knows(step, onset=onset):
            return 10.0 if onset is not None and step >= onset - 20 else 1.0 + step / 1e4

        def draws(step, seed=seed):
            return 1 + (step * 7 + seed * 13) % 5

        given.append(made(seed, onset, sigma_attention=knows, gradient_norm=draws))
    found = evaluation.evaluate(given)
    assert ("sigma_attention", 0.2) in found["better_than_gradient_norm"]
    numbers = found["signals"]["sigma_attention"]
    assert numbers["0.2"]["auroc"] > 0.95 and numbers["lead"] > 10 and numbers["warned"] == found["tested_diverged"]
    assert 0.3 < found["signals"]["largest_logit"]["0.2"]["auroc"] < 0.7  # a constant
    assert "Above the gradient norm beyond the interval: σ₁ of attention" in evaluation.shown(found)


def test_signals_of_attention_by_their_definitions():
    p = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    exact = float(torch.linalg.matrix_norm(torch.diag(p) - torch.outer(p, p), 2))
    s = p.log() - p.log().mean()
    weights = torch.eye(3, dtype=torch.float64)
    weights[2] = p
    found = runs.softmax_condition(weights)
    condition = exact * float(s.norm() / p.norm())
    assert at_most(condition, found) and less(found, 1.5 * condition)
    x = torch.tensor([1.3, -0.7], requires_grad=True)
    y = runs.rounded(x, 1)
    y.sum().backward()
    assert y.tolist() == [1.5, -0.75] and x.grad.tolist() == [1.0, 1.0]  # exact: powers of two


def test_the_command_trains_is_resumed_and_shows_a_table(tmp_path, text_file, monkeypatch, capsys):
    monkeypatch.setattr(evaluation, "RESAMPLES", 20)
    out = tmp_path / "alarm.jsonl"
    size = ["--layers", "1", "--width", "16", "--length", "8", "--steps", "11", "--seeds", "2", "--faults"]
    line = ["runs", *size, "none,rounded attention", "--texts", text_file, "--out", str(out)]
    command.main(line)
    written = out.read_text()
    records = [json.loads(text) for text in written.splitlines()]
    assert [(record["fault"], record["seed"]) for record in records] == [
        ("none", 0), ("rounded attention", 0), ("none", 1), ("rounded attention", 1)
    ]  # fmt: skip
    assert [log["step"] for log in records[0]["logs"]] == [0, 10]
    assert all(log[name] is not None for record in records for log in record["logs"] for name in runs.SIGNALS)
    capsys.readouterr()
    command.main(line)
    assert out.read_text() == written and capsys.readouterr().out == ""
    command.main(["table", "--out", str(out), "--figure", str(tmp_path / "alarm.png")])
    assert "4 runs of 1 layers, d = 16" in capsys.readouterr().out and (tmp_path / "alarm.png").exists()


@pytest.mark.parametrize("fault", runs.FAULTS)
def test_severities_differ_by_seed(fault):
    assert runs.setting_of(fault, 0) != runs.setting_of(fault, 1) and runs.setting_of(fault, 2) == runs.setting_of(
        fault, 2
    )
