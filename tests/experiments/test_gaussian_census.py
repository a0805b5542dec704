"""The census of limiting ranks: no run is left out, and an interrupted census is resumed."""

from __future__ import annotations

import json

import pytest

import experiments.gaussian_census as experiment
from experiments.gaussian_census import FIELDS, census, census_table, main
from howsmooth.errors import InputError
from tests.docs.comparison import ROOT

LINE = ["--runs", "5", "--dim", "2", "--until", "5", "--max-steps", "300"]


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_every_run_is_counted():
    found = list(census("softmax", 2, 12, 20.0, seed=3))
    assert [record["run"] for record in found] == list(range(12))
    assert {"blew up", "finished"} <= {record["status"] for record in found}
    table = census_table(found, "twelve")
    assert sum(int(cell) for cell in table.columns[0].cells) == 12
    again = list(census("softmax", 2, 12, 20.0, seed=3))
    assert [one["fates"] for one in found] == [one["fates"] for one in again]


@pytest.mark.parametrize("kind", FIELDS)
def test_every_kind_has_a_census(kind):
    (record,) = census(kind, 2, 1, 0.5)
    assert record["kind"] == kind and len(record["fates"]) == record["d"] == 2


def test_an_interrupted_command_is_resumed(tmp_path, monkeypatch, capsys):
    whole, out = tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    assert main([*LINE, "--out", str(whole)]) == 0
    shown = capsys.readouterr().out
    real, computed = experiment.limiting_rank, []

    def some(flow):
        if len(computed) == 2:
            raise KeyboardInterrupt
        computed.append(flow)
        return real(flow)

    monkeypatch.setattr(experiment, "limiting_rank", some)
    assert main([*LINE, "--out", str(out)]) == 130
    assert "2 Gaussian flows" in capsys.readouterr().out and len(read(out)) == 2
    monkeypatch.setattr(experiment, "limiting_rank", real)
    assert main([*LINE, "--out", str(out)]) == 0
    assert "5 Gaussian flows" in shown and capsys.readouterr().out == shown
    assert [record["fates"] for record in read(out)] == [record["fates"] for record in read(whole)]


def test_the_records_of_the_page_are_complete():
    kept = read(ROOT / "docs" / "images" / "gaussian_census.jsonl")
    assert [record["run"] for record in kept] == list(range(40))
    page = (ROOT / "docs" / "flows.md").read_text(encoding="utf-8")
    for status in ("blew up", "finished", "step limit"):
        assert f"| {sum(record['status'] == status for record in kept)} | {status} |" in page


def test_bad_input(tmp_path, capsys):
    with pytest.raises(InputError, match="runs"):
        next(census("softmax", 2, 0, 1.0))
    with pytest.raises(InputError, match="softmax, l2"):
        next(census("sigmoid", 2, 1, 1.0))
    (tmp_path / "other.jsonl").write_text('{"value": 1}\n', encoding="utf-8")
    for options in (["--until", "-1"], ["--out", str(tmp_path / "other.jsonl")], ["--out", str(tmp_path / "no" / "f")]):
        with pytest.raises(SystemExit) as left:
            main([*LINE, "--out", str(tmp_path / "out.jsonl"), *options])
        assert left.value.code == 2 and "expected" in capsys.readouterr().err
