"""Every bound has a name for readers, which the page of bounds shows beside the name of its function."""

from __future__ import annotations

from pathlib import Path

import pytest

from howsmooth.bounds import EVERY, Bound, Refused, kim2021
from howsmooth.bounds.titles import SCOPES, TITLES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "bounds.md").read_text(encoding="utf-8")
NAMES = [f"{bound.__module__.rpartition('.')[2]}.{bound.__name__}" for bound in EVERY]


def test_every_bound_has_its_own_title():
    others = {f"kim2021.{bound.__name__}" for bound in (kim2021.l2_infinity, kim2021.l2_two)}
    others |= {"heads_together.upper_on_outputs"}  # it takes a normalisation
    assert {*NAMES, *others} == set(TITLES)
    assert len(set(TITLES.values())) == len(TITLES)
    assert [title for title in TITLES.values() if "_" in title or len(title) > 40] == []


@pytest.mark.parametrize("name", NAMES)
def test_the_page_shows_the_title(name):
    assert f"| `{name}` | {TITLES[name]} |" in PAGE


def test_the_page_shows_the_scopes():
    assert [holds for holds, words in SCOPES.items() if f"| {holds} | {words} |" not in PAGE] == []


def test_bounds_refusals_and_records_have_titles():
    name = "this_project.local"
    bound = Bound(name, 0.0, "upper", "at X", (), "an example")
    assert bound.title == bound.as_record()["title"] == Refused(name, "a", "b", "c").title == "local bound"
