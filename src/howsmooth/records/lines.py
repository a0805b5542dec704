"""Records as lines of strict JSON and CSV."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from howsmooth.errors import InputError
from howsmooth.reading import read_whole, replacing

_FIELD = "checksum"
_SEAL = f', "{_FIELD}": "'
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet would run a text that begins so
# Fields as long as the text itself, or what a figure needs; CSV files do not have them.
PER_TOKEN = ("words", "shares", "coordinates", "labels", "plane", "space", "positions", "densities")


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
    try:
        return json.dumps(record, ensure_ascii=False, allow_nan=False)
    except ValueError:  # a number that JSON does not have: rare, and slow to look for
        return json.dumps(replace_non_finite(record), ensure_ascii=False, allow_nan=False)


class ChangedRecord(ValueError):
    """A record that is not as it was written: its checksum does not fit."""


def sealed_line(record: dict[str, Any]) -> str:
    """Return a record as `json_line` does, with a checksum of that line as its last field.

    Example:
        >>> sealed_line({"value": 1.5})
        '{"value": 1.5, "checksum": "e86cc32a26168246"}'
    """
    line = json_line(record)
    return f'{line[:-1]}{_SEAL if len(line) > 2 else _SEAL[2:]}{_checksum(line)}"}}'


def unsealed(line: str) -> Any:
    """Return the value of a line of JSON, without its checksum.

    Raises:
        ChangedRecord: The checksum does not fit. A line without one, of an earlier version, is not checked.
        ValueError: The line is not JSON.

    Example:
        >>> unsealed(sealed_line({"value": 1.5}))
        {'value': 1.5}
        >>> unsealed(sealed_line({"value": 1.5}).replace("1.5", "1.6"))
        Traceback (most recent call last):
        ...
        howsmooth.records.lines.ChangedRecord: it was changed after it was written: its checksum does not fit
    """
    value = parse_json(line)
    if isinstance(value, dict) and _FIELD in value:
        checksum = value.pop(_FIELD)
        # Another program may have written the same values with other spaces.
        if checksum != _checksum(line[: line.rfind(_SEAL)] + "}") and checksum != _checksum(json_line(value)):
            raise ChangedRecord("it was changed after it was written: its checksum does not fit")
    return value


def digest_of(line: str, record: Any) -> int:
    """Return a number that equal records share: the checksum of a line that `unsealed` has read.

    Args:
        line: The line.
        record: Its value. A line of an earlier version has no checksum; that of the value is computed.

    Example:
        >>> digest_of(sealed_line({"value": 1.5}), {"value": 1.5}) == digest_of('{"value":1.5}', {"value": 1.5})
        True
    """
    start, _, end = line.rpartition(_SEAL)
    sealed = start and re.fullmatch(r'([0-9a-f]{16})"\}', end)
    return int(sealed[1] if sealed else _checksum(json_line(record)), 16)


def is_intact(line: str) -> bool:
    """Return whether a line is a record as it was written; faster than `unsealed`, because nothing is parsed."""
    start, _, end = line.rpartition(_SEAL)
    if start and end == f'{_checksum(start + "}")}"}}':
        return True
    try:
        return isinstance(unsealed(line), dict)
    except (ValueError, TypeError):
        return False


def _checksum(line: str) -> str:
    return hashlib.sha256(line.encode("utf-8", "surrogatepass")).hexdigest()[:16]


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

    A text that a spreadsheet would take for a formula gets an apostrophe in front; numbers do not.

    Example:
        >>> print(csv_line(["minilm", -1.5, None, {"a": 1}, "=1+1", "-2e-3"]))
        minilm,-1.5,,"{""a"": 1}",'=1+1,-2e-3
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow([_escaped(flat_cell(cell)) for cell in cells])
    return buffer.getvalue().rstrip("\n")


def _escaped(cell: Any) -> Any:
    if not isinstance(cell, str) or not cell.startswith(_FORMULA):
        return cell
    try:
        float(cell)
    except ValueError:
        return "'" + cell
    return cell


@dataclass
class ExistingLines:
    """The records of a file that a run is about to continue.

    Attributes:
        records: The records.
        left_out: Numbers, from 1, of the lines that are cut off or were changed: the run computes them again.
        notes: What was left out, in words.
    """

    records: list[dict[str, Any]] = field(default_factory=list)
    left_out: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def remove_from(self, path: str | Path) -> None:
        """Remove the lines that were left out from the file, and end its last line."""
        if not self.left_out:
            return
        target = Path(os.path.realpath(path))
        lines = target.read_bytes().split(b"\n")
        kept = [line for number, line in enumerate(lines, 1) if number not in self.left_out and line]
        with replacing(target) as partial:
            partial.write_bytes(b"".join(line + b"\n" for line in kept))


def read_lines(path: str | Path, check: Callable[[dict[str, Any]], object], what: str, begins: str) -> ExistingLines:
    """Read the records of a file of JSON lines that a run is about to continue.

    A last line that is cut off, by a kill or a full disk, is left out; so is a line whose checksum does not fit. Any
    other line that is not a record of the expected kind is an error: a run never continues a file of another kind.

    Args:
        path: The file; it does not have to exist.
        check: Raises ValueError, KeyError or TypeError for a record of another kind.
        what: What the file is expected to contain, for error messages.
        begins: The first characters of every line.

    Returns:
        The records, none if there is no file, and what was left out.

    Raises:
        InputError: The file cannot be read, or contains anything else.
    """
    found = ExistingLines()
    try:
        lines = read_whole(Path(path), path).split(b"\n")
    except FileNotFoundError:
        return found
    except OSError as error:
        raise InputError(f"expected a file of {what}, got {path} ({error}); name another one") from None
    last = max((number for number, line in enumerate(lines, 1) if line), default=len(lines) - 1)
    for number, raw in enumerate(lines[:last], 1):
        line, is_cut = raw.decode("utf-8", "replace"), number == len(lines)
        try:
            record = unsealed(raw.decode("utf-8"))
            check(record)
        except ChangedRecord:
            found.left_out.add(number)
            found.notes.append(f"line {number} of {path} was changed after it was written; it is computed again")
            continue
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            is_cut = number == last and bool(line) and _is_partial(line, begins)
            if not is_cut:
                raise InputError(
                    f"expected {what}, one JSON object per line, got something else in line {number} of "
                    f"{path}; name another file"
                ) from None
        if is_cut:
            found.left_out.add(number)
            found.notes.append(f"the last line of {path} is cut off; it is computed again")
        else:
            found.records.append(record)
    return found


def _is_partial(line: str, begins: str) -> bool:
    """Return whether a line that is no record is the first part of one."""
    try:
        parse_json(line)
    except ValueError:
        return line.startswith(begins) or begins.startswith(line)
    return False


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
