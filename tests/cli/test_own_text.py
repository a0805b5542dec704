"""A short text of one's own: given as a string, and measured at the lengths and samples that it has."""

from __future__ import annotations

import hashlib
import json
import re
import shlex

import pytest

import howsmooth as package
from howsmooth.questions import QUESTIONS, find_question
from howsmooth.questions.command_line import command_line
from howsmooth.questions.spec import spec_of
from howsmooth.studies.plan import prepare

SHORT = "the old river moves slowly under the stone bridge and the light"  # 12 tokens of the tiny model
OTHER = "the old river moves slowly under the stone bridge and the stone"


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_string_is_a_text_and_records_say_which(howsmooth, tiny, tmp_path):
    path = tmp_path / "m.jsonl"
    result = howsmooth("measure", tiny, "--string", SHORT, "--lengths", "6", "--samples", "1", "--json", str(path))
    assert result.code == 0, result.err
    first = read(path)
    assert {record["text"] for record in first} == {"string"}
    assert {record["text_sha256"] for record in first} == {hashlib.sha256(SHORT.encode()).hexdigest()}
    found = package.measure(tiny, SHORT, lengths=[6], samples=1)
    assert [record["task"] for record in found] == [record["task"] for record in first]
    again = howsmooth("measure", tiny, "--string", SHORT, "--lengths", "6", "--samples", "1", "--json", str(path))
    assert "2 estimates had been in" in again.err and read(path) == first
    # Another text of the same name and number of tokens, even if its first chunk is the same, is another text.
    howsmooth("measure", tiny, "--string", OTHER, "--lengths", "6", "--samples", "1", "--json", str(path))
    assert len(read(path)) == 4


def test_the_command_of_a_string_gives_the_string(tiny):
    spec = spec_of({"models": [tiny], "texts": ["string:" + SHORT], "lengths": [6]})
    assert shlex.split(command_line(spec))[3:5] == ["--string", SHORT]


def test_python_tells_a_text_from_the_name_of_one(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = {"layers": [0], "lengths": [4], "samples": 1}
    (tmp_path / "a file.txt").write_text(OTHER)
    names = {SHORT: "string", "a file.txt": "a file.txt", "string:river bridge old of": "string", "generated:90": None}
    for text, name in names.items():
        assert package.measure(tiny, text, **few)[0]["text"] == (name or text)
    for word in ("river", "river.txt"):
        with pytest.raises(package.InputError, match=r"expected a text, got river.*path of a file.*'string:TEXT'"):
            package.measure(tiny, word, **few)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--text", "river.txt", "--string", SHORT], "expected one text, got --text and --string"),
        (["--string", ""], "expected some text, got nothing in string"),
        (["--text", "river"], "--text: expected a text, got river"),
        (["--string", SHORT, "--lengths", "6,32"], "got 12; give a longer text"),
        (["--string", SHORT, "--samples", "13"], "got 12; give a longer text"),
    ],
)
def test_what_cannot_be_measured_is_refused(howsmooth, tiny, arguments, message):
    result = howsmooth("measure", tiny, *arguments)
    assert result.code == 2 and message in result.err and len(result.errors) == 1


def test_default_lengths_and_samples_are_those_that_there_are(howsmooth, tiny, text_file):
    """The model has 64 positions; the text has 400 tokens, or 100, or 12."""
    for text, message, sizes in (
        (["--text", text_file], "tiny-gpt2.* has 64 positions: without n = 128, 256", {32: 4, 64: 4}),
        (["--string", " ".join([SHORT] * 8)], "and the given text has 96 tokens: .*3 of 4 samples at n = 32; 1 of 4",
         {32: 3, 64: 1}),
        (["--string", SHORT], "the given text has 12 tokens: n = 12 in place of 32, 64, 128, 256; 1 of 4", {12: 1}),
        (["--string", SHORT, "--lengths", "3,4"], "12 tokens: 3 of 4 samples at n = 4", {3: 4, 4: 3}),
        (["--string", SHORT, "--samples", "2"], "12 tokens: n = 6 in place of 32, 64, 128, 256$", {6: 2}),
    ):  # fmt: skip
        result = howsmooth("measure", tiny, *text, "--layers", "0", "--json", "-")
        assert result.code == 0, result.err
        notes = [line for line in result.err.splitlines() if "note:" in line]
        assert len(notes) == 1
        assert re.search(message, notes[0]), notes[0]
        found: dict[int, int] = {}
        for line in result.out.splitlines():
            n = json.loads(line)["n"]
            found[n] = found.get(n, 0) + 1
        assert found == sizes
        assert f": {sum(sizes.values())} estimates (" in result.err or sum(sizes.values()) == 1


