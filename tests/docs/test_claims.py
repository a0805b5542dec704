"""Every sentence against print is on the page of claims, with records, commands and tests that exist."""

from __future__ import annotations

import importlib.util
import re
import shlex

import pytest

from tests.docs.comparison import ROOT, script
from tests.docs.test_mentions import unknown
from tests.tolerances import less

DOCS = ROOT / "docs"
CLAIMS = script("claims.py")
# Every page but the one itself, and every docstring; the changes quote sentences of earlier versions.
PAGES = [
    "README.md",
    *sorted(
        path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.name not in ("claims.md", "changes.md")
    ),
]
SOURCES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "src" / "howsmooth").rglob("*.py"))
# Words with which these pages say that something printed is wrong.
AGAINST = re.compile(
    r"\b(is|are) (?-i:false)\b|do(es)? not hold\b|artefact of\b|wrong axis|not the worst (case|input)|not a law"
    r"|fails by|not its worst|splits without bound|\bno (head|text)s? (of|splits|reaches|is)\b"
    r"|\bno(thing|ne| \w+) (predicts?|splits?)\b|need not make|constant does not predict|form no clusters"
    r"|does not point towards"
    r"|the published upper bound|not power laws|no power laws|does not bound the slope|contradicts",
    re.I,
)
DOCSTRING = re.compile(r'"""(.*?)"""', re.S)
# What is said of conditions that a call checks, and of nothing printed.
NOT_OF_PRINT = (
    "A condition of a bound does not hold for this layer",
    "if the statement is false or open for this layer",
    "digits that the dtype of x does not hold",
)


@pytest.fixture(scope="module")
def claims():
    return CLAIMS.claims()


read = CLAIMS.read


def test_the_page_is_that_of_the_records():
    assert read("claims.md") == CLAIMS.page(), "python docs/claims.py"


def test_pages_say_what_the_records_say():
    assert CLAIMS.missing_sentences(read) == []


def test_a_page_that_says_something_else_is_found():
    changed = CLAIMS.missing_sentences(lambda name: read(name).replace("61.3 and 566", "61.3 and 567"))
    assert len(changed) == 1 and "61.3 and 566" in changed[0]


def test_tables_of_ratios_are_those_of_the_records():
    assert CLAIMS.numbers.kappa_rows() in read("splitting.md")
    assert CLAIMS.numbers.splitting_rows() in read("splitting.md")


def test_nothing_predicts_large_attacks_on_a_layer_better_than_its_constant():
    assert CLAIMS.numbers.beats_the_constant() == []


def test_no_measure_splits_where_attacks_are_predicted():
    """The gain of splitting is 1 on every text, so that its correlations are undefined."""
    found = [one for one in CLAIMS.numbers.correlations() if one["predictor"] == "splitting_gain"]
    assert found and all(one["value"] is None for one in found)


def test_quotients_are_below_the_local_constants():
    pairs = CLAIMS.numbers.quotient_pairs()
    assert len(pairs) == 8 and all(less(quotient, constant) for quotient, constant in pairs)


def test_records_tests_and_commands_exist(claims):
    for claim in claims:
        assert claim.tests and claim.commands, claim.title
        for name in claim.records:
            assert (ROOT / CLAIMS.record_path(name)).stat().st_size, name
        for one in claim.tests:
            file, _, test = one.partition("::")
            assert re.search(rf"^def {test}\(", (ROOT / file).read_text(encoding="utf-8"), re.M), one
        for line in claim.commands:
            words = shlex.split(line, comments=True)
            if words[0] == "howsmooth":
                assert unknown(line) is None
            elif words[1].endswith(".py"):
                assert (ROOT / words[1]).is_file(), line
            elif words[2] == "pytest":
                assert all((ROOT / word).is_file() for word in words[3:])
            else:
                assert importlib.util.find_spec(words[2]), line


def uncovered(name: str, text: str, claims) -> list[str]:
    """Return the sentences of a text against print that are no part of a claim."""
    folded, found = CLAIMS.folded(text), []
    said = [CLAIMS.folded(sentence) for claim in claims for page, sentence in claim.sentences if page == name]
    spans = [(start, start + len(one)) for one in said if (start := folded.find(one)) >= 0]
    for match in AGAINST.finditer(folded):
        around = folded[max(0, match.start() - 160) : match.end() + 160]
        if not any(start <= match.start() < end for start, end in spans) and not any(s in around for s in NOT_OF_PRINT):
            found.append(around)
    return found


@pytest.mark.parametrize("page", PAGES)
def test_every_sentence_against_print_is_a_claim(page, claims):
    assert uncovered(page, re.sub(r"```.*?```|^#.*?$", "", read(page), flags=re.S | re.M), claims) == []


def test_docstrings_against_print_are_claims(claims):
    assert [one for name in SOURCES for one in uncovered(name, " ".join(DOCSTRING.findall(read(name))), claims)] == []


def test_a_sentence_that_is_no_claim_is_found(claims):
    assert uncovered("depth.md", "Theorem 7 of the paper is false. It is true elsewhere.", claims) != []
