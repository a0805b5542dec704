"""A file of JSON lines that an experiment adds to. What is in the file is not computed again."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError
from howsmooth.records import json_line, read_lines

Record = dict[str, Any]


class Records:
    """The records of a file by their key. A last line that a kill cut short is dropped.

    Args:
        path: The file; it need not exist, its folder must.
        key: What tells records apart. It raises KeyError or TypeError for a record of another kind, and a file that
            holds one is refused.
        what: What the records are, for the message of that refusal.
        begins: How the line of a record begins.
    """

    def __init__(self, path: str | Path, key: Callable[[Record], Hashable], what: str, begins: str):
        self.path = Path(path)
        if self.path.is_dir() or not self.path.parent.is_dir():
            raise InputError(f"expected a file in a folder that exists, got {path}; name another file")
        self.done: dict[Any, Record] = {key(record): record for record in read_lines(self.path, key, what, begins)}
        if self.path.exists():
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def append(self, record: Record) -> None:
        """Write one record at once, so that a run that is killed loses only the one it was computing."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json_line(record) + "\n")
