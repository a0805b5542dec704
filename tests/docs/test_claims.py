"""Every sentence against print is on the page of claims, with records, commands and tests that exist."""

from __future__ import annotations

import importlib.util
import re
import shlex

import pytest

from tests.docs.comparison import ROOT, script
from tests.docs.test_mentions import unknown

DOCS = ROOT / "docs"
CLAIMS = script("claims.py")
PAGES = (
    "findings",
    "mean_field",
    "splitting",
    "bounds",
    "attack",
    "regimes",
    "gallery",
    "comparison",
    "robustness",
    "depth",
)
# Words with which these pages say that something printed is wrong.
AGAINST = re.compile(
    r"\b(is|are) false\b|do(es)? not hold\b|artefact of\b|wrong axis|not the worst (case|input)|not a law"
    r"|fails by|not its worst|splits without bound",
    re.I,
)


@pytest.fixture(scope="module")
def claims():
    return CLAIMS.claims()


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_page_is_that_of_the_records():
    assert read("claims.md") == CLAIMS.page(), "python docs/claims.py"


def test_pages_say_what_the_records_say():
    assert CLAIMS.missing_sentences(read) == []


def test_a_page_that_says_something_else_is_found():
    changed = CLAIMS.missing_sentences(lambda name: read(name).replace("61.3 and 566", "61.3 and 567"))
    assert len(changed) == 1 and "61.3 and 566" in changed[0]


def test_tables_of_ratios_are_those_of_the_records():
    assert CLAIMS.kappa_rows() in read("splitting.md")


def test_records_tests_and_commands_exist(claims):
    for claim in claims:
        assert claim.tests and claim.commands, claim.title
        for name in claim.records:
            assert (DOCS / "images" / name).stat().st_size, name
        for one in claim.tests:
            file, _, test = one.partition("::")
            assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), one
        for line in claim.commands:
            words = shlex.split(line)
            if words[0] == "howsmooth":
                assert unknown(line) is None
            elif words[2] == "pytest":
                assert all((ROOT / word).is_file() for word in words[3:])
            else:
                assert importlib.util.find_spec(words[2]), line


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_against_print_is_a_claim(page, claims):
    text = re.sub(r"```.*?```|^#.*?$", "", read(f"{page}.md"), flags=re.S | re.M)
    said = [CLAIMS.folded(sentence) for claim in claims for name, sentence in claim.sentences]
    folded = CLAIMS.folded(text)
    uncovered = []
    for found in AGAINST.finditer(folded):
        around = folded[max(0, found.start() - 160) : found.end() + 160]
        covered = any(
            sentence in folded and folded.find(sentence) <= found.start() < folded.find(sentence) + len(sentence)
            for sentence in said
        )
        if not covered:
            uncovered.append(around)
    assert uncovered == []
