"""A file of JSON lines to which an experiment appends; records in the file are not computed again."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError
from howsmooth.records import read_lines, sealed_line

Record = dict[str, Any]


class Records:
    """The records of a file by their key. A last line that is incomplete, after a kill, is dropped.

    Args:
        path: The file; it need not exist, but its folder must.
        key: Identifies a record. It raises KeyError or TypeError for a record of another kind.
        what: Description of the records, for the error message.
        begins: Beginning of the line of each record.

    Attributes:
        done: The records in the file, by key.

    Raises:
        InputError: If there is no such folder, or the file has records of another kind.
    """

    def __init__(self, path: str | Path, key: Callable[[Record], Hashable], what: str, begins: str) -> None:
        """Read the file if it exists."""
        self.path = Path(path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise InputError(f"expected a file in a folder that exists, got {path}; name another file")
        existing = read_lines(self.path, key, what, begins)
        self.done: dict[Any, Record] = {key(record): record for record in existing.records}
        existing.remove_from(self.path)

    def append(self, record: Record) -> None:
        """Append a record to the file immediately, so that a killed run loses only the one in progress."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(sealed_line(record) + "\n")
