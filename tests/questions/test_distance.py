"""The questions `distance` and `file-distance`: what their specs refuse, their records, and resuming."""

from __future__ import annotations

import math

import numpy as np
import pytest

import howsmooth
from howsmooth.errors import InputError
from howsmooth.questions import question_of, record_error
from howsmooth.questions.spec import spec_of
from howsmooth.studies import prepare, records_of
from tests.tolerances import close


@pytest.fixture
def files(tmp_path):
    draw = np.random.default_rng(1)
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", points=draw.normal(size=(4, 16)), times=np.arange(4) // 2)
    return [str(tmp_path / "a.npz"), str(tmp_path / "b.npz")]


@pytest.mark.parametrize(
    "question, fields, words",
    [
        ("distance", {"p": [0.5]}, "numbers from 1"),
        ("distance", {"distance": "x"}, "'auto', 'W' or 'd'"),
        ("distance", {"samples": 3}, "unknown key 'samples'"),
        ("file-distance", {}, "files of two measures, got none"),
        ("file-distance", {"files": ["a.npz"]}, "two files"),
        ("file-distance", {"files": ["a.npz", "b.txt"]}, "end in .npz"),
    ],
)
def test_wrong_specs_are_refused(question, fields, words):
    with pytest.raises(InputError, match=words):
        spec_of({"question": question, **fields})


def test_two_texts_are_the_two_samples(tiny, text_file, tmp_path):
    """With --other it is the first chunk of each text; the same chunk again is at distance 0."""
    alone = howsmooth.ask("distance", tiny, text_file, lengths=[6], layers=[0, 1], p=[2, math.inf])
    assert [(r["layer"], r["p"]) for r in alone] == [(0, 2), (0, "inf"), (1, 2), (1, "inf")]
    assert all(record_error(r) is None and question_of(r) == "distance" and r["quotient"] > 0 for r in alone)
    same = howsmooth.ask("distance", tiny, text_file, lengths=[6], layers=[0], p=[2], other=text_file)
    assert close(same[0]["before"]["value"], 0.0) and same[0]["texts"] == alone[0]["texts"]
    assert "quotient" in str(alone)


def test_another_second_text_has_another_key(tiny, text_file, tmp_path):
    tasks = []
    for content in ("the river moves slowly under the old bridge", "light and stone under the river of the bridge"):
        other = tmp_path / "other.txt"
        other.write_text(content)
        declared = {"question": "distance", "models": [tiny], "texts": [text_file], "other": str(other)}
        tasks.append(set(prepare(spec_of({**declared, "lengths": [4], "p": [2]})).tasks()))
    assert len(tasks[0]) == 2 and not tasks[0] & tasks[1]


@pytest.mark.parametrize("model", [False, True])
def test_measures_from_files(tiny, files, model):
    spec = {"question": "file-distance", "files": files, "p": [1, 2], **({"model": tiny} if model else {})}
    places = []
    plan = prepare(spec_of(spec))
    found = list(records_of(plan, progress=places.append))
    assert plan.count == len(found) == (4 if model else 2) and len(places) == len({r["layer"] for r in found})
    assert all(record_error(r) is None and question_of(r) == "file-distance" for r in found)
    assert all((r["after"] is not None) == model and r["before"]["value"] > 0 for r in found)
    again = list(records_of(prepare(spec_of(spec)), found, progress=places.append))
    assert again == found and len(places) == len({r["layer"] for r in found})  # exact: read, not computed
    np.savez(files[1], points=np.ones((3, 16)), times=np.arange(3))
    assert not set(prepare(spec_of(spec)).tasks()) & {r["task"] for r in found}


def test_ask_takes_a_model_by_name(tiny, files):
    found = howsmooth.ask("file-distance", tiny, files=files, layers=[0], p=[2], dtype="float64")
    assert found[0]["model"] and found[0]["layer"] == 0
    with pytest.raises(InputError, match="no model and no text"):
        howsmooth.ask("file-distance", tiny, "a text\nof two lines", files=files)


def test_a_study_with_code_of_its_own_needs_a_flag(files):
    spec = spec_of({"question": "file-distance", "files": files, "model": {"name": "minilm", "allow_pickle": True}})
    with pytest.raises(InputError, match="--allow-pickle on the command line"):
        prepare(spec)
