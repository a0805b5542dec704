"""Tables show the values of the records; intervals are rounded outwards."""

from __future__ import annotations

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from howsmooth.fits import growth_laws
from howsmooth.report.measurement_tables import Summary, growth_table, measurements_table, study_tables, summary
from howsmooth.report.rows import interval, measurement_rows, number
from howsmooth.report.table import Column, Table
from tests.tolerances import at_most, less


def printed(renderable, width: int = 120) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(renderable)
    return stream.getvalue()


def test_rows_group_samples_and_show_the_largest(records):
    rows = measurement_rows(reversed(records))
    assert [(row.layer, row.n) for row in rows] == [(layer, n) for layer in (0, 1) for n in (8, 16, 32, 64)]
    # exact: the largest of the same numbers
    assert all(row.worst["value"] == max(row.values) and len(row.values) == 2 for row in rows)
    assert rows[0].median == pytest.approx(8**0.25 * 1.005)


@given(st.floats(1e-30, 1e30), st.floats(0, 1e-2))
def test_printed_interval_contains_the_computed_one(lower, width):
    upper = lower * (1 + width)
    low, high = (float(end.replace(",", "").replace("·10^", "e")) for end in interval(lower, upper).split(" – "))
    assert at_most(low, lower) and at_most(upper, high)
    assert math.isclose(low, lower, rel_tol=2e-4) and math.isclose(high, upper, rel_tol=2e-4)


def test_interval_without_an_upper_end():
    assert interval(1.0, None) == interval(1.0, math.inf) == "≥ 1.0000"
    assert interval(0.0, 0.0) == "0.0000 – 0.0000"


def test_table_contains_every_row_and_markup_is_not_interpreted(records, growth):
    text = printed(summary(records, growth))
    for row in measurement_rows(records):
        assert f"{max(row.values):#.4g}" in text
    assert "[bold]⏎" in text and "tiny<model>" in text
    assert text.count("0.25  0.24 … 0.26  a power law") == 2
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
    assert "Growth with length, Lip ≈ C nᵅ" in printed(growth_table(growth))


def test_three_lengths_have_a_reason_instead_of_an_exponent(records):
    text = printed(summary([r for r in records if r["n"] < 64], growth_laws(r for r in records if r["n"] < 64)))
    assert "Growth with length, Lip ≈ C nᵅ: no exponent from 3 lengths, at least 4 are needed" in text
    assert "0.25" not in text


def test_a_rejected_law_shows_its_verdict_and_no_exponent(make):
    rough = [
        make(0, n, sample, value=(5.0 if n < 64 else 50.0) * (1 + 0.01 * sample))
        for n in (8, 16, 32, 64, 128, 256)
        for sample in range(4)
    ]
    laws = growth_laws(rough)
    (law,) = laws.values()
    assert law.is_power_law is False and law.exponent is not None and not law.shown
    text = printed(summary(rough, laws))
    assert "not a power law" in text and f"{law.exponent:.2f}" not in text


def test_growth_table_fits_in_eighty_columns(growth):
    assert max(len(line.rstrip()) for line in printed(growth_table(growth), 80).splitlines()) <= 80


@pytest.mark.parametrize("digits", [2, 3, 4, 5])
@pytest.mark.parametrize("power", range(0, 6))
def test_numbers_below_a_million_are_decimals(digits, power):
    for value in (10.0**power, 1.2345678 * 10**power, 9.87654 * 10**power):
        text = number(value, digits)
        assert "e" not in text and "^" not in text
        assert float(text.replace(",", "")) == pytest.approx(value, rel=0.6 * 10 ** (1 - digits))


def test_rows_with_fewer_samples_show_their_number(records):
    """As after an interrupted run: a heading "median of 2" would be wrong for one of the rows."""
    assert "median of 2" in printed(summary(records, {}))
    table = measurements_table(records[:-1])
    assert table.headings[:6] == ["layer", "n", "median", "of", "interval, each 99.9 % sure", "range"]
    assert table.values("of") == [2] * 7 + [1] and "median of" not in printed(table)


def test_the_table_has_the_median_with_its_ends_and_the_range(records):
    """The ends are the medians of the samples' ends, so that they contain the median of the true values."""
    group = [record for record in records if (record["layer"], record["n"]) == (0, 8)]
    changed = [
        {**group[0], "sample": sample, "value": value, "lower": value - 0.25, "upper": value + 0.5}
        for sample, value in enumerate((1.0, 8.0, 2.0, 4.0))
    ]
    table = measurements_table(changed)
    assert table.headings[2:5] == ["median of 4", "interval, each 99.9 % sure", "range"]
    assert [str(table.values(name)[0]) for name in table.headings[2:5]] == ["3.000", "2.7500 – 3.5000", "1.000 – 8.000"]
    assert "* of the largest sample" in printed(table)
    one_sided = measurements_table([*changed[:3], {**changed[3], "upper": None}])
    assert str(one_sided.values("interval, each 99.9 % sure")[0]) == "≥ 2.7500"


TABLE = Table(
    "Title",
    [
        Column("n", lambda row: row[0], key=True),
        Column("<b>", lambda row: row[1], "left"),
        Column("hidden", lambda row: 1 / 0, when=False),
    ],
    [(1, "a|b"), (2, Text("<i>", style="bold")), (3, None)],
)


