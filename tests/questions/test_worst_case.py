"""The question worst-case: what its spec refuses, its records, resuming, and its tables."""

from __future__ import annotations

import json

import pytest

import howsmooth as package
from howsmooth.questions import record_error
from howsmooth.questions.worst_case import WorstCaseSpec
from howsmooth.report.attacks import worst_case_tables
from tests.tolerances import at_most, less

SMALL = {"layers": [0], "lengths": [4], "restarts": 2, "steps": 2, "tol": 0.1}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"within": "near"}, 'expected eps with within = "near" and only there, got within = "near" without it'),
        ({"eps": 0.1}, 'got within = "norm" with it'),
        ({"within": "cube"}, "within: .*cube"),
        ({"radius": -1}, "expected norm, data or a positive number"),
        ({"eps": 0, "within": "near"}, "eps: expected a finite number between 0 and 1e"),
        ({"restarts": 0}, "restarts: expected a whole number from 1"),
        ({"samples": 2}, "unknown key 'samples'"),
    ],
)
def test_what_the_spec_refuses(fields, message):
    with pytest.raises(package.InputError, match=message):
        package.ask("worst-case", **fields)


def test_defaults():
    spec = WorstCaseSpec()
    assert (spec.lengths, spec.samples, spec.within, spec.restarts, spec.steps) == ((64,), 1, "norm", 16, 100)


def test_it_is_asked_in_python(tiny, text_file, tmp_path):
    found = package.ask("worst-case", tiny, text_file, **SMALL, heads=[0, 1], artefacts=tmp_path / "made" / "here")
    assert [(record["layer"], record["head"], record["n"]) for record in found] == [(0, 0, 4), (0, 1, 4)]
    for record in found:
        assert record_error(record) is None
        assert less(record["on_text"]["value"], record["value"])
        assert at_most(record["value"], record["upper_bound"]["value"])
    assert {record["file"] for record in found} == {path.name for path in (tmp_path / "made" / "here").iterdir()}
    assert "the largest Lip that ascent found" in str(found)


def test_its_command_resumes(howsmooth, tiny, text_file, tmp_path, monkeypatch):
    from howsmooth.attack import search as attack

    lines, searched, search = tmp_path / "worst.jsonl", [], attack.worst_case
    line = f"attack worst-case {tiny} --text {text_file} --layers 0 --lengths 4 --restarts 2 --steps 2 --json {lines}"
    assert howsmooth(line).code == 0
    monkeypatch.setattr(attack, "worst_case", lambda *given, **more: searched.append(given) or search(*given, **more))
    again = howsmooth(line)
    assert again.code == 0 and "1 worst case had been in" in again.err and searched == []
    assert howsmooth(f"{line} --within sphere").code == 0 and len(searched) == 1
    records = [json.loads(written) for written in lines.read_text().splitlines()]
    assert [record["within"] for record in records] == ["norm", "sphere"]
    assert [record_error(record) for record in records] == [None, None]


def test_each_set_of_tokens_has_a_table_of_its_own(tiny, text_file):
    near = package.ask("worst-case", tiny, text_file, **SMALL, within="near", eps=0.1)
    norm = package.ask("worst-case", tiny, text_file, **SMALL)
    first, second = worst_case_tables([*near, *norm])
    assert "within ε of the text's" in first.title and "put out" in second.title
    random_ids, _ = worst_case_tables([{**record, "inputs": "ids"} for record in (*near, *norm)])
    assert "within ε of those measured" in random_ids.title and {"on tokens", "over tokens"} <= set(random_ids.headings)
