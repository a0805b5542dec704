"""One question, one answer: asked by the command, by a study, in Python and through the explorer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import howsmooth
from howsmooth.cli import main
from howsmooth.explorer.catalog import Limits, ModelCatalog
from howsmooth.explorer.choice import Choice, prepare
from howsmooth.studies import Store, measure, run_study, spec_of
from tests.tolerances import same_record

from .conftest import TEXT, save_tiny

MODEL, SOURCE = "tiny", "pasted"  # a text that the explorer is given has this name
ELSEWHERE = ("seconds", "study", "path", "versions", "commit")  # time, the name of the run, places, software
QUESTION = {"lengths": [6, 12], "layers": [0, 1], "samples": 3, "tokens": ["all", "no-first"], "tol": 1e-4}
ONE = {"lengths": [12], "layers": [0, 1], "samples": 1, "tokens": ["no-first"]}


@pytest.fixture(autouse=True)
def beside(tmp_path, monkeypatch) -> Path:
    """The folder that a model and a text lie in, and that all relative names start from."""
    save_tiny(tmp_path / MODEL)
    (tmp_path / SOURCE).write_text(TEXT, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def by_command(question: dict) -> list[dict]:
    options = [
        word
        for name, value in question.items()
        for word in (f"--{name}", ",".join(map(str, value)) if isinstance(value, list) else str(value))
    ]
    with pytest.raises(SystemExit) as left:
        main(["measure", MODEL, "--text", SOURCE, "--json", "records.jsonl", *options])
    assert left.value.code == 0
    return [json.loads(line) for line in Path("records.jsonl").read_text(encoding="utf-8").splitlines()]


def by_study(question: dict, workers: int) -> list[dict]:
    run_study(
        spec_of({"models": [MODEL], "texts": [SOURCE], **question, "engine": {"workers": workers, "threads": 1}}),
        f"{workers}.sqlite",
    )
    with Store.read(f"{workers}.sqlite") as store:
        return list(store.records())


def by_explorer(question: dict) -> list[dict]:
    choice = Choice(
        MODEL,
        TEXT,
        layers=",".join(map(str, question["layers"])),
        length=question["lengths"][0],
        tokens=question["tokens"][0],
    )
    work = prepare(choice, ModelCatalog(Limits(folders=(Path(MODEL),))))
    return list(measure(work.model, work.text, work.settings))


def ordered(records) -> list[dict]:
    """In one order: engines return the longest first."""
    return sorted(records, key=lambda r: [str(r[name]) for name in ("n", "sample", "layer", "tokens")])


def differences(one: list[dict], other: list[dict]) -> set[str]:
    """The fields in which two answers differ, "records" if they have different ones."""
    if len(one) != len(other):
        return {"records"}
    return {
        name
        for a, b in zip(ordered(one), ordered(other), strict=True)
        for name in a.keys() | b.keys()
        if name not in ELSEWHERE and not same_record(a.get(name), b.get(name), but=ELSEWHERE)
    }


def test_command_study_and_python_agree_in_every_field(capfd):
    answers = {
        "command": by_command(QUESTION),
        "study": by_study(QUESTION, 0),
        "two workers": by_study(QUESTION, 2),
        "python": list(howsmooth.measure(MODEL, SOURCE, **QUESTION)),
        "a loaded model": list(howsmooth.measure(howsmooth.load(MODEL), SOURCE, **QUESTION)),
    }
    assert len(answers["command"]) == 2 * 2 * 3 * 2
    for who, answer in answers.items():
        assert differences(answers["command"], answer) == set(), who


def test_the_explorer_agrees_as_well(capfd):
    asked, shown = by_command(ONE), by_explorer(ONE)
    assert len(asked) == 2 and differences(asked, shown) == set()


def test_the_comparison_can_fail():
    first = list(howsmooth.measure(MODEL, SOURCE, **ONE))
    assert differences(first, list(howsmooth.measure(MODEL, SOURCE, **{**ONE, "seed": 1}))) >= {"seed", "task"}
    assert differences(first, first[:1]) == {"records"}
    assert differences(first, [{**record, "value": 1.01 * record["value"]} for record in first]) == {"value"}
