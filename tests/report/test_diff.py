"""The difference between a text and its attacked form, as parts, as text and as HTML."""

from __future__ import annotations

from howsmooth.report.attacks import diff_html, diff_parts, diff_text

RECORD = {
    "words": ["a", "b", "c", "d", "e", "f", "g"],
    "edits": [
        {"position": 1, "operation": "substitute", "token": 1},
        {"position": 4, "operation": "insert", "token": 2},
        {"position": 5, "operation": "duplicate", "token": 3},
    ],
    "new_words": ["<B>", "X", "f"],
}


def test_every_kind_of_edit_is_shown():
    assert diff_text(RECORD, None).plain == "a [-b-] {+<B>+} c d {+X+} e {+f+} f g"


def test_words_far_from_an_edit_are_omitted():
    parts = list(diff_parts({"words": list("abcdefghij"), "edits": RECORD["edits"][:1], "new_words": ["X"]}, context=1))
    assert [word for word, _ in parts] == ["a", "b", "X", "c", "…"]


def test_deleted_and_inserted_words_have_colours():
    styles = {
        str(span.style): diff_text(RECORD, None).plain[span.start : span.end] for span in diff_text(RECORD, None).spans
    }
    assert styles["bold red strike"] == "[-b-]" and styles["bold green"] == "{+f+}"


def test_html_is_escaped():
    assert diff_html(RECORD) == "a <del>b</del> <ins>&lt;B&gt;</ins> c d <ins>X</ins> e <ins>f</ins> f g"


def test_markup_in_words_stays_text():
    shown = diff_text({"words": ["[bold]x"], "edits": [], "new_words": []}, None)
    assert shown.plain == "[bold]x"
