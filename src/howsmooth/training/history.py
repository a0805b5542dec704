"""The records of a monitor: in memory, and in a file that a later run continues."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError
from howsmooth.reading import replacing
from howsmooth.records.lines import read_lines, sealed_line
from howsmooth.records.lock import only_writer


class History:
    """Records in the order of their steps. A training that is resumed at an earlier step replaces those after it.

    Args:
        path: The file; None for memory alone.

    Attributes:
        records: The records.
        run: The name of the run that the file is about; None for a new one.

    Raises:
        InputError: The file contains anything but records of a monitor, or its name ends in something else.
    """

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        """Read the records of the file."""
        self.path = None if path is None else os.fspath(path)
        self.records: list[dict[str, Any]] = []
        if self.path is None:
            return
        if not self.path.endswith(".jsonl"):
            raise InputError(f"Monitor: expected a path that ends in .jsonl, got {self.path}; rename it")
        if not Path(self.path).resolve().parent.is_dir():
            raise InputError(f"Monitor: expected a path in a folder that exists, got {self.path}; make the folder")
        found = read_lines(self.path, _check, "records of a monitor", '{"kind": "measurement"')
        found.remove_from(self.path)
        self.records = found.records

    @property
    def run(self) -> str | None:
        """The name of the run that the file is about."""
        return self.records[0]["run"] if self.records else None

    def add(self, step: int, records: Sequence[dict[str, Any]]) -> None:
        """Append the records of a step; those of this step and later ones are of a training that was taken back."""
        kept = [record for record in self.records if record["training_step"] < step]
        lines = "".join(sealed_line(record) + "\n" for record in records)
        if len(kept) < len(self.records):
            warnings.warn(
                f"the training continues at step {step}: {len(self.records) - len(kept)} records of this step and "
                "later ones are replaced",
                stacklevel=5,
            )
            if self.path is not None:
                with only_writer(self.path, "a file of records", "path"), replacing(Path(self.path)) as partial:
                    partial.write_text("".join(sealed_line(record) + "\n" for record in kept) + lines, encoding="utf-8")
        elif self.path is not None:
            with only_writer(self.path, "a file of records", "path"), open(self.path, "a", encoding="utf-8") as file:
                file.write(lines)
        self.records = [*kept, *records]


def _check(record: dict[str, Any]) -> None:
    if record["kind"] != "measurement" or not isinstance(record["training_step"], int):
        raise ValueError("expected a record of a monitor")
    str(record["run"])
