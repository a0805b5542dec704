"""Records read back from wherever they were kept: stores of studies and JSON lines, several of them joined."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError
from howsmooth.studies.lines import json_line
from howsmooth.studies.store import Store

_SQLITE = b"SQLite format 3\0"
_WHERE = ("model", "layer", "n", "map")
# What tells the kinds apart, and what has to be there for a page to show them.
_KINDS = {
    "bound": ("bound", "side", "log_value", "measured", "refused"),
    "worst case": ("within", "value", "on_text", "upper_bound"),
    "ball": ("certified", "found", "centre", "eps"),
    "measurement": ("value", "lower", "upper", "status", "sample"),
}


@dataclass
class Read:
    """The records that were found, each once, and what is to be said about how they were found."""

    records: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def kind_of(record: Any) -> str | None:
    """What a record tells of: "measurement", "bound", "worst case", "ball", or None for something else.

    >>> kind_of({"model": "gpt2", "layer": 0, "n": 8, "map": "attention", "within": "norm", "value": 2.0, "on_text": {},
    ...          "upper_bound": {}})
    'worst case'
    >>> kind_of({"value": 2.0}) is None
    True
    """
    if not isinstance(record, dict) or not all(name in record for name in _WHERE):
        return None
    if not isinstance(record["n"], int) or not isinstance(record["layer"], (int, type(None))):
        return None
    kind = next((kind for kind, names in _KINDS.items() if all(name in record for name in names)), None)
    if kind in ("measurement", "worst case") and not isinstance(record["value"], (int, float, type(None))):
        return None
    return kind


def read_records(paths: Iterable[str]) -> Read:
    """The records of stores, studies (STUDY.toml beside its store) and files of JSON lines; "-" is stdin."""
    read, seen, again, other = Read(), set(), 0, 0
    for path in paths:
        for record in _records_of(path, read.notes):
            if kind_of(record) is None:
                other += 1
                continue
            line = hash(json_line(record))
            again += line in seen
            if line not in seen:
                seen.add(line)
                read.records.append(record)
    if other:
        read.notes.append(f"{other} lines are records of another kind and were left out.")
    if again:
        read.notes.append(f"{again} records came twice and count once.")
    if not read.records:
        raise InputError(f"expected records of measure, bound, attack or a study, got none in {', '.join(paths)}; "
                         "write some with --json, or run the study first")
    return read


def _records_of(path: str, notes: list[str]) -> Iterable[dict[str, Any]]:
    if path == "-":
        return _lines("stdin", sys.stdin.buffer.read(), notes)
    place = Path(path).with_suffix(".sqlite") if path.endswith(".toml") else Path(path)
    try:
        with place.open("rb") as stream:
            stored = stream.read(len(_SQLITE)) == _SQLITE
        return _stored(place, notes) if stored else _lines(path, place.read_bytes(), notes)
    except OSError as error:
        raise InputError(f"expected a store or a file of JSON lines, got {path} "
                         f"({(error.strerror or str(error)).lower()}); name another one") from None


def _stored(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    with Store.read(path) as store:
        counts, records = store.counts(), list(store.records())
        if not records:  # a store that knows no plan still has what was put into it
            records = list(store.records(everything=True))
    if counts["done"] < counts["planned"]:
        notes.append(f"{path.name}: {counts['done']} of {counts['planned']} tasks are done, {counts['failed']} failed; "
                     "curves may lack lengths or samples.")
    return records


def _lines(name: str, raw: bytes, notes: list[str]) -> list[dict[str, Any]]:
    try:
        lines = raw.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"expected a store or a file of JSON lines, got {name}, which is neither; "
                         "name what --json wrote, or a study's .sqlite") from None
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except ValueError:
            if number == len(lines) and records:  # a run that was killed while it wrote
                notes.append(f"{name}: the last line is cut off and was left out.")
                break
            raise InputError(f"expected one JSON object per line, got something else in line {number} of {name}; "
                             "name what --json wrote, or a study's .sqlite") from None
    return records
