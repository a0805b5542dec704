"""What a reader should know before believing a number: unfinished solves, open intervals, bounds that do not apply."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from howsmooth.report.bound_rows import refusals
from howsmooth.report.rows import FINE
from howsmooth.spectral.result import LOWER_ONLY, REMEDY
from howsmooth.studies.reading import kind_of

RELEASED = "as released"


@dataclass(frozen=True)
class Doubt:
    """A sentence and how grave it is: "warning" asks for an action, "note" for attention."""

    level: str
    text: str


def doubts_of(records: Sequence[dict[str, Any]], notes: Sequence[str] = ()) -> list[Doubt]:
    """All that is to be said about these records, the graver first; `notes` are what reading them had to say."""
    found = [*_unfinished(records), *_open(records), *(Doubt("warning", line) for line in notes), *_refused(records),
             *_released(records), *_chances(records), *_mixed(records)]
    return sorted(found, key=lambda doubt: doubt.level != "warning")


def _unfinished(records: Sequence[dict[str, Any]]) -> list[Doubt]:
    counts = Counter(record.get("status") for record in records)
    wider = "They did not reach the tolerance; their intervals hold but are wider."
    meaning = {LOWER_ONLY: "Their values are lower bounds, and nothing is known above."}
    return [
        Doubt("warning", f"{count} of {len(records)} records: {status}. {meaning.get(status, wider)} "
                         f"{_sentence(REMEDY.get(status, ''))}")
        for status, count in counts.items() if status not in (*FINE, RELEASED, None)
    ]


def _open(records: Sequence[dict[str, Any]]) -> list[Doubt]:
    """Intervals without an upper end, which strict JSON writes as null."""
    count = sum(record["upper"] is None or not math.isfinite(record["upper"]) for record in records
                if kind_of(record) == "measurement" and record.get("status") not in (RELEASED, LOWER_ONLY))
    said = f"{count} intervals have no finite upper end: those values are lower bounds."
    return [Doubt("warning", said)] * bool(count)


def _refused(records: Sequence[dict[str, Any]]) -> list[Doubt]:
    bounds = [record for record in records if kind_of(record) == "bound"]
    return [Doubt("note", f"Outside its conditions, so there is no such bound here: {', '.join(names)}. "
                  + _sentence(why)) for why, names in refusals(bounds).items()]


def _released(records: Sequence[dict[str, Any]]) -> list[Doubt]:
    count = sum(record.get("status") == RELEASED for record in records)
    return [Doubt("note", f"{count} values are √‖Jᵀf(X)‖, what the paper's scripts return. They estimate no Lipschitz "
                          "constant and have no interval.")] * bool(count)


def _chances(records: Sequence[dict[str, Any]]) -> list[Doubt]:
    """Each interval fails with a small probability; among many, some may."""
    expected = sum(1 - record["confidence"] for record in records
                   if kind_of(record) == "measurement" and record.get("confidence") is not None)
    return [Doubt("note", "Each interval holds with its own probability, not all of them together: up to "
                          f"{expected:.1f} of these may be expected to miss.")] * (expected >= 0.5)


def _mixed(records: Sequence[dict[str, Any]]) -> list[Doubt]:
    commits = {record.get("commit") for record in records} - {None}
    versions = {record.get("versions", {}).get("howsmooth") for record in records} - {None}
    said = []
    if any(commit.endswith("+") for commit in commits):
        said.append(Doubt("note", "Some records come from a checkout with changed files: their commit ends in +."))
    if len(commits) > 1 or len(versions) > 1:
        said.append(Doubt("note", f"The records come from {max(len(commits), len(versions))} different states of "
                                  "howsmooth."))
    return said


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""
