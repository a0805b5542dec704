"""The question ball: what its spec refuses, its records, and resuming."""

from __future__ import annotations

import json

import pytest

import howsmooth as package
from howsmooth.questions import record_error
from tests.tolerances import at_most, less

SMALL = {"layers": [0], "lengths": [4], "restarts": 2, "steps": 2, "tol": 0.1}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"eps": [0.1, -2]}, "eps: expected comma-separated positive numbers up to 1e"),
        ({"eps": "soon"}, "eps: expected comma-separated positive numbers"),
        ({"steps": 0}, "steps: expected a whole number from 1"),
        ({"norm": "text"}, "norm: .*token"),
        ({"effort": -1}, "effort: expected a whole number from 0 to 1000, got -1"),
        ({"within": "near"}, "unknown key 'within'"),
    ],
)
def test_what_the_spec_refuses(fields, message):
    with pytest.raises(package.InputError, match=message):
        package.ask("ball", **fields)


def test_it_is_asked_in_python(tiny, text_file):
    small, large = package.ask("ball", tiny, text_file, **SMALL, eps=[0.1, 0.001])
    assert [small["eps"], large["eps"]] == [0.001, 0.1]  # exact: as given
    for record in (small, large):
        assert record_error(record) is None
        assert at_most(record["found"]["value"], record["certified"])
    assert less(small["certified"], large["certified"])
    assert "≤ certified" in str(package.ask("ball", tiny, text_file, **SMALL, eps=0.01))


def test_more_effort_gives_a_smaller_certificate(tiny, text_file):
    sharp = {**SMALL, "tol": 1e-3}
    (without,), (default,) = (package.ask("ball", tiny, text_file, **sharp, eps=0.5, effort=e) for e in (0, 16))
    assert without["parts"]["form"] is None and default["method"] == "form"
    assert less(default["certified"], without["certified"])


def test_its_command_resumes(howsmooth, tiny, text_file, tmp_path, monkeypatch):
    from howsmooth.attack import search as module

    lines, searched, search = tmp_path / "balls.jsonl", [], module.worst_case
    line = f"attack ball {tiny} --text {text_file} --layers 0 --lengths 4 --restarts 2 --steps 2 --json {lines}"
    assert howsmooth(f"{line} --eps 0.01").code == 0
    monkeypatch.setattr(module, "worst_case", lambda *given, **more: searched.append(given) or search(*given, **more))
    again = howsmooth(f"{line} --eps 0.01,0.1")
    assert again.code == 0 and "1 ball had been in" in again.err and len(searched) == 1
    assert all(record_error(json.loads(written)) is None for written in lines.read_text().splitlines())
    assert howsmooth(f"{line} --eps 0.01,0.1 --seed 1").code == 0 and len(searched) == 3


def test_a_budget_for_the_whole_text_allows_less_than_one_for_each_token(tiny, text_file):
    sharp = {**SMALL, "tol": 1e-3, "eps": 0.3}
    ((each,), (together,)) = (
        package.ask("ball", tiny, text_file, **sharp, norm=norm) for norm in ("token", "frobenius")
    )
    assert (each["norm"], together["norm"]) == ("token", "frobenius") and together["vacuous_eps"] is None
    assert record_error(together) is None and at_most(together["found"]["value"], together["certified"])
    assert less(together["certified"], each["certified"])
    assert "‖X' − X‖ ≤ ε" in str(package.ask("ball", tiny, text_file, **sharp, norm="frobenius"))