def test_the_text_that_is_too_short_is_named(tiny, tmp_path):
    """Of two texts, and of a text that is cut into documents."""
    lines: list[str] = []
    (tmp_path / "long.txt").write_text(" ".join([SHORT] * 20))
    (tmp_path / "other.txt").write_text(SHORT)
    common = {"models": [tiny], "texts": [str(tmp_path / "long.txt")], "engine": {"workers": 0}}
    prepare(
        spec_of({"question": "distance", "other": str(tmp_path / "other.txt"), **common}), log=lines.append, timed=False
    )
    assert lines[-1] == "note: other.txt has 12 tokens: n = 12 in place of 64"
    prepare(spec_of({"cutting": "documents", "lengths": [8], **common}), log=lines.append, timed=False)
    assert lines[-1] == "note: the documents of long.txt are too short or too few: 1 of 4 samples"


def test_typed_lengths_beyond_the_positions_are_refused_before_loading(howsmooth, tiny):
    result = howsmooth(f"measure {tiny} --lengths 32,65")
    assert result.code == 2 and "expected lengths of at most 64 tokens" in result.err and "loading" not in result.err


def test_python_warns_once(tiny):
    with pytest.warns(UserWarning, match="n = 12 in place of 32, 64, 128, 256") as caught:
        found = package.measure(tiny, SHORT, layers=[0])
    assert len(caught) == 1 and [record["n"] for record in found] == [12] and caught[0].filename == __file__
    with pytest.warns(UserWarning, match="n = 12 in place of") as caught:
        package.ask("measure", tiny, SHORT, layers=[0])
    assert caught[0].filename == __file__


@pytest.mark.parametrize("question", [name for name in QUESTIONS if "texts" in find_question(name).spec.options])
def test_the_defaults_of_every_question_fit_a_short_text(tiny, question):
    """With the question's own lengths and samples, none of which the text has."""
    lines: list[str] = []
    text = " ".join([SHORT] * 2)
    name = find_question(question).spec.second_argument
    second = {} if name is None else {name: f"random:{tiny}"}
    spec = spec_of(
        {**second, "question": question, "models": [tiny], "texts": ["string:" + text], "engine": {"workers": 0}}
    )
    plan = prepare(spec, log=lines.append, timed=False)
    assert plan.count > 0 and all(places.places for places in plan.bundles())
    assert any("note: " in line for line in lines) or spec.takes_short_texts
    assert max(bundle.samples.n for bundle in plan.bundles()) <= 24


def test_a_study_without_lengths_takes_those_that_there_are_and_resumes(howsmooth, tiny, tmp_path):
    file = tmp_path / "short.toml"
    file.write_text(f'models = ["{tiny}"]\ntexts = ["string:{SHORT}"]\nlayers = [0]\nengine = {{workers = 0}}\n')
    first = howsmooth(f"study run {file}")
    assert first.code == 0 and "note: the given text has 12 tokens: n = 12 in place of" in first.err
    assert re.search(r"lengths +12 × 1 sample", first.err)
    resumed = howsmooth(f"study resume {file.with_suffix('.sqlite')}")
    assert resumed.code == 0 and "1 of 1" in resumed.err + resumed.out
