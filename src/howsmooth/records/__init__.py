"""Records: the one format of results that all commands, studies and pages share.

A record is a plain dictionary. It has a `kind`, the version of the schema, what was measured (model, map, layer, head,
n, sample), numbers with their intervals, and their provenance. JSON lines, SQLite, CSV and Parquet files contain the
same records. Readers take the kind from the record and validate its fields (`howsmooth.questions.record_error`).
"""

from __future__ import annotations

from typing import Any

from howsmooth.records.lines import (
    PER_TOKEN,
    ChangedRecord,
    ExistingLines,
    csv_line,
    flat_cell,
    is_intact,
    json_line,
    parse_json,
    read_lines,
    records_stdout,
    replace_non_finite,
    sealed_line,
    unsealed,
)

__all__ = [
    "make_record",
    "form_error",
    "json_line",
    "records_stdout",
    "sealed_line",
    "unsealed",
    "is_intact",
    "ChangedRecord",
    "csv_line",
    "read_lines",
    "ExistingLines",
    "parse_json",
    "replace_non_finite",
    "flat_cell",
    "SCHEMA",
    "CURVE",
    "PER_TOKEN",
]

SCHEMA = 2  # 1: howsmooth 0.1, records without a kind
# The fields that distinguish one curve of values against n from another.
CURVE = ("model", "checkpoint", "text", "map", "layer", "head", "tokens", "quantity", "cutting")


def make_record(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return a record: its kind and the version of the schema, then the fields.

    Args:
        kind: The kind of a question's record, for example "measurement".
        fields: All other fields of the record.

    Returns:
        A new dictionary; `fields` is not modified.

    Example:
        >>> make_record("ball", {"n": 8})
        {'kind': 'ball', 'schema': 2, 'n': 8}
    """
    return {"kind": kind, "schema": SCHEMA, **fields}


def form_error(record: Any) -> str | None:
    """Return why a value cannot be a record of this version, or None if it has a kind and the schema's version.

    Args:
        record: Anything that a file may contain, for example one parsed line of JSON.

    Example:
        >>> form_error({"kind": "ball", "schema": 1})
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
            f"expected a record of schema {SCHEMA}, got schema {record.get('schema')!r:.40}; measure again with "
            "this version"
        )
    return None
