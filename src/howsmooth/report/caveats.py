"""What a reader should know before believing a number: caveats, and what was measured with which software."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from howsmooth.report.rows import FINE, model_name, refusals
from howsmooth.spectral.result import LOWER_ONLY, REMEDY

RELEASED = "as released"
_MOST_NAMED = 12


@dataclass(frozen=True)
class Caveat:
    """A sentence and how grave it is: "warning" asks for an action, "note" for attention."""

    level: str
    text: str


def caveats_of(records: Sequence[dict[str, Any]], notes: Sequence[str] = ()) -> list[Caveat]:
    """All that is to be said about these records, the graver first; `notes` are what reading them had to say."""
    found = [
        *_unfinished(records),
        *_open(records),
        *(Caveat("warning", line) for line in notes),
        *_refused(records),
        *_extrapolated(records),
        *_released(records),
        *_chances(records),
        *_mixed(records),
    ]
    return sorted(found, key=lambda caveat: caveat.level != "warning")


def _unfinished(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    counts = Counter(record.get("status") for record in records)
    wider = "They did not reach the tolerance; their intervals hold but are wider."
    one_sided = "Their values are lower bounds, and nothing is known above."
    return [
        Caveat(
            "warning",
            f"{count} of {len(records)} records: {status}. {one_sided if _one_sided(status) else wider} "
            f"{_sentence(REMEDY.get(status or '', ''))}",
        )
        for status, count in counts.items()
        if _one_sided(status) or status not in (*FINE, RELEASED, None)
    ]


def _one_sided(status: str | None) -> bool:
    return status is not None and status.endswith(LOWER_ONLY)


def _open(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    """Intervals without an upper end, which strict JSON writes as null."""
    count = sum(
        record["upper"] is None or not math.isfinite(record["upper"])
        for record in records
        if record["kind"] == "measurement" and record.get("status") != RELEASED and not _one_sided(record.get("status"))
    )
    said = f"{count} intervals have no finite upper end: those values are lower bounds."
    return [Caveat("warning", said)] * bool(count)


def _refused(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    bounds = [record for record in records if record["kind"] == "bound"]
    return [
        Caveat("note", f"Outside its conditions, so there is no such bound here: {', '.join(names)}. " + _sentence(why))
        for why, names in refusals(bounds).items()
    ]


def _extrapolated(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    count = sum(bool(record.get("extrapolated")) for record in records)
    said = f"{count} values are at lengths beyond the positions that the model was made for."
    return [Caveat("note", said)] * bool(count)


def _released(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    count = sum(record.get("status") == RELEASED for record in records)
    return [
        Caveat(
            "note",
            f"{count} values are √‖Jᵀf(X)‖, what the paper's scripts return. They estimate no Lipschitz "
            "constant and have no interval.",
        )
    ] * bool(count)


def _chances(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    """Each interval fails with a small probability; among many, some may."""
    expected = sum(
        1 - record["confidence"]
        for record in records
        if record["kind"] == "measurement" and record.get("confidence") is not None
    )
    return [
        Caveat(
            "note",
            "Each interval holds with its own probability, not all of them together: up to "
            f"{expected:.1f} of these may be expected to miss.",
        )
    ] * (expected >= 0.5)


def _mixed(records: Sequence[dict[str, Any]]) -> list[Caveat]:
    commits = {record["commit"] for record in records if record.get("commit")}
    versions = {record.get("versions", {}).get("howsmooth") for record in records} - {None}
    said = []
    if any(commit.endswith("+") for commit in commits):
        said.append(Caveat("note", "Some records come from a checkout with changed files: their commit ends in +."))
    if len(commits) > 1 or len(versions) > 1:
        said.append(
            Caveat("note", f"The records come from {max(len(commits), len(versions))} different states of howsmooth.")
        )
    return said


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def sources_of(records: Sequence[dict[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each model (heading, [(what, said)]): weights and their hashes, text, settings, software, as recorded."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["model"], []).append(record)
    return [
        (model_name(model), [(what, said) for what, said in _rows(chosen) if said]) for model, chosen in groups.items()
    ]


def _rows(records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        ("records", f"{len(records):,}"),
        ("study", _each(records, "study")),
        ("weights", _each(records, "weights")),
        ("from", "; ".join(dict.fromkeys(_source(record.get("source") or {}) for record in records))),
        ("checkpoints", _each(records, "checkpoint")),
        (
            "text",
            "; ".join(
                dict.fromkeys(
                    f"{record.get('text')} (sha256 {record['text_sha256']})"
                    if record.get("text_sha256")
                    else str(record.get("text"))
                    for record in records
                )
            ),
        ),
        ("cutting", _each(records, "cutting")),
        ("special tokens", _each(records, "special_tokens")),
        ("maps", _each(records, "map")),
        ("layers", _each(records, "layer")),
        ("heads", _each(records, "head")),
        ("lengths n", _each(records, "n")),
        ("samples", _each(records, "sample", most=20)),
        ("tokens that move", _each(records, "tokens")),
        ("quantities", _each(records, "quantity")),
        ("dtype", _each(records, "dtype") or _each([r["measured"] for r in records if "measured" in r], "dtype")),
        ("dtype of the model", _each(records, "model_dtype")),
        ("dtype of products", _each(records, "product_dtype")),
        ("tolerance", _each(records, "tol")),
        ("confidence", _each(records, "confidence")),
        ("seed", _each(records, "seed")),
        ("device", _each(records, "device")),
        ("versions", "; ".join(dict.fromkeys(_versions(record.get("versions") or {}) for record in records))),
        ("commit", _each(records, "commit")),
    ]


def _each(records: Sequence[dict[str, Any]], name: str, most: int = _MOST_NAMED) -> str:
    """The distinct values of a field; many numbers are told by their ends."""
    found = list(dict.fromkeys(record[name] for record in records if record.get(name) is not None))
    if all(isinstance(value, (int, float)) for value in found):
        found.sort()
    if len(found) > 2 and all(isinstance(value, int) for value in found) and found[-1] - found[0] == len(found) - 1:
        return f"{found[0]} to {found[-1]}"
    if len(found) > most:
        return f"{found[0]} … {found[-1]} ({len(found)} of them)"
    return ", ".join(str(value) for value in found)


def _source(source: dict[str, Any]) -> str:
    """A model's origin in one line, hashes and revision included; folders of the machine stay there."""
    said = []
    for name, value in source.items():
        if name in ("weights", "path") or value is None:
            continue
        if isinstance(value, dict):
            value = ", ".join(f"{key} {inner}" for key, inner in value.items())
        said.append(str(value) if name == "kind" else f"{name} {value}")
    return ", ".join(said)


def _versions(versions: dict[str, Any]) -> str:
    return ", ".join(f"{name} {number}" for name, number in versions.items() if number)
