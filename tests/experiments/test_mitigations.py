"""Mitigations on a tiny model: records with known answers, the command, and resuming it."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from experiments.mitigations import DEFAULT_MITIGATIONS, main, mitigation_table, mitigations
from howsmooth import InputError, load
from howsmooth.attack.mitigation import L2, Temperature
from howsmooth.studies import resolve, spec_of
from howsmooth.texts.corpora import read_corpus
from tests.docs.comparison import ROOT
from tests.models.tiny import tiny_network, tiny_tokenizer


@pytest.fixture(scope="module")
def study():
    model = load(tiny_network("llama"), tokenizer=tiny_tokenizer("llama"))
    corpus = read_corpus("embedded")
    return model, corpus, resolve(model, corpus, spec_of({"layers": [1], "lengths": [8], "samples": 1, "tol": 0.05}))


def test_records(study):
    records = list(mitigations(*study, tried=(Temperature(1.0), Temperature(4.0), L2())))
    same, hot, distance, *whole = records
    assert same["constant_ratio"] == pytest.approx(1, rel=0.05) and same["output_apart"] < 1e-5
    assert same["cosine"] == pytest.approx(1, abs=1e-5)
    assert hot["constant_ratio"] < 0.9 and hot["attack_ratio"] < 0.9 and hot["output_apart"] > 0.1
    assert distance["mitigation"] == "L2" and [record["layer"] for record in whole] == [None] * 3
    assert [record["layers"] for record in records] == [[1]] * 6
    assert "mitigations" in str(mitigation_table(records).title)


def test_a_change_below_rounding_has_a_status(study):
    lost = list(mitigations(*study, tried=(Temperature(2.0),), budget=1e-8))
    assert lost[-1]["layer"] is None and lost[-1]["status"] == "rounding"


def test_a_budget_has_to_be_positive(study):
    with pytest.raises(InputError, match="positive budget"):
        next(mitigations(*study, budget=0.0))


def test_an_interrupted_command_is_resumed(tiny, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    line = [tiny, "--layers", "0,1", "--length", "6", "--samples", "1", "--out", str(out)]
    assert main(line) == 0
    written = out.read_text(encoding="utf-8")
    records = [json.loads(one) for one in written.splitlines()]
    assert [record["layer"] for record in records] == [layer for layer in (0, 1, None) for _ in DEFAULT_MITIGATIONS]
    shown = capsys.readouterr().out
    out.write_text("".join(written.splitlines(True)[:7]) + written.splitlines()[7][:40], encoding="utf-8")
    assert main(line) == 0
    printed = capsys.readouterr()
    assert "18 records" in printed.err and "7 of them from before" in printed.err and printed.out == shown
    assert out.read_text(encoding="utf-8").startswith("".join(written.splitlines(True)[:7]))


def test_the_records_of_the_page_are_complete(capsys):
    kept = (ROOT / "docs" / "images" / "mitigations.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in kept]
    assert len(records) == 48 and "minilm" in str(mitigation_table(records[:24]).title)


def test_choices(tiny, tmp_path, capsys):
    """Records of another seed or text are others: none of them is reused, and each says which it is."""
    out = tmp_path / "out.jsonl"
    line = [tiny, "--layers", "1", "--length", "6", "--samples", "1", "--out", str(out)]
    text = tmp_path / "text.txt"
    text.write_text("some other words of another text, and then a few more of them. " * 20, encoding="utf-8")
    for options in ([], ["--seed", "1"], ["--text", str(text)]):
        assert main([*line, *options]) == 0
        assert "0 of them from before" in capsys.readouterr().err
    assert main([*line, "--seed", "1"]) == 0
    assert "12 of them from before" in capsys.readouterr().err
    records = [json.loads(one) for one in out.read_text(encoding="utf-8").splitlines()]
    assert Counter((one["seed"], one["text"]) for one in records) == {
        (0, "embedded"): 12,
        (1, "embedded"): 12,
        (0, text.name): 12,
    }


def test_bad_input(tiny, tmp_path, capsys):
    for options in (["--layers", "7"], ["--length", "900"], ["--budget", "-1"]):
        with pytest.raises(SystemExit) as left:
            main([tiny, "--out", str(tmp_path / "out.jsonl"), *options])
        assert left.value.code == 2 and "expected" in capsys.readouterr().err
