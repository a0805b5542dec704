"""`howsmooth meanfield regimes` and `masked`: tables, records, errors."""

from __future__ import annotations

import json

import pytest


def test_regimes(howsmooth, tmp_path):
    plot, lines, sheet = tmp_path / "regimes.png", tmp_path / "regimes.jsonl", tmp_path / "regimes.csv"
    ran = howsmooth(f"meanfield regimes --gamma-r2 2,50 --to 60 --points 9 --plot {plot} --json {lines} --csv {sheet}")
    assert ran.code == 0 and "plateau" in ran.out and "131" in ran.out  # n* of γR² = 2
    assert plot.stat().st_size > 10_000 and len(sheet.read_text().splitlines()) == 19
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(records) == 18 and records[-1]["gamma_r2"] == 50
    assert records[-1]["log_n"] == pytest.approx(138.155, abs=0.01)
    assert records[8]["log_value"] == pytest.approx(2.5647, abs=1e-3)


def test_json_on_stdout_moves_the_table_to_stderr(howsmooth):
    ran = howsmooth("meanfield regimes --gamma-r2 1 --to 5 --points 3 --scores positive --json -")
    assert [json.loads(line)["scores"] for line in ran.out.splitlines()] == ["positive"] * 3
    assert "plateau" in ran.err


def test_masked(howsmooth, tmp_path):
    plot, lines = tmp_path / "masked.svg", tmp_path / "masked.jsonl"
    ran = howsmooth(
        f"meanfield masked --p 1,2,inf --sizes 0,0.5 --atoms 8 --restarts 2 --steps 10 --plot {plot} --json {lines}"
    )
    assert ran.code == 0 and "false" in ran.out and "none" in ran.out
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [record["p"] for record in records] == [1.0, 2.0, "inf"] * 2
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize(
    "line, message",
    [
        ("regimes --gamma-r2 x", "comma-separated numbers from 0 to 100000"),
        ("regimes --gamma-r2 -1", "comma-separated numbers"),
        ("regimes --to 0", "--to"),
        ("regimes --plot picture.xyz", "--plot"),
        ("masked --p 0.5", "numbers from 1 to 1e\\+06, or inf"),
        ("masked --sizes nan", "comma-separated numbers"),
        ("masked --json no/such/folder/file", "folder that exists"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(howsmooth, line, message):
    import re

    ran = howsmooth(f"meanfield {line}")
    assert ran.code == 2 and re.search(message, ran.err) and len(ran.errors) == 1
