"""Records: what every command, study and page of howsmooth shares.

A record is a plain dictionary with a `kind`, the version of the schema, the place that was measured (model, map, layer,
head, n, sample), numbers with their intervals, and where they come from. JSON lines, SQLite, CSV and Parquet hold the
same records. Readers take the kind from the record and check its fields (`complaint`); they never guess either.
"""

from __future__ import annotations

from typing import Any

from howsmooth.records.lines import PER_TOKEN, csv_line, finite, flat, json_line, parsed, read_lines

__all__ = [
    "CURVE",
    "PER_TOKEN",
    "SCHEMA",
    "complaint",
    "csv_line",
    "finite",
    "flat",
    "json_line",
    "parsed",
    "read_lines",
    "stamped",
]

SCHEMA = 2  # 1: howsmooth 0.1, records without a kind
# The fields that tell one curve of values against n from another.
CURVE = ("model", "checkpoint", "text", "map", "layer", "head", "tokens", "quantity", "cutting")


def stamped(kind: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with its kind and the version of the schema in front.

    >>> stamped("ball", {"n": 8})
    {'kind': 'ball', 'schema': 2, 'n': 8}
    """
    return {"kind": kind, "schema": SCHEMA, **record}


def complaint(record: Any) -> str | None:
    """Return why this is no record that a page can show, or None if it is one.

    >>> complaint({"kind": "ball", "schema": 1})
    'expected a record of schema 2, got schema 1; measure again with this version'
    """
    if not isinstance(record, dict):
        return f"expected a JSON object, got {type(record).__name__}"
    if "kind" not in record:
        return (
            "expected a record with a kind, got one without, as howsmooth 0.1 wrote them; measure again with this "
            "version"
        )
    if type(record.get("schema")) is not int or record["schema"] != SCHEMA:
        return (
            f"expected a record of schema {SCHEMA}, got schema {record.get('schema')!s:.40}; measure again with "
            "this version"
        )
    from howsmooth.records.schema import KINDS, broken  # pydantic: needed to read records, not to write them

    if not isinstance(record["kind"], str) or record["kind"] not in KINDS:
        return f"expected a kind of {', '.join(KINDS)}, got {record['kind']!s:.40}"
    reason = broken(record)
    if reason is None:
        try:
            json_line(record).encode("utf-8")
        except UnicodeEncodeError:
            reason = "expected Unicode text, got half of a surrogate pair"
    return reason
