"""What was measured and where it comes from, as rows for a reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from howsmooth.report.rows import model_name

_MOST_NAMED = 12


def sources_of(records: Sequence[dict[str, Any]]) -> list[tuple[str, list[tuple[str, str]]]]:
    """For each model (heading, [(what, said)]): weights and their hashes, text, settings, software, as recorded."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["model"], []).append(record)
    return [(model_name(model), [(what, said) for what, said in _rows(chosen) if said])
            for model, chosen in groups.items()]


def _rows(records: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [
        ("records", f"{len(records):,}"),
        ("study", _each(records, "study")),
        ("weights", _each(records, "weights")),
        ("from", "; ".join(dict.fromkeys(_source(record.get("source") or {}) for record in records))),
        ("checkpoints", _each(records, "checkpoint")),
        ("text", "; ".join(dict.fromkeys(
            f"{record.get('text')} (sha256 {record['text_sha256']})" if record.get("text_sha256") else
            str(record.get("text")) for record in records))),
        ("cutting", _each(records, "cutting")),
        ("special tokens", _each(records, "special_tokens")),
        ("maps", _each(records, "map")),
        ("layers", _each(records, "layer")),
        ("heads", _each(records, "head")),
        ("lengths n", _each(records, "n")),
        ("samples", _each(records, "sample", most=20)),
        ("tokens that move", _each(records, "tokens")),
        ("estimators", _each(records, "estimator")),
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
