"""Where records go while they are being computed: JSON lines and CSV, one flushed line per record."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import os
import sys
from pathlib import Path
from typing import Any, TextIO

from howsmooth.errors import InputError


def check_writable(path: Path, option: str) -> None:
    """Refuse a path that cannot be written, before anything is computed and touching nothing."""
    if path.is_dir():
        raise InputError(f"expected a file for {option}, got the folder {path}; add a file name")
    if not path.parent.is_dir():
        raise InputError(
            f"expected a folder that exists for {option}, got {path.parent}; "
            f"create it first (mkdir -p {path.parent})"
        )
    existed = path.exists()
    try:
        if not existed or path.is_file():
            path.open("a").close()
        elif not os.access(path, os.W_OK):
            raise PermissionError("permission denied")
    except OSError as error:
        raise InputError(
            f"expected a writable path for {option}, got {path} "
            f"({(error.strerror or str(error)).lower()}); name another file"
        ) from None
    if not existed:
        path.unlink()


def refuse_one_file_twice(paths: dict[str, str | None]) -> None:
    """Refuse two options that name one file; `paths` is option -> path."""
    for (option, path), (other, other_path) in itertools.combinations(paths.items(), 2):
        if path is not None and path == other_path:
            raise InputError(f"expected different files for {option} and {other}, got {path} twice")


def json_line(record: dict[str, Any]) -> str:
    """The record as one line of strict JSON: numbers that JSON does not know become null.

    >>> json_line({"value": 1.5, "upper": float("inf")})
    '{"value": 1.5, "upper": null}'
    """
    return json.dumps(_finite(record), ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def csv_line(cells: list[Any]) -> str:
    """One CSV row; lists and dictionaries are written as JSON."""
    buffer = io.StringIO()
    plain = [
        json.dumps(_finite(cell), ensure_ascii=False) if isinstance(cell, (dict, list)) else cell
        for cell in cells
    ]
    csv.writer(buffer, lineterminator="\n").writerow(plain)
    return buffer.getvalue().rstrip("\n")


class RecordFile:
    """A file of records that is opened at the first one, so that a run that fails early destroys nothing.

    `path` is a file or "-" (stdout); each line is flushed the moment it is written.
    """

    def __init__(self, path: str, option: str, *, form: str):
        self.path, self.option, self.form = path, option, form
        self.count = 0
        self._stream: TextIO | None = None
        self._columns: list[str] = []
        if path != "-":
            check_writable(Path(path), option)

    def write(self, record: dict[str, Any]) -> None:
        if self._stream is None:
            self._stream = sys.stdout if self.path == "-" else open(self.path, "w", encoding="utf-8")
            self._columns = list(record)
            if self.form == "csv":
                self._stream.write(csv_line(self._columns) + "\n")
        line = (
            json_line(record)
            if self.form == "json"
            else csv_line([record.get(column) for column in self._columns])
        )
        self._stream.write(line + "\n")
        self._stream.flush()
        self.count += 1

    def close(self) -> None:
        if self._stream is not None and self._stream is not sys.stdout:
            self._stream.close()
