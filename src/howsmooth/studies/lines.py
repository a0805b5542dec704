"""Records as lines: strict JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError


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


def read_records(path: str | Path, check: Callable[[dict[str, Any]], object], what: str) -> list[dict[str, Any]]:
    """The records of a file of JSON lines, its last line left out if it was cut short; none if there is no file.

    check: raises ValueError, KeyError or TypeError for a line that is not one of `what`.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"expected a file of {what}, got {path} ({error}); name another one") from None
    records = []
    for number, line in enumerate(lines):
        try:
            record = json.loads(line)
            check(record)
        except (ValueError, KeyError, TypeError):
            if number + 1 == len(lines):
                break
            raise InputError(f"expected {what}, one JSON object per line, got something else in line {number + 1} of "
                             f"{path}; name another file") from None
        records.append(record)
    return records
