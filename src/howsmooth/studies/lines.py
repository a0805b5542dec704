"""Records as lines: strict JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

PER_TOKEN = ("words", "shares")  # fields as long as the text itself: CSV leaves them out


def json_line(record: dict[str, Any]) -> str:
    """The record as one line of strict JSON: numbers that JSON does not know become null.

    >>> json_line({"value": 1.5, "upper": float("inf")})
    '{"value": 1.5, "upper": null}'
    """
    return json.dumps(finite(record), ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """The same with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flat(cell: Any) -> Any:
    """A cell for a table without nesting: lists and dictionaries become JSON."""
    return json.dumps(finite(cell), ensure_ascii=False) if isinstance(cell, (dict, list, tuple)) else finite(cell)


def csv_line(cells: list[Any]) -> str:
    """One CSV row; lists and dictionaries are written as JSON."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([flat(cell) for cell in cells])
    return buffer.getvalue().rstrip("\n")
