"""The question `token-attack`: what its spec refuses, its records, short texts, and resuming."""

from __future__ import annotations

import pytest

import howsmooth
from howsmooth.errors import InputError
from howsmooth.questions import question_of, record_error
from howsmooth.questions.spec import spec_of
from howsmooth.studies import prepare, records_of

TEXT = "the river moves slowly under the old bridge\nof stone and light"


def asked(tiny, **fields):
    return howsmooth.ask("token-attack", tiny, TEXT, **{"lengths": [6], "samples": 2, "calls": 6, **fields})


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"lengths": [6, 8]}, "one length"),
        ({"layers": [1]}, "expected layers only with objective"),
        ({"layers": [0, 1], "objective": "hidden"}, "exactly one layer"),
        ({"methods": ["fast"]}, "names among"),
        ({"allow": ["insert"]}, "expected allow with substitute"),
        ({"judge": 2}, "from -1 to 1"),
    ],
)
def test_wrong_specs_are_refused(fields, words):
    with pytest.raises(InputError, match=words):
        spec_of({"question": "token-attack", **fields})


def test_every_text_and_method_has_a_valid_record(tiny):
    found = asked(tiny, methods=["random", "probe"], seed=3)
    assert [(r["sample"], r["method"]["name"], r["seed"]) for r in found] == [
        (0, "random", 3),
        (0, "probe", 3),
        (1, "random", 4),
        (1, "probe", 4),
    ]
    assert all(record_error(record) is None and question_of(record) == "token-attack" for record in found)
    assert all(r["verified"] and r["calls"] <= 6 and r["layer"] is None and r["map"] == "model" for r in found)
    assert "per 100 calls" in str(found)


def test_the_output_of_one_layer(tiny):
    (record, *_) = asked(tiny, objective="hidden", layers=[1], methods=["random"], samples=1)
    assert record["layer"] == 1 and record["objective"]["layer"] == 1 and record["map"] == "attention"


def test_a_text_has_as_many_samples_as_there_are(tiny, tmp_path):
    """A shorter text is one shorter sample; of a longer one, only whole samples are attacked."""
    (tmp_path / "river.txt").write_text(TEXT)
    declared = {"question": "token-attack", "models": [tiny], "texts": [str(tmp_path / "river.txt")]}
    words = len(howsmooth.load(tiny).tokenize(TEXT))
    for lengths, samples in (([128], [words]), ([5], [5] * (words // 5))):
        plan = prepare(spec_of({**declared, "lengths": lengths, "samples": 9, "methods": ["random"], "calls": 3}))
        found = list(records_of(plan))
        assert plan.count == len(found) and [r["n"] for r in found] == samples


def test_attacks_of_an_earlier_run_are_not_repeated(tiny, tmp_path):
    (tmp_path / "river.txt").write_text(TEXT)
    declared = {"question": "token-attack", "models": [tiny], "texts": [str(tmp_path / "river.txt")]}
    spec = spec_of({**declared, "lengths": [5], "samples": 2, "calls": 3, "methods": ["random", "greedy"]})
    places = []
    found = list(records_of(prepare(spec), progress=places.append))
    assert len(found) == len(places) == 4
    again = list(records_of(prepare(spec), found[:3], progress=places.append))
    assert again[:3] == found[:3] and len(places) == 5
    assert again[3]["attacked_ids"] == found[3]["attacked_ids"]
    other = prepare(spec.replace(seed=1))
    assert not set(other.tasks()) & set(prepare(spec).tasks())
