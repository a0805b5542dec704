"""The ladder joins the records of bounds, balls and worst cases: for each set of tokens, both ends and their ratio."""

from __future__ import annotations

import math

import pytest

from howsmooth.report.ladder import ladder_tables
from howsmooth.report.web_page import sections_of
from tests.report.conftest import bound_record


def estimate(value: float) -> dict:
    return {"value": value, "lower": value, "upper": 1.001 * value}


@pytest.fixture
def records() -> list[dict]:
    """Two bounds, a refusal, two balls in any order and a search, around a text with the constant of the bounds."""
    bounds = [bound_record(0, 8, *bound) for bound in (("a", "lower", 20.0), ("b", "upper", 400.0), ("c", None, None))]
    bounds[0] |= {"holds": "on B_R^n", "reference": "docs/bounds.md, proof 4"}
    bounds[1] |= {"holds": "for all n", "reference": "someone2020"}
    measured = bounds[0]["measured"]["value"]
    shared = {name: bounds[0][name] for name in ("model", "layer", "head", "n")}
    balls = [
        shared
        | {"kind": "ball", "eps": eps, "found": estimate(found * measured), "centre": estimate(measured)}
        | {"log_certified": math.log(certified * measured)}
        for eps, found, certified in ((0.1, 2.0, 5.0), (0.01, 1.5, 1.6))
    ]
    upper = {"name": "this_project.upper", "value": 1.0, "log_value": math.log(300 * measured)}
    search = {"within": "ball", "value": 25 * measured, "on_text": estimate(measured), "upper_bound": upper}
    return [*bounds, *balls, {"kind": "worst case", **shared, **search}]


def test_each_set_of_tokens_has_both_ends(records):
    (table,) = ladder_tables(records)
    assert [name.split(",")[0] for name in table.values("tokens")] == [
        "the text",
        "within 0.01 of it",
        "within 0.1 of it",
        "ball",
        "ball",
    ]
    assert table.values("known to")[1:] == ["×1.0667", "×2.50", "×12.0", "×20.0"]
    assert table.values("over text") == ["×1.0", "×1.5", "×2.0", "×25", "×20"]
    assert table.values("by")[1:] == ["ascent … certified (ours)"] * 2 + ["ascent … sharper Theorem 1", "a (ours) … b"]
    assert table.caption.splitlines()[:2] == [
        "On the ball the constant is known to a factor of 12.0 … 20.0.",
        "The text is at least 20 … 25 times below the worst case there.",
    ]


def test_a_search_alone_has_the_upper_bound_of_its_record(records):
    (table,) = ladder_tables(records[-1:])
    assert table.values("known to")[1] == "×12.0" and table.values("by")[1] == "ascent … sharper Theorem 1"


def test_a_search_among_normalised_tokens_has_its_own_upper_bound(records):
    measured = records[0]["measured"]["value"]
    upper = {"name": "heads_together.upper_on_outputs", "log_value": math.log(60 * measured)}
    (table,) = ladder_tables([*records, records[-1] | {"within": "norm", "upper_bound": upper}])
    assert table.values("tokens")[3] == "normalised, by ascent"
    assert table.values("known to")[3:] == ["×2.40", "×12.0", "×20.0"]


def test_the_largest_of_several_samples_counts(records):
    other = records[3] | {"found": estimate(3 * records[3]["found"]["value"]), "log_certified": None}
    (table,) = ladder_tables([*records, other])
    assert (table.values("over text")[2], table.values("known to")[2], table.values("by")[2]) == ("×6.0", "", "ascent")


def test_records_of_other_questions_have_no_ladder():
    assert ladder_tables([]) == []


def test_the_page_has_a_section_of_ladders(bounds):
    assert sections_of(bounds)[-1].name == "ladder"
