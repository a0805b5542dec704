"""The table shows what the records hold, rounded so that intervals stay true."""

from __future__ import annotations

import io
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from howsmooth.report.rows import interval, rows_of
from howsmooth.report.table import growth_table, summary
from tests.tolerances import at_most


def printed(renderable, width: int = 120) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


def test_rows_group_samples_and_show_the_largest(records):
    rows = rows_of(reversed(records))
    assert [(row.layer, row.n) for row in rows] == [(layer, n) for layer in (0, 1) for n in (8, 16, 32)]
    # exact: the largest of the same numbers
    assert all(row.worst["value"] == max(row.values) and len(row.values) == 2 for row in rows)
    assert rows[0].mean == pytest.approx(8**0.25 * 1.005)


@given(st.floats(1e-30, 1e30), st.floats(0, 1e-2))
def test_printed_interval_contains_the_computed_one(lower, width):
    upper = lower * (1 + width)
    low, high = (float(end) for end in interval(lower, upper).split(" – "))
    assert at_most(low, lower) and at_most(upper, high)
    assert math.isclose(low, lower, rel_tol=2e-4) and math.isclose(high, upper, rel_tol=2e-4)


def test_interval_without_an_upper_end():
    assert interval(1.0, None) == interval(1.0, math.inf) == "≥ 1.0000"
    assert interval(0.0, 0.0) == "0.0000 – 0.0000"


def test_table_holds_every_row_and_no_markup_is_obeyed(records, growth):
    text = printed(summary(records, growth))
    for row in rows_of(records):
        assert f"{max(row.values):#.4g}" in text
    assert "[bold]⏎" in text and "tiny<model>" in text
    assert "0.25 ± 0.00" in text
    assert "!" not in text


def test_unfinished_estimates_are_marked(records, growth, make):
    records[0] = make(0, 8, 0, status="step limit")
    text = printed(summary(records, growth))
    assert "! not within the tolerance: step limit" in text
    assert text.count("!") == 2


def test_heads_get_a_column(make):
    rows = [make(0, 8, 0, head=head) for head in (0, 11)]
    text = printed(summary(rows, {}))
    assert "head" in text and "11" in text and "Growth" not in text


def test_the_growth_title_stays_on_one_line(growth):
    first = next(iter(growth))
    narrow = {first: SimpleNamespace(exponent=0.5, constant=1, exponent_error=None)}
    for fits in (growth, narrow):
        assert "Growth with length, Lip ≈ C nᵅ" in printed(growth_table(fits))


def test_fits_fit_on_eighty_columns(growth):
    assert max(len(line.rstrip()) for line in printed(growth_table(growth), 80).splitlines()) <= 80
