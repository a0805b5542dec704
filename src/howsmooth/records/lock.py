"""The lock of the only writer of a file; stores and files of JSON lines share it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from howsmooth.errors import InputError


@contextmanager
def only_writer(path: str | Path, what: str, option: str) -> Iterator[None]:
    """Hold the lock of the only writer of a file. The system releases it when the process ends, however it ends.

    Args:
        path: The file; it does not have to exist. Two names of one file have one lock.
        what: What the file is, for the message: "a store".
        option: The option that names the file.

    Raises:
        InputError: Another process writes the file, or nothing can be written beside it.
    """
    file = Path(os.path.realpath(path))
    lock = file.with_name(file.name + ".lock")
    while True:
        with _open_lock(lock, path, what) as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                stream.seek(0)
                holder = stream.read().strip() or "another process"
                raise InputError(
                    f"expected {what} that nobody else is writing, got {path}, in use by {holder}; wait for "
                    f"it to end, or give this run another {option}"
                ) from None
            # A writer that ends removes the file; a lock on a file that was removed meanwhile protects nothing.
            if not lock.exists() or os.fstat(stream.fileno()).st_ino != lock.stat().st_ino:
                continue
            try:
                stream.truncate(0)
                stream.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
                stream.flush()
                yield
            finally:
                lock.unlink(missing_ok=True)
            return


def _open_lock(lock: Path, path: str | Path, what: str) -> TextIO:
    try:
        return open(lock, "a+", encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"expected {what} that can be written, got {path} ({(error.strerror or '').lower()}); name another one"
        ) from None
