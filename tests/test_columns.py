"""Records in columns are the records, whatever they contain; their groups are those of plain lists."""

from __future__ import annotations

import random

import pytest

from howsmooth.records import columns
from howsmooth.records.columns import Records, column, distinct, fields, group_by, where
from tests.seeds import seeds

VALUES = (None, True, False, 0, 1, 1.0, 0.0, -0.0, -1, 2**70, 1e308, "", "a", "1", "\x00é", [], {}, [1], [True], [1.0])
VALUES += ({"a": 1}, {"a": True}, {"a": {"b": [None, "x"]}}, [0.0], [-0.0])
NAMES = ("model", "layer", "n", "value", "source")


def drawn(rng: random.Random) -> list[dict]:
    """Return records with few different values, some fields missing or always the same."""
    choices = {name: rng.sample(VALUES, rng.choice((1, 2, 5))) for name in NAMES}
    missing = {name: rng.choice((0, 0, 0.5)) for name in NAMES}
    return [
        {name: rng.choice(choices[name]) for name in NAMES if rng.random() >= missing[name]}
        for _ in range(rng.choice((0, 1, 5, 30)))
    ]


def in_order(record: dict) -> str:
    """Return a record as text: a column may be before another one that it came after."""
    return repr(sorted(record.items()))


@pytest.mark.random
def test_records_come_back_as_they_were(monkeypatch):
    """Types and signs of zeros as well, which equality does not see."""
    for seed in seeds(300):
        rng = random.Random(seed)
        monkeypatch.setattr(columns, "_SIZE", rng.choice((1, 4, 64)))
        plain = drawn(rng)
        kept = Records(plain)
        assert [in_order(row) for row in kept] == [in_order(row) for row in plain], seed
        assert len(kept) == len(plain) and all(repr(kept[-i]) == repr(kept[len(kept) - i]) for i in range(1, len(kept)))
        assert list(map(str, kept[1:9:2])) == list(map(str, list(kept)[1:9:2])), seed
        for name in NAMES:
            assert repr(column(kept, name)) == repr(column(plain, name)), seed
            assert repr(distinct(kept, name)) == repr(distinct(plain, name)), seed


@pytest.mark.random
def test_groups_are_those_of_lists(monkeypatch):
    plain_names = ("model", "layer")
    for seed in seeds(200, 1000):
        rng = random.Random(seed)
        monkeypatch.setattr(columns, "_SIZE", rng.choice((1, 4, 64)))
        plain = [
            {"model": rng.choice("ab"), "layer": rng.choice((None, 0, 1)), "value": rng.random(), "index": index}
            for index in range(rng.choice((0, 1, 5, 30)))
        ]
        kept = Records(plain)
        groups, expected = group_by(kept, *plain_names), group_by(plain, *plain_names)
        assert list(groups) == list(expected) and {key: list(group) for key, group in groups.items()} == expected
        for key, group in groups.items():  # groups of groups
            nested, of_list = group_by(group, "layer", "index"), group_by(expected[key], "layer", "index")
            assert {key: list(inner) for key, inner in nested.items()} == of_list
        large = where(kept, lambda value: value > 0.5, "value")
        assert list(large) == [record for record in plain if record["value"] > 0.5]
        assert list(fields(large, "index", "none")) == [(record["index"], None) for record in large]


def test_an_index_beyond_the_end():
    kept = Records([{"n": 1}])
    for index in (1, -2):
        with pytest.raises(IndexError, match="expected an index below 1"):
            kept[index]
    assert kept[5:] == [] and list(Records()) == [] and group_by(Records(), "n") == {}
