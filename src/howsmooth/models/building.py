"""Folders of the cache that are being made: complete when renamed into place, gone if their process dies."""

from __future__ import annotations

import contextlib
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # not on Windows: what a dead process left is told by its age alone
    fcntl = None  # type: ignore[assignment]

_MARK = "building-"
_OLD = 24 * 3600.0  # seconds after which a folder without a lock was surely abandoned


@contextlib.contextmanager
def building_folder(parent: Path, prefix: str = "") -> Iterator[Path]:
    """Make a new folder in `parent` to build in, and remove it afterwards unless it was renamed.

    A lock beside the folder tells other processes that it is in use. The system releases the lock when this process
    ends, however that happens: the next process that builds something removes the folder.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(parent)
    folder = parent / f"{prefix}{_MARK}{uuid.uuid4().hex[:12]}"
    lock = _lock_of(folder)
    with lock.open("w") as stream:
        _locked(stream)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def remove_abandoned(parent: Path) -> None:
    """Remove folders in `parent` whose process died while it was building."""
    for folder in parent.glob(f"*{_MARK}*"):
        lock = _lock_of(folder)
        if folder.suffix == lock.suffix or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            if not lock.exists():
                if time.time() - folder.stat().st_mtime > _OLD:
                    shutil.rmtree(folder)
                continue
            with lock.open("r+") as stream:
                if _locked(stream):
                    shutil.rmtree(folder)
                    lock.unlink(missing_ok=True)


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".lock")


def _locked(stream: IO[str]) -> bool:
    """Take the lock if it is free; whether it was."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
