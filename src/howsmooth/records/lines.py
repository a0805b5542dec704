"""Records as lines of strict JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

from howsmooth.errors import InputError

PER_TOKEN = ("words", "shares")  # fields as long as the text itself; CSV files do not have them


def json_line(record: dict[str, Any]) -> str:
    """Return a record as one line of strict JSON, with null for numbers that JSON does not have.

    Args:
        record: A dictionary of values that JSON can represent; NaN and infinities become null.

    Returns:
        The line, without a newline at its end.

    Example:
        >>> json_line({"value": 1.5, "upper": float("inf")})
        '{"value": 1.5, "upper": null}'
    """
    return json.dumps(replace_non_finite(record), ensure_ascii=False, allow_nan=False)


def replace_non_finite(value: Any) -> Any:
    """Return a copy of nested lists and dictionaries with None for every number that is not finite.

    Example:
        >>> replace_non_finite({"lower": 1.0, "upper": float("inf"), "shares": (0.5, float("nan"))})
        {'lower': 1.0, 'upper': None, 'shares': [0.5, None]}
    """
    if isinstance(value, dict):
        return {key: replace_non_finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [replace_non_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def flat_cell(cell: Any) -> Any:
    """Return a cell for a table without nesting: lists and dictionaries become JSON.

    Example:
        >>> flat_cell([1, 2]), flat_cell(3.0)
        ('[1, 2]', 3.0)
    """
    if isinstance(cell, (dict, list, tuple)):
        return json.dumps(replace_non_finite(cell), ensure_ascii=False)
    return replace_non_finite(cell)


def records_stdout() -> TextIO:
    """Return stdout, switched to UTF-8 as files of records are, whatever the encoding of the terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")
    return sys.stdout


def csv_line(cells: Sequence[Any]) -> str:
    """Return one row of CSV; lists and dictionaries are written as JSON.

    Example:
        >>> csv_line(["minilm", 1.5, None, {"a": 1}])
        'minilm,1.5,,"{""a"": 1}"'
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([flat_cell(cell) for cell in cells])
    return buffer.getvalue().rstrip("\n")


def read_lines(
    path: str | Path, check: Callable[[dict[str, Any]], object], what: str, begins: str
) -> list[dict[str, Any]]:
    """Read the records of a file of JSON lines that a run is about to continue.

    A last line without a newline was cut short when the process was killed; it is left out. Any other line that is not
    a record of the expected kind is an error: a run never continues a file of another kind.

    Args:
        path: The file; it does not have to exist.
        check: Raises ValueError, KeyError or TypeError for a record of another kind.
        what: What the file is expected to contain, for error messages.
        begins: The first characters of every line.

    Returns:
        The records, an empty list if there is no file.

    Raises:
        InputError: The file cannot be read, or contains anything else.
    """
    try:
        *lines, cut = Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"expected a file of {what}, got {path} ({error}); name another one") from None
    records = [_parse_record(line, check) for line in lines]
    wrong = records.index(None) if None in records else None if _is_partial(cut, check, begins) else len(lines)
    if wrong is not None:
        raise InputError(
            f"expected {what}, one JSON object per line, got something else in line {wrong + 1} of "
            f"{path}; name another file"
        )
    return [record for record in records if record is not None]


def _parse_record(line: str, check: Callable[[dict[str, Any]], object]) -> dict[str, Any] | None:
    """Return the record in a line, or None if the line is anything else."""
    try:
        record = parse_json(line)
        check(record)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return None
    return record


def _is_partial(line: str, check: Callable[[dict[str, Any]], object], begins: str) -> bool:
    """Return whether a line without a newline is a record, or the first part of one."""
    try:
        parse_json(line)
    except ValueError:
        return line.startswith(begins) or begins.startswith(line)
    return _parse_record(line, check) is not None  # complete except for the newline


def parse_json(line: str) -> Any:
    """Return the value of one line of JSON.

    Raises:
        ValueError: The line is not JSON, is nested too deeply, or has a number with too many digits.

    Example:
        >>> parse_json('{"n": 8}')
        {'n': 8}
    """
    try:
        return json.loads(line)
    except RecursionError:
        raise ValueError("nested too deeply") from None
