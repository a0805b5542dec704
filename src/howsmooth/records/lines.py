"""Records as lines of strict JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError

PER_TOKEN = ("words", "shares")  # fields as long as the text itself: CSV leaves them out


def json_line(record: dict[str, Any]) -> str:
    """Return the record as one line of strict JSON: numbers that JSON does not know become null.

    >>> json_line({"value": 1.5, "upper": float("inf")})
    '{"value": 1.5, "upper": null}'
    """
    return json.dumps(finite(record), ensure_ascii=False, allow_nan=False)


def finite(value: Any) -> Any:
    """Return the same with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flat(cell: Any) -> Any:
    """Return a cell for a table without nesting: lists and dictionaries become JSON."""
    return json.dumps(finite(cell), ensure_ascii=False) if isinstance(cell, (dict, list, tuple)) else finite(cell)


def csv_line(cells: Sequence[Any]) -> str:
    """Return one CSV row; lists and dictionaries are written as JSON."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([flat(cell) for cell in cells])
    return buffer.getvalue().rstrip("\n")


def read_lines(
    path: str | Path, check: Callable[[dict[str, Any]], object], what: str, begins: str
) -> list[dict[str, Any]]:
    """Return the records of a file of JSON lines; none if there is no file.

    A last line without its end was cut short by a kill and is left out. Anything else that is not one of `what` is
    refused: a run never continues a file of another kind. `check` raises ValueError, KeyError or TypeError for a record
    of another kind; `begins` is how the line of a record begins.
    """
    try:
        *lines, cut = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"expected a file of {what}, got {path} ({error}); name another one") from None
    records = [_checked(line, check) for line in lines]
    wrong = records.index(None) if None in records else None if _began(cut, check, begins) else len(lines)
    if wrong is not None:
        raise InputError(
            f"expected {what}, one JSON object per line, got something else in line {wrong + 1} of "
            f"{path}; name another file"
        )
    return [record for record in records if record is not None]


def _checked(line: str, check: Callable[[dict[str, Any]], object]) -> dict[str, Any] | None:
    """The record in a line, None if there is something else."""
    try:
        record = parsed(line)
        check(record)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
    return record


def _began(cut: str, check: Callable[[dict[str, Any]], object], begins: str) -> bool:
    """Whether a line without its end is the beginning of a record, as they are written."""
    try:
        parsed(cut)
    except ValueError:
        return cut.startswith(begins) or begins.startswith(cut)
    return _checked(cut, check) is not None  # whole but for its end


def parsed(line: str) -> Any:
    """Return the value of one line of JSON; ValueError for everything else, deep nesting and long numbers included."""
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
