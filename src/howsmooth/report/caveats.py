"""Caveats about records, and their provenance: models, texts, settings, software."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from howsmooth.questions import find_question, question_of
from howsmooth.records.columns import column, distinct, fields, group_by, split, where
from howsmooth.report.rows import ACCEPTED_STATUSES, model_name, refusals
from howsmooth.spectral.result import LOWER_ONLY, REMEDY

RELEASED = "as released"
_MAX_LISTED = 12


@dataclass(frozen=True)
class Caveat:
    """A sentence about the records; level "warning" requires an action, level "note" is information."""

    level: str
    text: str


def caveats_of(records: Sequence[dict[str, Any]], notes: Sequence[str] = ()) -> list[Caveat]:
    """Return the caveats about these records, warnings first.

    Args:
        records: Records of any kind.
        notes: Messages from reading the records, which become warnings.
    """
    groups = {kind: group for (kind,), group in group_by(records, "kind").items()}
    own = {kind: find_question(question_of(group[0])).caveats for kind, group in groups.items()}
    lines = [line for kind, group in groups.items() if (say := own[kind]) is not None for line in say(group)]
    caveats = [
        *_unfinished(where(records, lambda kind: own[kind] is None, "kind")),
        *(_of_line(line) for line in lines),
        *_unbounded(records),
        *(Caveat("warning", line) for line in notes),
        *_refused_bounds(records),
        *_solver_notes(records),
        *_extrapolated(records),
        *_released(records),
        *_expected_misses(records),
        *_mixed(records),
    ]
    return sorted(caveats, key=lambda caveat: caveat.level != "warning")


def _of_line(line: str) -> Caveat:
    """Return a line of a question's own caveats, such as "warning: …"."""
    level, colon, text = line.partition(": ")
    return Caveat(level, _sentence(text)) if colon and level in ("warning", "note") else Caveat("note", _sentence(line))


