"""Edits of a text in tokens: substitute one, insert one before it, or duplicate it.

Places are those of the original text, one edit at each at most, so that edits commute and can be shown beside it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from howsmooth.errors import InputError

KINDS = ("substitute", "insert", "duplicate")


@dataclass(frozen=True, order=True)
class Edit:
    """One edit at a `position` of the original text; `token` is what comes in, for a duplicate the token there."""

    position: int
    kind: str
    token: int

    def as_record(self) -> dict:
        return asdict(self)


def apply(ids: Sequence[int], edits: Iterable[Edit]) -> list[int]:
    """The text after all edits.

    >>> apply([7, 8, 9], [Edit(0, "substitute", 5), Edit(2, "insert", 6)])
    [5, 8, 6, 9]
    >>> apply([7, 8, 9], [Edit(1, "duplicate", 8)])
    [7, 8, 8, 9]
    """
    made = list(ids)
    for edit in sorted(_checked(ids, edits), reverse=True):
        if edit.kind == "substitute":
            made[edit.position] = edit.token
        else:
            made.insert(edit.position, edit.token)
    return made


def kept(n: int, edits: Iterable[Edit]) -> list[int]:
    """Where each of the n original tokens, or its substitute, stands after the edits.

    >>> kept(3, [Edit(1, "insert", 6)])
    [0, 2, 3]
    """
    longer = sorted(edit.position for edit in edits if edit.kind != "substitute")
    return [i + sum(position <= i for position in longer) for i in range(n)]


def first_change(edits: Iterable[Edit], n: int) -> int:
    """How many leading tokens the edited text shares with the original; a duplicate differs after its token."""
    return min((edit.position + (edit.kind == "duplicate") for edit in edits), default=n)


def _checked(ids: Sequence[int], edits: Iterable[Edit]) -> list[Edit]:
    edits = list(edits)
    if len({edit.position for edit in edits}) < len(edits):
        raise InputError("expected one edit at each place, got two at one; edit another place")
    for edit in edits:
        if edit.kind not in KINDS or not 0 <= edit.position < len(ids):
            raise InputError(f"expected an edit of {', '.join(KINDS)} within {len(ids)} tokens, got {edit}")
        if edit.kind == "duplicate" and edit.token != ids[edit.position]:
            raise InputError(f"expected a duplicate of token {ids[edit.position]}, got {edit}; insert another one")
    return edits
