"""The questions layer-attack and model-attack: what their specs refuse, their records, resuming, and their tables."""

from __future__ import annotations

import json

import pytest
import torch

import howsmooth as package
from howsmooth.attack.feature import verify
from howsmooth.questions import record_error
from howsmooth.questions.layer_attack import ATTACKS, Baselines, named_attack
from howsmooth.report.attacks import feature_tables
from tests.tolerances import at_most, less

SMALL = {"lengths": [6], "steps": 2, "tol": 0.1}


@pytest.mark.parametrize(
    "question, fields, message",
    [
        (
            "layer-attack",
            {"perturbed_tokens": 65, "lengths": [8]},
            "perturbed_tokens up to the shortest length, 8, got 65",
        ),
        ("layer-attack", {"attacks": "guess"}, "attacks: expected names among noise"),
        ("layer-attack", {"budget": [0.1, 0]}, "budget: expected comma-separated positive numbers"),
        ("layer-attack", {"objective": "cosine"}, "unknown key 'objective'"),
        ("model-attack", {"objective": "beauty"}, "objective: .*beauty"),
        ("model-attack", {"layers": [0]}, "unknown key 'layers'"),
        ("model-attack", {"norm": "nuclear"}, "norm: .*nuclear"),
    ],
)
def test_what_the_specs_refuse(question, fields, message):
    with pytest.raises(package.InputError, match=message):
        package.ask(question, **fields)


def test_every_attack_has_a_name():
    assert len({named_attack(name).name for name in ATTACKS}) == len(ATTACKS)
    assert named_attack("ascent", steps=3).as_record()["steps"] == 3


def test_attacks_on_a_layer(tiny, text_file, tmp_path, monkeypatch):
    made, make = [], Baselines.__init__
    monkeypatch.setattr(Baselines, "__init__", lambda self, *given: made.append(self) or make(self, *given))
    budget, attacks = [0.01, 0.1], ["split", "noise", "ascent", "split-ascent"]
    more = {"layers": [1], "heads": [0], "dtype": "float64", "norm": "token", "artefacts": tmp_path}
    found = package.ask("layer-attack", tiny, text_file, **SMALL, **more, budget=budget, attacks=attacks)
    # exact: as given
    assert [(record["share"], record["attacked_n"]) for record in found] == [
        (share, n) for share in budget for n in (12, 6, 6, 12)
    ]
    assert len(made) == 2  # of the tokens as they are, and of their copies
    for record in found:
        assert record_error(record) is None and record["kind"] == "layer attack"
        assert at_most(record["gain"], record["certified"])
        assert verify(tmp_path / record["file"], model=package.load(tiny, dtype=torch.float64)).holds


@pytest.mark.parametrize("objective", ["output", "next-token", "cosine"])
def test_attacks_on_a_model(tiny, text_file, objective):
    noise, ascent = package.ask(
        "model-attack", tiny, text_file, **SMALL, objective=objective, budget=0.3, attacks=["noise", "ascent"]
    )
    assert less(noise["change"], ascent["change"])
    for record in (noise, ascent):
        assert record_error(record) is None and record["kind"] == "model attack"
        assert record["layer"] is None and record["map"] == "model" and record["objective"]["name"] == objective
    assert "attacks on" in feature_tables([noise, ascent])[0].title


def test_numbers_that_overflow_are_none(tiny, text_file):
    found = package.ask("layer-attack", tiny, text_file, **SMALL, layers=[0], budget=1e30, attacks=["noise"])
    (record,) = found
    assert record["gain"] is None and record["status"] == "not finite" and record_error(record) is None
    assert "none !" in str(found)


def test_the_command_resumes(howsmooth, tiny, text_file, tmp_path):
    lines = tmp_path / "attacks.jsonl"
    line = f"attack model {tiny} --text {text_file} --lengths 6 --attack noise --json {lines}"
    assert howsmooth(f"{line} --budget 0.1").code == 0
    before = lines.read_text()
    again = howsmooth(f"{line} --budget 0.1,0.2 --perturbed-tokens 6")
    assert again.code == 0 and "had been" not in again.err  # another set of perturbations
    again = howsmooth(f"{line} --budget 0.1,0.2")
    assert again.code == 0 and "1 attack had been in" in again.err
    records = [json.loads(written) for written in lines.read_text().splitlines()]
    assert lines.read_text().startswith(before) and len(records) == 4
    assert [record_error(record) for record in records] == [None] * 4
    assert [table.title.count("on 6 tokens") for table in feature_tables(records)] == [0, 1]
