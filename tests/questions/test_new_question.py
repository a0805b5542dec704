"""A question is one file: with one entry in the registry it has a command, a study, a page and a function."""

from __future__ import annotations

import json
import re
import sys

import pytest

import howsmooth as package
from howsmooth.questions import QUESTIONS, Entry, record_error
from tests.cli.conftest import TEXT
from tests.questions import radius_question
from tests.tolerances import close


@pytest.fixture
def registered(monkeypatch) -> None:
    import howsmooth.questions as questions

    monkeypatch.setitem(sys.modules, "howsmooth.questions.radius", radius_question)
    monkeypatch.setitem(QUESTIONS, "radius", Entry("radius", "Norms of the tokens that enter attention.", ("radius",)))
    monkeypatch.setitem(questions._QUESTION_OF, "radius", "radius")


def test_a_question_that_is_not_registered_is_refused():
    with pytest.raises(package.InputError, match=r"expected a question among measure, .*bound, .*got 'radius'"):
        package.ask("radius")


def test_it_is_asked_in_python(registered, tiny, text_file):
    found = package.ask("radius", tiny, text_file, layers=[1], lengths=[4, 8], power=1)
    assert [(record["layer"], record["n"], record["kind"]) for record in found] == [(1, 4, "radius"), (1, 8, "radius")]
    assert all(record_error(record) is None for record in found)
    model = package.load(tiny)
    (chunk,) = model.chunks(TEXT, 4, 1)
    x = model.activations(chunk, [1])[1]
    assert close(found[0]["value"], float(x.double().norm(dim=-1).mean()), 1e-6)
    assert "Norms of tokens" in str(found)
    with pytest.raises(package.InputError, match="power: expected a finite number from 1 to 100, got 0"):
        package.ask("radius", tiny, text_file, power=0)


def test_its_command_resumes_and_its_page_is_drawn_again(registered, howsmooth, tiny, text_file, tmp_path, monkeypatch):
    from howsmooth.cli.main import group, question_entries

    monkeypatch.setitem(group.entries, "radius", question_entries("")["radius"])
    lines, page, plot = tmp_path / "r.jsonl", tmp_path / "r.html", tmp_path / "r.svg"
    line = f"radius {tiny} --text {text_file} --lengths 4,8 --json {lines}"
    assert howsmooth(f"{line} --lengths 4").code == 0 and len(lines.read_text().splitlines()) == 2
    ran = howsmooth(f"{line} --plot {plot} --report {page}")
    assert ran.code == 0 and "2 norms had been in" in ran.err and "<svg" in plot.read_text()
    assert len(lines.read_text().splitlines()) == 4
    again = tmp_path / "again.html"
    assert howsmooth(f"report {lines} --report {again}").code == 0
    for html in (page.read_text(), again.read_text()):
        assert "Norms of the tokens that enter attention." in html and "mean norm" in html
    assert "--power" in howsmooth("radius --help").out
    assert "--power: expected a finite number" in howsmooth(f"radius {tiny} --power x").err


def test_a_study_asks_it(registered, howsmooth, tiny, text_file, tmp_path):
    study = tmp_path / "norms.toml"
    study.write_text(
        f'question = "radius"\nmodels = ["{tiny}"]\ntexts = ["{text_file}"]\nlengths = [4, 8]\npower = 1.0\n'
        "[engine]\nworkers = 0\n"
    )
    ran = howsmooth(f"study run {study}")
    assert ran.code == 0, ran.err
    assert "\nmemory " in ran.err and "\ntime " not in ran.err, "times are estimated for measure alone"
    exported = howsmooth(f"study export {study}").out.splitlines()
    assert len(exported) == 4 and all(record_error(json.loads(line)) is None for line in exported)
    assert "4 of 4 tasks done" in howsmooth(f"study status {study}").out
    assert howsmooth(f"report {study} --report {tmp_path / 'p.html'}").code == 0
    study.write_text(study.read_text().replace("power", "radius"))
    refused = howsmooth(f"study run {study}")
    assert refused.code == 2 and "unknown key 'radius'" in refused.err


def test_a_study_may_ask_several_questions(registered, howsmooth, tiny, text_file, tmp_path):
    study, store = tmp_path / "several.toml", tmp_path / "several.sqlite"
    study.write_text(
        f'question = ["measure", "radius"]\nmodels = ["{tiny}"]\ntexts = ["{text_file}"]\nlengths = [4, 8]\n'
        "samples = 1\n[radius]\npower = 1.0\n[measure]\nlayers = [0]\n[engine]\nworkers = 0\n"
    )
    ran = howsmooth(f"study run {study}")
    assert ran.code == 0 and "6 of 6 tasks done" in ran.err and "Norms of tokens" in ran.out and "layer" in ran.out
    kinds = [json.loads(line)["kind"] for line in howsmooth(f"study export {store}").out.splitlines()]
    assert kinds == ["measurement"] * 2 + ["radius"] * 4
    resumed = howsmooth(f"study resume {store}")
    assert resumed.code == 0 and "6 of 6 tasks done" in resumed.err


@pytest.mark.parametrize(
    "text, message",
    [
        ('question = "bounds"', "expected a question among .*'bounds'; did you mean 'bound'"),
        ('question = ["measure", "radius"]\npower = 1.0', "all questions take, got 'power', which measure does not"),
        ('question = ["measure", "radius"]\n[radius]\npower = 0', "question radius: power: expected a finite number"),
        ("question = []", "expected a question, got an empty list"),
    ],
)
def test_questions_that_clash_are_refused_in_one_line(registered, howsmooth, tmp_path, text, message):
    study = tmp_path / "clash.toml"
    study.write_text(text + "\n")
    refused = howsmooth(f"study validate {study}")
    assert refused.code == 2 and len(refused.errors) == 1 and re.search(message, refused.err), refused.err