def test_a_table_as_html_and_markdown_is_escaped():
    assert TABLE.html() == (
        '<table><caption>Title</caption><thead><tr><th scope="col" class="number">n</th>'
        '<th scope="col">&lt;b&gt;</th></tr></thead><tbody>'
        '<tr><td class="number">1</td><td>a|b</td></tr><tr><td class="number">2</td><td>&lt;i&gt;</td></tr>'
        '<tr><td class="number">3</td><td></td></tr></tbody></table>'
    )
    assert TABLE.markdown().splitlines() == ["| n | <b> |", "|---:|---|", "| 1 | a\\|b |", "| 2 | <i> |", "| 3 |  |"]
    assert TABLE.csv() == "n,<b>\n1,a|b\n2,<i>\n3,\n"


def test_a_cell_is_never_interpreted_as_markup():
    assert "[bold]x" in printed(Table("", [Column("cell", lambda row: row)], ["[bold]x"]))


def test_a_table_too_wide_for_the_terminal_is_split_between_columns():
    wide = Table(
        "Wide",
        [
            Column("n", lambda row: row, key=True),
            *(Column(f"column{i}", lambda row, i=i: f"{row}.{i:08d}") for i in range(12)),
        ],
        [1, 2],
        caption="shown once",
    )
    text = printed(wide, 60)
    assert max(len(line) for line in text.splitlines()) <= 60 and "…" not in text
    for row in (1, 2):
        assert all(f"{row}.{i:08d}" in text for i in range(12))
    assert text.count(" n ") == 3 and text.count("Wide") == text.count("shown once") == 1
    assert printed(wide, 200).count(" n ") == 1


def test_a_narrow_table_folds_its_headings_and_the_title_is_not_cut_off(records):
    table = measurements_table(records)
    wide, narrow = printed(table, 120), printed(table, 76)
    assert "interval, each 99.9 % sure" in wide and "interval, each 99.9 % sure" not in narrow
    assert " ".join(narrow.split()).startswith(table.title)
    assert max(len(line.rstrip()) for line in narrow.splitlines()) <= 76
    first = str(table.values("interval, each 99.9 % sure")[0])
    assert narrow.count(first) == wide.count(first) == 1


def test_facts_are_lines_without_headings_and_rules():
    facts = Table.of_facts([("n", 8), ("cache", "/a/" + "b" * 40), ("kernels", Text("[none]", style="yellow"))])
    assert [line.split() for line in printed(facts).splitlines()] == [
        ["n", "8"],
        ["cache", "/a/" + "b" * 40],
        ["kernels", "[none]"],
    ]
    narrow = printed(facts, 30)  # a long word continues on the next line
    assert "…" not in narrow and narrow.count("b") == 40


def test_a_bound_with_the_values_of_another_is_named_below_the_table(bounds):
    from howsmooth.report.measurement_tables import bounds_tables

    group = [bound for bound in bounds if bound["layer"] == 0]
    name = next(bound["bound"] for bound in group if bound["side"] == "upper" and bound["refused"] is None)
    twins = [{**bound, "bound": "a.twin", "title": "the twin"} for bound in group if bound["bound"] == name]
    _, bounded, *_ = bounds_tables([*group, *twins])
    text = printed(bounded)
    assert text.count("the twin") == 1 and "the same values as" in text.partition("large-radius limit")[2]
    changed = [{**twin, "log_value": twin["log_value"] + 1e-3} for twin in twins]
    assert "the same values as" not in printed(bounds_tables([*group, *changed])[1])


def test_constants_are_the_same_statistic_beside_bounds(bounds):
    from howsmooth.report.measurement_tables import bounds_tables

    first = [bound for bound in bounds if bound["layer"] == 0]
    other = [{**bound, "sample": 1, "measured": {**bound["measured"], "value": 1e-3}} for bound in first]
    constants, bounded, *_ = bounds_tables([*first, *other])
    row = measurement_rows({**bound, **bound["measured"]} for bound in (first[0], other[0]))[0]
    assert constants.values("median of 2")[0].plain == number(row.median)
    assert constants.values("range")[0] == row.range_text()
    assert "measured, largest of 2" in printed(bounded)  # a bound holds for every sample


def test_the_share_of_decided_rows_is_said_once(bounds):
    from howsmooth.report.measurement_tables import bounds_tables

    group = [{**bound, "argmax_share": [0.25, 0.5]} for bound in bounds if bound["layer"] == 0]
    text = " ".join(printed(bounds_tables(group)[1]).split())
    assert text.count("near the large-radius limit: 38 % of rows") == 1 and "50 % in the most decided" in text
    without = [{**bound, "argmax_share": []} for bound in group]
    assert "large-radius limit" not in printed(bounds_tables(without)[1])


def test_tables_of_studies_show_medians_with_ranges_and_ends(records):
    table, ranges = study_tables(Summary(records, draws=5))
    rows = measurement_rows(records)
    assert "Lip, median of 2," in table.title and "range" in ranges.title
    assert table.values("n=8") == [number(row.median, 3) for row in rows if row.n == 8]
    assert ranges.values("n=8") == [row.range_text(3) for row in rows if row.n == 8]
    widest = max(max(high / row.median - 1, 1 - low / row.median) for row in rows for low, high in [row.median_ends])
    said = float(table.caption.partition("within ")[2].partition(" %")[0])
    assert at_most(100 * widest, said) and less(said, 100 * widest + 0.011)
    (single,) = study_tables(Summary([record for record in records if record["sample"] == 0], draws=5))
    assert "median" not in single.title
    open_ended, _ = study_tables(Summary([{**record, "upper": None} for record in records], draws=5))
    assert "no upper end" in open_ended.caption
