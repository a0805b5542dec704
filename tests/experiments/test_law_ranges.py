"""Laws of parts of a curve: the record has all values, and a part is what it says."""

from __future__ import annotations

import json

import pytest

from experiments import law_ranges

RECORD = {
    "grid": "paper",
    "n": [2, 4, 8, 16, 32, 64, 128],
    "values": [[3 * n**0.25, 3.01 * n**0.25, 2.99 * n**0.25] for n in (2, 4, 8, 16, 32, 64, 128)],
}


def test_a_part_of_a_curve():
    law = law_ranges.law_of(RECORD)
    assert (law.lengths, law.points) == (7, 21) and law_ranges.has_quarter(law)
    assert law_ranges.law_of(RECORD, every=2).lengths == 4
    assert law_ranges.law_of(RECORD, samples=2).points == 14
    assert law_ranges.law_of(RECORD, longest=16).lengths == 4
    assert law_ranges.law_of(RECORD, longest=8).exponent is None  # three lengths: no law


def test_a_curve_that_bends_has_no_quarter():
    bent = {**RECORD, "values": [[min(n, 16) ** 0.5, 1.001 * min(n, 16) ** 0.5] for n in RECORD["n"]]}
    assert not law_ranges.has_quarter(law_ranges.law_of(bent))


def test_the_command_writes_curves_and_is_resumed(tiny, text_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(law_ranges.GRIDS, "paper", {"lengths": [2, 3, 4, 5], "samples": 2, "special_tokens": "none"})
    out = tmp_path / "laws.jsonl"
    line = ["--models", tiny, "--text", text_file, "--layers", "0", "--grids", "paper", "--out", str(out)]
    law_ranges.main(line)
    (record,) = map(json.loads, out.read_text().splitlines())
    assert record["n"] == [2, 3, 4, 5] and all(len(values) == 2 for values in record["values"])
    shown = capsys.readouterr().out
    assert "layer  0" in shown and "4 lengths" in shown
    monkeypatch.setattr(law_ranges, "measure", lambda *_, **__: pytest.fail("measured again"))
    law_ranges.main(line)
    assert len(out.read_text().splitlines()) == 1 and capsys.readouterr().out == shown
