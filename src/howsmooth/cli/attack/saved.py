"""A file of records that grows: what is in there is not computed again."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from howsmooth.cli.outputs import check_writable
from howsmooth.studies.lines import json_line
from howsmooth.studies.token_attacks import read_attacks


class SavedFile:
    """`records` are those that were there when the command began; a line cut short by a kill is dropped first."""

    def __init__(self, path: str, read: Callable[[Path], list[dict[str, Any]]] = read_attacks, option: str = "--save"):
        self.path = Path(path)
        check_writable(self.path, option)
        self.records = read(self.path)
        if self.path.exists():
            written = self.path.read_bytes()
            os.truncate(self.path, written.rfind(b"\n") + 1)

    def append(self, record: dict[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json_line(record) + "\n")

    def reused(self, records: list[dict[str, Any]]) -> int:
        """How many of these records were in the file at the start."""
        there = {id(record) for record in self.records}
        return sum(id(record) in there for record in records)
