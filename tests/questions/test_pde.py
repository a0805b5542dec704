"""The question pde: what its spec refuses, its records, resuming, flows that leave the grid."""

from __future__ import annotations

import json

import numpy
import pytest

import howsmooth as package
from howsmooth.questions import question_of, record_error
from howsmooth.records.arrays import unpack
from tests.tolerances import assert_close, at_most, same_record

QUICK = {"V": -1.0, "until": 0.2, "cells": 32, "frames": 3}
LINE = "flow pde --V -identity --until 0.2 --cells 32 --frames 3 --particles 8,32 --repeats 2"


def read(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def without_times(records: list[dict]) -> list[dict]:
    return [{name: value for name, value in record.items() if name != "seconds"} for record in records]


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"dim": 3}, "dim: expected a whole number from 1 to 2"),
        ({"order": 3}, "order: expected a whole number from 1 to 2"),
        ({"slices": 2, "start": "gaussian"}, "--start bumps with --slices"),
        ({"slices": 2, "particles": [5, 10]}, "multiples of the 2 slices"),
        ({"example": "hyperplanes"}, "dimension 1 or 2 for a grid, got 3"),
        ({"start": "point"}, "start: expected 'gaussian' or 'bumps'"),
    ],
)
def test_what_the_spec_refuses(fields, message):
    with pytest.raises(package.InputError, match=message):
        package.ask("pde", **fields)


@pytest.mark.parametrize("d", [1, 2])
def test_it_is_asked_in_python(d, tmp_path):
    found = package.ask("pde", **QUICK, dim=d, particles=[8, 32], repeats=2)
    flow, *runs, rate = found
    assert [r["kind"] for r in found] == ["density flow", *["particle comparison"] * 4, "rate"]
    assert all(record_error(record) is None and question_of(record) == "pde" for record in found)
    values, volume = unpack(flow["densities"]), (16 / 32) ** d
    assert values.shape == (3, *[32] * d) and unpack(runs[0]["positions"]).shape == (3, 32, d)
    assert_close(values.reshape(3, -1).sum(1) * volume, numpy.ones(3), 1e-2)
    assert "n^(" in str(found) and rate["distance"] == "W₂" and "positions" not in runs[1]
    found.plot(tmp_path / "a.png")
    saved = package.read(found.save(tmp_path / "a.jsonl"))
    assert all(same_record(one, other) for one, other in zip(saved, found, strict=True))


def test_densities_that_are_too_large_for_a_record_are_thinned(monkeypatch):
    from howsmooth.questions import pde
    from howsmooth.report.density_charts import density_picture

    monkeypatch.setattr(pde, "_MAX_DENSITY", 500)
    found = package.ask("pde", **{**QUICK, "frames": 21, "dim": 2})
    kept = found[0]["frames"]
    assert len(kept) < 21 == len(found[0]["times"]) and kept[0] == 0 and kept[-1] == 20
    assert at_most(len(found[0]["densities"]["data"]), 500)
    assert density_picture(found.records).title.endswith(f"{len(kept)} of 21 saved times")


def test_its_command_resumes_from_any_record(howsmooth, tmp_path):
    whole, cut = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert howsmooth(f"{LINE} --json {whole}").code == 0
    again = howsmooth(f"{LINE} --json {whole}")
    assert again.code == 0 and "6 records had been in" in again.err and "wrote" not in again.err
    cut.write_text("".join(whole.read_text().splitlines(keepends=True)[:3]))
    assert howsmooth(f"{LINE} --json {cut} --plot-rate {tmp_path / 'r.png'}").code == 0
    for one, other in zip(without_times(read(whole)), without_times(read(cut)), strict=True):
        assert same_record(one, other, but=("checksum",))
    lines = whole.read_text().splitlines(keepends=True)
    cut.write_text("".join([*lines[:2], *lines[3:]]))  # one run is missing, and the others are not computed again
    assert howsmooth(f"{LINE} --json {cut}").code == 0
    (found,) = (r for r in read(cut) if r["task"] == json.loads(lines[2])["task"])
    assert same_record(found, json.loads(lines[2]), but=("seconds", "checksum"))


def test_a_flow_that_left_its_grid_ends_alike_when_it_is_repeated(howsmooth, tmp_path):
    lines = tmp_path / "a.jsonl"
    line = f"flow pde --until 9 --extent 5 --cells 60 --particles 8 --json {lines}"
    first, second = howsmooth(line), howsmooth(line)
    for shown in (first, second):
        assert shown.code == 2 and "left the grid" in shown.out and "take a wider grid" in shown.err
    (record,) = read(lines)
    assert record_error(record) is None and "take a wider grid" in record["failure"]
