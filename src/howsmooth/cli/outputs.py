"""Where records go while they are being computed: JSON lines and CSV, one flushed line per record."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from howsmooth.errors import InputError
from howsmooth.records import PER_TOKEN, csv_line, json_line

if TYPE_CHECKING:
    from rich.console import Console

Reader = Callable[[str], list[dict[str, Any]]]  # the records of a file that a run may go on with, or a refusal


def check_writable(path: Path, option: str) -> None:
    """Refuse a path that cannot be written, before anything is computed and touching nothing."""
    # os.path answers False where pathlib would raise, for example on a name that is too long.
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
    existed = os.path.exists(path)
    try:
        if not existed or os.path.isfile(path):
            path.open("a").close()
        elif not os.access(path, os.W_OK):
            raise PermissionError("permission denied")
    except OSError as error:
        raise unwritable(path, option, error) from None
    if not existed:
        path.unlink()


def unwritable(path: str | Path, option: str, error: OSError) -> InputError:
    """The line for a file that could not be written, whenever that was noticed."""
    return InputError(
        f"expected a writable file for {option}, got {'stdout' if str(path) == '-' else path} "
        f"({(error.strerror or str(error)).lower()}); name another file"
    )


@contextmanager
def writing(path: str | Path, option: str) -> Iterator[None]:
    """A failure to write, in the words of the option that asked for it."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, option, error) from None


def writable_folder(name: str, option: str) -> Path:
    """The folder, made if it is not there yet."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"expected a folder that can be made for {option}, got {name} "
            f"({(error.strerror or str(error)).lower()}); name another one"
        ) from None
    return folder


def write_page(path: Path, page: str) -> int:
    """Write a page, whole or not at all; return its size in bytes."""
    content = page.encode("utf-8")
    if path.exists() and not path.is_file():  # a device or a pipe takes what it is given
        path.write_bytes(content)
        return len(content)
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(content)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    return len(content)


def write_screen(path: str, shown: Console, title: str) -> None:
    """Write what a recording console has shown as an SVG picture, less the fonts that rich would fetch from the web."""
    import re

    from rich.console import CONSOLE_SVG_FORMAT

    frame = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    shown.save_svg(path, title=title, code_format=frame)


def refuse_one_file_twice(paths: dict[str, str | None]) -> None:
    """Refuse an empty name, and two options that name one file, however it is spelt; `paths` is option -> path."""
    for option, path in paths.items():
        if path == "":
            raise InputError(f"expected a file for {option}, got an empty name; name one, or leave the option out")
    places = {
        option: path if path == "-" else os.path.realpath(path) for option, path in paths.items() if path is not None
    }
    for (option, place), (other, other_place) in itertools.combinations(places.items(), 2):
        if place == other_place:
            what = "stdout" if place == "-" else paths[other]
            raise InputError(f"expected different files for {option} and {other}, got {what} twice; change one of them")


def record_files(json_path: str | None, csv_path: str | None, read: Reader | None = None) -> list[RecordFile]:
    """The files that --json and --csv name, refused here if they cannot be written.

    With `read`, a file of JSON lines that is there is gone on with; without, it is replaced.
    """
    wanted = ((json_path, "--json", "json"), (csv_path, "--csv", "csv"))
    return [
        RecordFile(path, option, form=form, read=read if form == "json" else None)
        for path, option, form in wanted
        if path
    ]


class RecordFile:
    """A file of records that is opened at the first one, so that a run that fails early destroys nothing.

    `path` is a file or "-" (stdout); each line is flushed the moment it is written. `kept` are the records that were
    there when a run that can be resumed began: they stay, and are not written again.
    """

    def __init__(self, path: str, option: str, *, form: str, read: Reader | None = None):
        self.path, self.option, self.form = path, option, form
        self.count = 0
        self.kept: list[dict[str, Any]] = []
        self._stream: TextIO | None = None
        self._columns: list[str] = []
        if path != "-":
            check_writable(Path(path), option)
        self._resumed = read is not None and os.path.isfile(path)  # a pipe or a device holds no records
        if read is not None and self._resumed:
            self.kept = read(path)
        self._kept = {id(record) for record in self.kept}

    def write(self, record: dict[str, Any]) -> None:
        if id(record) in self._kept:
            return
        if self._stream is None:
            self._stream = self._open()
            self._columns = [name for name in record if name not in PER_TOKEN]
            if self.form == "csv":
                self._stream.write(csv_line(self._columns) + "\n")
        line = json_line(record) if self.form == "json" else csv_line([record.get(column) for column in self._columns])
        self._stream.write(line + "\n")
        self._stream.flush()
        self.count += 1

    def _open(self) -> TextIO:
        if self.path == "-":
            return sys.stdout
        if self._resumed:  # less a last line that a kill cut short
            os.truncate(self.path, Path(self.path).read_bytes().rfind(b"\n") + 1)
            return open(self.path, "a", encoding="utf-8")
        return open(self.path, "w", encoding="utf-8")

    def close(self) -> None:
        if self._stream is not None and self._stream is not sys.stdout:
            self._stream.close()
