"""`howsmooth attack tokens` on a tiny checkpoint: the difference, the table, saved attacks, bad input."""

from __future__ import annotations

import json

import pytest

from howsmooth import load
from howsmooth.attack.tokens import verify

SMALL = "--length 12 --texts 2 --calls 18"


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_method_and_its_table(howsmooth, tiny, text_file):
    result = howsmooth(f"attack tokens {tiny} --text {text_file} {SMALL} --method all")
    assert result.code == 0, result.err
    assert all(f"\n {name} " in result.out for name in ("random", "hotflip", "greedy", "beam", "singular"))
    assert "per 100 calls" in result.out and "next:" in result.out
    assert "{+" in result.out and "\x1b[" not in result.out  # marks that a pipe keeps, and no colours in it


def test_records_hold_when_evaluated_again(howsmooth, tiny, text_file):
    result = howsmooth(f"attack tokens {tiny} --text {text_file} {SMALL} --method beam,hotflip --json -")
    assert result.code == 0, result.err
    records, model = read(result.out), load(tiny)
    assert len(records) == 4 and {record["piece"] for record in records} == {0, 1}
    for record in records:
        assert record["verified"] and verify(model, record).holds
        assert record["calls"] <= 18 and len(record["edits"]) <= 2


def test_what_was_saved_is_not_repeated(howsmooth, tiny, text_file, tmp_path):
    saved = tmp_path / "attacks.jsonl"
    line = f"attack tokens {tiny} --text {text_file} {SMALL} --method beam,random --save {saved}"
    assert howsmooth(line).code == 0
    whole = saved.read_text()
    assert len(read(whole)) == 4
    saved.write_text(whole[: whole.rindex("{") + 40])  # killed while writing the last line
    again = howsmooth(line)
    assert again.code == 0 and "3 of them were in" in again.err
    first, last = read(whole), read(saved.read_text())
    assert first[:3] == last[:3]
    assert [record["attacked_ids"] for record in first] == [record["attacked_ids"] for record in last]
    more = howsmooth(f"{line} --seed 5")  # another seed is another attack
    assert more.code == 0 and len(read(saved.read_text())) == 8


@pytest.mark.parametrize("objective", ["kl", "hidden --layer 1", "cosine", "hidden --threshold 0.01"])
def test_objectives(howsmooth, tiny, text_file, objective):
    result = howsmooth(f"attack tokens {tiny} --text {text_file} {SMALL} --objective {objective} --json -")
    assert result.code == 0, result.err
    assert all(record["value"] > 0 for record in read(result.out))
    assert all(record["success"] == ("threshold" in objective) for record in read(result.out))


def test_a_short_text_is_one_piece(howsmooth, tiny, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("the river moves slowly under the old bridge")
    result = howsmooth(f"attack tokens {tiny} --text {short} --method beam --calls 9 --json -")
    record, = read(result.out)
    assert record["n"] == 8


@pytest.mark.parametrize("options, said", [
    ("--edits 0", "--edits"), ("--edits 12", "at most 11"), ("--calls 2", "--calls"), ("--method fast", "methods"),
    ("--allow remove", "kinds of edits"), ("--objective loud", "loud"), ("--layer 1", "only with the objective hidden"),
    ("--objective hidden --layer 7", "layer"), ("--similarity 2", "--similarity"), ("--protect 90", "protected"),
    ("--save -", "--json -"), ("--save no/such/folder/x", "no/such/folder"), ("--length 65", "64"),
])
def test_bad_input(howsmooth, tiny, text_file, options, said):
    result = howsmooth(f"attack tokens {tiny} --text {text_file} --length 12 {options}")
    assert result.code == 2 and said in result.err and result.err.count("\n") == 1, result.err


def test_one_token_is_too_short(howsmooth, tiny, tmp_path):
    one = tmp_path / "one.txt"
    one.write_text("river")
    result = howsmooth(f"attack tokens {tiny} --text {one}")
    assert result.code == 2 and "at least 2 tokens" in result.err and result.err.count("\n") == 1


def test_a_file_of_something_else_is_not_touched(howsmooth, tiny, text_file, tmp_path):
    other = tmp_path / "notes.txt"
    other.write_text("my notes\nare here\n")
    result = howsmooth(f"attack tokens {tiny} --text {text_file} {SMALL} --save {other}")
    assert result.code == 2 and "line 1" in result.err
    assert other.read_text() == "my notes\nare here\n"
