"""The question "splitting-cases": the ratios and limits of maps that split."""

from __future__ import annotations

import pytest

import howsmooth as package
from howsmooth.lipschitz.splitting_cases import SPLITTING_CASES
from howsmooth.questions import record_error
from tests.tolerances import at_most


@pytest.fixture(scope="module")
def rows():
    return package.ask("splitting-cases")


def test_cutting_every_atom_gives_the_larger_of_the_two_norms(rows):
    for row in rows:
        assert row["after"] == pytest.approx(max(row["norm"], *row["own"]), rel=1e-8), row["where"]


def test_limits_hold(rows):
    for row in rows:
        word = row["limit"].split()[0]
        if word != "unbounded":
            assert row["ratio"] is not None and at_most(row["ratio"], float(word) * (1 + 1e-3) + 1e-12), row["where"]
        assert not (row["never"] and row["splits"]), row["where"]
        assert row["never"] == (row["limit"][:8] in ("0 proved", "1 proved"))
    assert sum(row["never"] for row in rows) == 6 and sum(row["splits"] for row in rows) == 9


def test_ratios_of_the_cases_that_split(rows):
    assert len(rows) == len(SPLITTING_CASES)
    by = {(row["map"], row["where"]): row["ratio"] for row in rows}
    assert by["softmax", "A = −1, 1 : y² − 1 at distance y"] == pytest.approx(30, rel=0.05)
    assert by["softmax", "A ≻ 0 with condition number 1000, d = 2"] == pytest.approx(15.827, abs=1e-3)
    assert 1.005 < by["softmax", "A = +1"] < 1.0051
    assert by["L2, K = −Q", "light atom at −2.55, heavy at 2.45"] == pytest.approx(801_453, rel=1e-4)
    assert by["Sinkhorn", "A = −1, masses 1 : 2"] == pytest.approx(9, rel=0.01)
    assert by["linear", "A a quarter turn, one atom"] is None  # D = 0
    assert by["L2, tied K = Q", "d = 2, V ≠ I, two atoms"] > 1.12


def test_records_are_valid_and_shown(rows, howsmooth, tmp_path):
    assert all(record_error(row) is None for row in rows)
    assert len({row["task"] for row in rows}) == len(rows)
    lines = tmp_path / "cases.jsonl"
    first = howsmooth(f"meanfield splitting-cases --json {lines}")
    assert first.code == 0 and "mean pooling" in first.out and "∞" in first.out
    again = howsmooth(f"meanfield splitting-cases --json {lines}")
    assert again.out == first.out and f"{len(SPLITTING_CASES)} cases had been in" in again.err