def _unfinished(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    counts = Counter(column(records, "status"))
    wider = "They did not reach the tolerance; their intervals hold but are wider."
    one_sided = "Their values are lower bounds, and nothing is known above."
    return [
        Caveat(
            "warning",
            f"{count} of {len(records)} records: {status}. {one_sided if _one_sided(status) else wider} "
            f"{_sentence(REMEDY.get(status or '', ''))}",
        )
        for status, count in counts.items()
        if _one_sided(status) or status not in (*ACCEPTED_STATUSES, RELEASED, None)
    ]


def _one_sided(status: str | None) -> bool:
    return status is not None and status.endswith(LOWER_ONLY)


def _unbounded(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    """Warn about intervals without an upper end, which strict JSON represents as null."""
    count = sum(
        upper is None or not math.isfinite(upper)
        for kind, status, upper in fields(records, "kind", "status", "upper")
        if kind == "measurement" and status != RELEASED and not _one_sided(status)
    )
    text = f"{count} intervals have no finite upper end: those values are lower bounds."
    return [Caveat("warning", text)] * bool(count)


def _refused_bounds(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    bounds = where(records, lambda kind: kind == "bound", "kind")
    return [
        Caveat("note", f"Outside its conditions, so there is no such bound here: {'; '.join(names)}. " + _sentence(why))
        for why, names in refusals(bounds).items()
    ]


def _solver_notes(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    """Note what the solver did differently from what was asked for."""
    found = fields(records, "kind", "notes")
    counts = Counter(note for kind, notes in found if kind == "measurement" for note in notes or ())
    return [Caveat("note", f"{count} of {len(records)} records: {_sentence(note)}") for note, count in counts.items()]


def _extrapolated(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    count = sum(map(bool, column(records, "extrapolated")))
    text = f"{count} values are at lengths beyond the positions that the model was trained for."
    return [Caveat("note", text)] * bool(count)


def _released(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    count = column(records, "status").count(RELEASED)
    return [
        Caveat(
            "note",
            f"{count} values are √‖Jᵀf(X)‖, what the paper's scripts return. They estimate no Lipschitz "
            "constant and have no interval.",
        )
    ] * bool(count)


def _expected_misses(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    """Note how many intervals are expected to miss: each fails with a small probability."""
    expected = sum(
        1 - confidence
        for kind, confidence in fields(records, "kind", "confidence")
        if kind == "measurement" and confidence is not None
    )
    return [
        Caveat(
            "note",
            "Each interval holds with its own probability, not all of them together: up to "
            f"{expected:.1f} of these may be expected to miss.",
        )
    ] * (expected >= 0.5)


def _mixed(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    commits = {commit for commit in column(records, "commit") if commit}
    versions = {versions.get("howsmooth") for versions in distinct(records, "versions")} - {None}
    caveats = []
    if any(commit.endswith("+") for commit in commits):
        caveats.append(Caveat("note", "Some records come from a checkout with changed files: their commit ends in +."))
    if len(commits) > 1 or len(versions) > 1:
        caveats.append(
            Caveat("note", f"The records come from {max(len(commits), len(versions))} different versions of howsmooth.")
        )
    return caveats


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def sources_of(records: Sequence[dict[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the provenance of each model's records as (model, [(name, value), …]): weights, text, settings."""
    groups = split(records, (model or "without a model" for model in column(records, "model")))
    return [
        (model_name(model), [(name, value) for name, value in _rows(group) if value]) for model, group in groups.items()
    ]


def _rows(records: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        ("records", f"{len(records):,}"),
        ("study", _distinct_values(records, "study")),
        ("weights", _distinct_values(records, "weights")),
        ("from", "; ".join(dict.fromkeys(map(_source, distinct(records, "source"))))),
        ("checkpoints", _distinct_values(records, "checkpoint")),
        (
            "text",
            "; ".join(
                dict.fromkeys(
                    f"{text} (sha256 {sha256})" if sha256 else text
                    for text, sha256 in dict.fromkeys(fields(records, "text", "text_sha256"))
                    if text
                )
            ),
        ),
        ("cutting", _distinct_values(records, "cutting")),
        ("special tokens", _distinct_values(records, "special_tokens")),
        ("maps", _distinct_values(records, "map")),
        ("layers", _distinct_values(records, "layer")),
        ("heads", _distinct_values(records, "head")),
        ("lengths n", _distinct_values(records, "n")),
        ("samples", _distinct_values(records, "sample", limit=20)),
        ("tokens that move", _distinct_values(records, "tokens")),
        ("quantities", _distinct_values(records, "quantity")),
        ("dtype", _distinct_values(records, "dtype") or _distinct_values(distinct(records, "measured"), "dtype")),
        ("dtype of the model", _distinct_values(records, "model_dtype")),
        ("dtype of products", _distinct_values(records, "product_dtype")),
        ("tolerance", _distinct_values(records, "tol")),
        ("confidence", _distinct_values(records, "confidence")),
        ("seed", _distinct_values(records, "seed")),
        ("device", _distinct_values(records, "device")),
        ("versions", "; ".join(dict.fromkeys(map(_versions, distinct(records, "versions"))))),
        ("commit", _distinct_values(records, "commit")),
    ]


def _distinct_values(records: Sequence[dict[str, Any]], name: str, limit: int = _MAX_LISTED) -> str:
    """List the distinct values of a field; of more than `limit`, only the first and the last."""
    values = [value for value in dict.fromkeys(column(records, name)) if value is not None]
    if all(isinstance(value, (int, float)) for value in values):
        values.sort()
    if (
        len(values) > 2
        and all(isinstance(value, int) for value in values)
        and values[-1] - values[0] == len(values) - 1
    ):
        return f"{values[0]} to {values[-1]}"
    if len(values) > limit:
        return f"{values[0]} … {values[-1]} ({len(values)} of them)"
    return ", ".join(str(value) for value in values)


def _source(source: dict[str, Any]) -> str:
    """Describe the origin of a model in one line, with hashes and revision but without local paths."""
    parts = []
    for name, value in source.items():
        if name in ("weights", "path") or value is None:
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items())
        parts.append(str(value) if name == "origin" else f"{name} {value}")
    return ", ".join(parts)


def _versions(versions: dict[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items() if number)
