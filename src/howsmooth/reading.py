"""Whole files: one that is too large is an error before it fills the memory, and one is replaced in one step."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from howsmooth.errors import InputError

LARGEST = 1 << 31  # bytes of a text, which takes a few times as much memory
LARGEST_LINE = 1 << 26  # of a record, whose arrays have files of their own from 100 kB on
LARGEST_TOML = 1 << 24
_BLOCK = 1 << 24


def read_whole(source: Path | BinaryIO, name: object, largest: int = LARGEST) -> bytes:
    """Return the content of a file, a pipe or a device.

    Args:
        source: The path, or an open stream.
        name: What the message calls it.
        largest: The largest size, in bytes.

    Raises:
        InputError: There is more; no more than that has been read.
        OSError: It cannot be read.

    Example:
        >>> import io
        >>> read_whole(io.BytesIO(b"rain"), "stdin")
        b'rain'
        >>> read_whole(io.BytesIO(b"rain"), "stdin", largest=3)
        Traceback (most recent call last):
        ...
        howsmooth.errors.InputError: expected at most 3 bytes, got more in stdin; give a part of it
    """
    if isinstance(source, Path):
        with source.open("rb") as stream:
            return read_whole(stream, name, largest)
    blocks: list[bytes] = []
    size = 0
    while block := source.read(min(_BLOCK, largest - size + 1)):
        size += len(block)
        if size > largest:
            raise InputError(f"expected at most {largest:,} bytes, got more in {name}; give a part of it")
        blocks.append(block)
    return b"".join(blocks)


def read_line(stream: BinaryIO, name: object, largest: int = LARGEST_LINE) -> bytes:
    """Return the next line of a file, with its end; empty after the last one.

    Args:
        stream: The file.
        name: What the message calls it.
        largest: The largest size of a line, in bytes.

    Raises:
        InputError: The line is longer; no more than that has been read.
    """
    line = stream.readline(largest + 1)
    if len(line) > largest:
        raise InputError(f"expected lines of at most {largest:,} bytes, got a longer one in {name}; name another file")
    return line


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield the name of a new file, which replaces a file if the block ends without an error and is removed otherwise.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replacing(f"{folder}/page.html") as partial:
        ...         _ = partial.write_text("whole")
        ...     Path(folder, "page.html").read_text(), partial.exists()
        ('whole', False)
    """
    target = Path(path)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")  # another process may write the same file
    try:
        yield partial
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
