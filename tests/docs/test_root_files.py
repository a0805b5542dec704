"""CONTRIBUTING and CITATION say what is so."""

from __future__ import annotations

import re

import howsmooth
from tests.docs.same import ROOT
from tests.test_street import ONLY_IN, STREET

GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_the_floor_plan_is_that_of_the_street():
    street = " → ".join(" | ".join(group) for group in STREET)
    assert street in GUIDE
    rows = {room: row for row in GUIDE.splitlines() if row.startswith("| `") for room in re.findall(r"`(\w+)`", row)}
    assert {room for group in STREET for room in group} <= set(rows)
    assert [package for package, room in ONLY_IN.items() if package not in rows[room] and package != "tokenizers"] == []


def test_files_that_the_guide_names_are_there():
    for path in re.findall(r"\]\(((?!http)[^)#]+)\)", GUIDE):
        assert (ROOT / path).exists(), path
    rooms = "|".join(room for group in STREET for room in group)
    for path in re.findall(rf"`((?:tests|benchmarks|docs|{rooms})/[\w/.]*)`", GUIDE):
        assert (ROOT / path).exists() or (ROOT / "src" / "howsmooth" / path).exists(), path


def test_the_citation_is_of_this_version():
    assert f"version: {howsmooth.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
