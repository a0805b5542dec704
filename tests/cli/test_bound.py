"""`howsmooth bound` on a tiny checkpoint: every bound and the measured constant."""

from __future__ import annotations

import json
import math

import pytest

from howsmooth.bounds import EVERY
from tests.tolerances import at_most


def read(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("radius", ["norm", "data", "30"])
def test_no_upper_bound_is_below_the_measured_constant(howsmooth, tiny, text_file, radius):
    result = howsmooth(f"bound {tiny} --text {text_file} --lengths 8,32 --samples 2 --radius {radius} --json -")
    assert result.code == 0, result.err
    records = read(result.out)
    assert len(records) == 2 * 2 * 2 * len(EVERY)  # lengths, samples, layers
    assert {(r["n"], r["sample"], r["layer"]) for r in records} == {
        (n, s, layer) for n in (8, 32) for s in (0, 1) for layer in (0, 1)
    }
    uppers = [r for r in records if r["side"] == "upper"]
    assert uppers and all(at_most(math.log(r["measured"]["lower"]), r["log_value"]) for r in uppers)
    assert all(at_most(r["measured"]["radius"], r["R"], tol=1e-5) for r in records)
    # Two heads and a mask: what was stated for one head, or without a mask, refuses by name.
    refused = {r["bound"]: r["refused"] for r in records if r["refused"]}
    assert "one head" in refused["castin2024.theorem1_lower"] and "mask" in refused["this_project.upper_in_n_and_a"]
    for record in uppers:
        assert record["ratio"] is None or math.isclose(math.log(record["ratio"]), record["log_ratio"], rel_tol=1e-9)


def test_table_csv_and_plot(howsmooth, tiny, text_file, tmp_path):
    plot, table = tmp_path / "bounds.png", tmp_path / "bounds.csv"
    result = howsmooth(f"bound {tiny} --text {text_file} --lengths 8,16 --layers 1 --plot {plot} --csv {table}")
    assert result.code == 0, result.err
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert len(table.read_text().splitlines()) == 1 + 2 * len(EVERY)
    assert "measured, 99.9 % sure" in result.out and "Refused:" in result.out and "×" in result.out
    assert "expected one head" in result.out and "large-radius limit" in result.out
    assert f"{2 * len(EVERY)} bounds" in result.err


def test_a_single_length_lies_inside_its_panel(howsmooth, tiny, text_file):
    from howsmooth.report import bounds_picture, draw

    records = read(howsmooth(f"bound {tiny} --text {text_file} --lengths 16 --layers 0 --json -").out)
    for panel in draw(bounds_picture(records)).axes:
        low, high = panel.get_xlim()
        assert low < 16 < high and any(line.get_marker() == "_" for line in panel.get_lines())


def test_single_heads(howsmooth, tiny, text_file):
    result = howsmooth(f"bound {tiny} --text {text_file} --lengths 8 --layers 0 --heads all --json -")
    assert {record["head"] for record in read(result.out)} == {0, 1}


@pytest.mark.parametrize(
    "options, message",
    [
        ("--radius wide", "expected norm, data or a positive number up to 1e+100, got 'wide'"),
        ("--radius -1", "a positive number up to 1e+100, got '-1'"),
        ("--lengths 100", "at most 64 tokens"),
        ("--lengths 8 --layers 7", "between 0 and 1, got 7"),
    ],
)
def test_bad_input(howsmooth, tiny, text_file, options, message):
    result = howsmooth(f"bound {tiny} --text {text_file} {options}")
    assert result.code == 2 and message in result.err and len(result.errors) == 1
