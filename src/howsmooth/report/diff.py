"""Original and attacked text as one: what went, what came, the words around; from records, for terminal and page."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from rich.text import Text

CONTEXT = 8  # tokens shown on either side of an edit
GONE, NEW = "bold red strike", "bold green"
_CUT = " … "


def diff_parts(record: dict[str, Any], context: int | None = CONTEXT) -> Iterator[tuple[str, str]]:
    """(text, kind) in order, kind one of same, gone, new, cut. `context` None keeps the whole text.

    >>> record = {"words": ["the", "old", "bridge"], "new_words": ["new"],
    ...           "edits": [{"position": 1, "kind": "substitute", "token": 7}]}
    >>> list(diff_parts(record))
    [('the', 'same'), ('old', 'gone'), ('new', 'new'), ('bridge', 'same')]
    """
    edits = {edit["position"]: (edit["kind"], word)
             for edit, word in zip(record["edits"], record["new_words"], strict=True)}
    words, cut = record["words"], False
    for i, word in enumerate(words):
        kind, new = edits.get(i, (None, ""))
        if kind is None and context is not None and not any(abs(i - place) <= context for place in edits):
            if not cut:
                yield _CUT.strip(), "cut"
            cut = True
            continue
        cut = False
        if kind == "substitute":
            yield word, "gone"
            yield new, "new"
        elif kind is None:
            yield word, "same"
        else:  # inserted before, or one copy more
            yield new, "new"
            yield word, "same"


def diff_text(record: dict[str, Any], context: int | None = CONTEXT) -> Text:
    """The difference for a terminal: red and struck out what went, green what came; without colours [−gone−] {+new+}.

    The marks stand in both, so that nothing is lost in a pipe or to a reader who does not see colours.
    """
    shown = Text()
    for index, (word, kind) in enumerate(diff_parts(record, context)):
        shown.append(" " if index else "")
        if kind == "gone":
            shown.append(f"[-{word}-]", style=GONE)
        elif kind == "new":
            shown.append(f"{{+{word}+}}", style=NEW)
        else:
            shown.append(word, style="dim" if kind == "cut" else "")
    return shown


def diff_html(record: dict[str, Any], context: int | None = None) -> str:
    """The difference for a page, as <del> and <ins>; every word escaped.

    >>> record = {"words": ["a", "<b>"], "new_words": ["c"], "edits": [{"position": 1, "kind": "insert", "token": 3}]}
    >>> diff_html(record)
    'a <ins>c</ins> &lt;b&gt;'
    """
    tags = {"gone": "<del>{}</del>", "new": "<ins>{}</ins>"}
    return " ".join(tags.get(kind, "{}").format(escape(word)) for word, kind in diff_parts(record, context))

