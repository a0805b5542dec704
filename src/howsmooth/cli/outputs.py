"""Output files of commands: JSON lines and CSV, flushed after each record, and checks of paths."""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from howsmooth.errors import InputError
from howsmooth.reading import replacing
from howsmooth.records.lines import PER_TOKEN, ExistingLines, csv_line, records_stdout, sealed_line
from howsmooth.records.lock import only_writer

if TYPE_CHECKING:
    from rich.console import Console

Record = dict[str, Any]
Reader = Callable[[str], ExistingLines]  # reads the records of an earlier run, or raises InputError


def check_writable(path: Path, option: str) -> None:
    """Raise InputError if a path cannot be written; nothing is changed.

    Args:
        path: The file that is to be written.
        option: The option that names it, for the message.
    """
    # os.path returns False where pathlib would raise, for example for a name that is too long.
    if os.path.isdir(path):
        raise InputError(f"expected a file for {option}, got the folder {path}; add a file name")
    if os.path.isfile(path.parent):
        raise InputError(
            f"expected a folder before the file name for {option}, got {path}, where {path.parent} is a file; "
            "name another file"
        )
    if not os.path.isdir(path.parent):
        raise InputError(
            f"expected a folder that exists for {option}, got {path.parent}; create it first (mkdir -p {path.parent})"
        )
    try:
        if os.path.isfile(path):
            path.open("a").close()
        elif os.path.exists(path):
            if not os.access(path, os.W_OK):
                raise PermissionError("permission denied")
        else:  # tried under another name: a file of this one may be another process's by now
            with suppress(FileNotFoundError):
                os.stat(path)  # raises for a name that is too long
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise write_error(path, option, error) from None


def write_error(path: str | Path, option: str, error: OSError) -> InputError:
    """Return the error for a file that could not be written."""
    return InputError(
        f"expected a writable file for {option}, got {'stdout' if str(path) == '-' else path} "
        f"({(error.strerror or str(error)).lower()}); name another file"
    )


@contextmanager
def translate_write_errors(path: str | Path, option: str) -> Iterator[None]:
    """Raise an OSError within the block as an InputError that names the option."""
    try:
        yield
    except OSError as error:
        raise write_error(path, option, error) from None


def write_page(path: Path, page: str) -> int:
    """Write a page atomically; return its size in bytes."""
    content = page.encode("utf-8")
    if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
        path.write_bytes(content)
        return len(content)
    with replacing(path) as partial:
        partial.write_bytes(content)
    return len(content)


def save_console_svg(path: str, console: Console, title: str) -> None:
    """Write the output of a recording console as SVG, without the web fonts that rich would load."""
    import re

    from rich.console import CONSOLE_SVG_FORMAT

    template = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    console.save_svg(path, title=title, code_format=template)


def check_distinct_files(paths: dict[str, str | None]) -> None:
    """Raise InputError if a path is empty, or if two options name the same file.

    Args:
        paths: Paths by option; None for an option that was not given.
    """
    for option, path in paths.items():
        if path == "":
            raise InputError(f"expected a file for {option}, got an empty name; name one, or leave the option out")
    resolved = {
        option: path if path == "-" else os.path.realpath(path) for option, path in paths.items() if path is not None
    }
    for (option, path), (other, other_path) in itertools.combinations(resolved.items(), 2):
        if path == other_path:
            name = "stdout" if path == "-" else paths[other]
            raise InputError(f"expected different files for {option} and {other}, got {name} twice; change one of them")


@contextmanager
def record_files(
    json_path: str | None, csv_path: str | None, read_existing: Reader | None = None
) -> Iterator[list[RecordFile]]:
    """Check, lock and return the record files of --json and --csv; they are closed at the end of the context.

    Args:
        json_path: Path of --json, "-" for stdout, or None.
        csv_path: Path of --csv, "-" for stdout, or None.
        read_existing: Reads the records of an existing JSON file, which is then appended to; by default the file is
            overwritten.

    Raises:
        InputError: If a file cannot be written, or another process is writing it.
    """
    with ExitStack() as stack:
        files = []
        if json_path:
            files.append(RecordFile(json_path, "--json", format="json", read_existing=read_existing))
        if csv_path:
            files.append(RecordFile(csv_path, "--csv", format="csv"))
        for file in files:
            stack.enter_context(file.locked())
        yield files


class RecordFile:
    """A file of records, flushed after each one.

    The file is opened at the first record, so that a command that fails early leaves an existing file as it is.

    Attributes:
        path: The file, or "-" for stdout.
        option: The option that names the file.
        format: "json" (one object per line) or "csv".
        count: Number of records written.
        existing: Records that were in the file before; they stay and are not written again.
        notes: What of the file was left out, and is removed when a record is written.
    """

    def __init__(self, path: str, option: str, *, format: str, read_existing: Reader | None = None) -> None:
        """Check that the file can be written."""
        self.path, self.option, self.format = path, option, format
        self.count = 0
        self.existing: list[Record] = []
        self.notes: list[str] = []
        self._stream: TextIO | None = None
        self._columns: list[str] = []
        self._rows: list[Record] = []  # of a CSV file, written again when a record has further fields
        if path != "-":
            check_writable(Path(path), option)
        self._read_existing = read_existing
        self._lines: ExistingLines | None = None  # of a file that is appended to
        self._existing_ids: set[int] = set()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing the file, and read its records if `read_existing` was given."""
        with ExitStack() as stack:
            if self.path != "-" and (os.path.isfile(self.path) or not os.path.exists(self.path)):  # no pipe or device
                stack.enter_context(only_writer(self.path, f"a file for {self.option}", self.option))
            if self._read_existing is not None and os.path.isfile(self.path):
                self._lines = self._read_existing(self.path)
                self.existing, self.notes = self._lines.records, self._lines.notes
                self._existing_ids = {id(record) for record in self.existing}
            yield

    def write(self, record: Record) -> None:
        """Write a record and flush, unless it is one of `existing`."""
        if id(record) in self._existing_ids:
            return
        if self._stream is None:
            self._stream = self._open()
        if self.format == "json":
            self._stream.write(sealed_line(record) + "\n")
        else:
            self._write_row(record)
        self._stream.flush()
        self.count += 1

    def _write_row(self, record: Record) -> None:
        """Write a row; further fields are further columns of all rows, where the file can be written again."""
        assert self._stream is not None
        further = [name for name in record if name not in PER_TOKEN and name not in self._columns]
        rewritable = self.path != "-" and self._stream.seekable()
        if further and (rewritable or not self._columns):
            self._columns += further
            if self._rows:
                self._stream.seek(0)  # more columns make each line longer, so nothing of the old ones is left
            rows = [*self._rows, record]
            self._stream.write(csv_line(self._columns) + "\n")
        else:
            rows = [record]
        for row in rows:
            self._stream.write(csv_line([row.get(column) for column in self._columns]) + "\n")
        self._rows.append(record)

    def _open(self) -> TextIO:
        if self.path == "-":
            return records_stdout()
        if self._lines is not None:
            self._lines.remove_from(self.path)
            return open(self.path, "a", encoding="utf-8")
        return open(self.path, "w", encoding="utf-8")

    def close(self) -> None:
        """Close the file, but not stdout."""
        if self._stream is not None and self._stream is not sys.stdout:
            self._stream.close()
