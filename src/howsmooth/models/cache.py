"""The cache folder, and folders in it that are complete or do not exist.

A folder is built under a temporary name (`building_folder`) and then renamed; if its process dies, it is removed later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows: abandoned folders are recognised by their age only
    fcntl = None  # type: ignore[assignment]

_BUILDING = "building-"  # in the name of a folder that is not complete
_ABANDONED_AFTER = 24 * 3600.0  # seconds, for a folder without a lock


def cache_root(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the cache folder: the argument, or $HOWSMOOTH_CACHE, or ~/.cache/howsmooth."""
    chosen = cache_dir or os.environ.get("HOWSMOOTH_CACHE") or "~/.cache/howsmooth"
    return Path(chosen).expanduser()


@contextlib.contextmanager
def building_folder(parent: Path, prefix: str = "") -> Iterator[Path]:
    """Create a temporary folder in `parent`, and remove it at the end of the context unless it was renamed.

    A lock file shows other processes that the folder is in use. The system releases the lock when this process ends for
    any reason; the next process that builds something then removes the folder.
    """
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(parent)
    folder = parent / f"{prefix}{_BUILDING}{uuid.uuid4().hex[:12]}"
    lock = _lock_path(folder)
    with lock.open("w") as stream:
        _try_lock(stream)
        folder.mkdir()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink(missing_ok=True)


def remove_abandoned(parent: Path) -> None:
    """Remove folders in `parent` whose process died while building them."""
    for folder in parent.glob(f"*{_BUILDING}*"):
        lock = _lock_path(folder)
        if folder.suffix == lock.suffix or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            if not lock.exists():
                if time.time() - folder.stat().st_mtime > _ABANDONED_AFTER:
                    shutil.rmtree(folder)
                continue
            with lock.open("r+") as stream:
                if _try_lock(stream):
                    shutil.rmtree(folder)
                    lock.unlink(missing_ok=True)


def _lock_path(folder: Path) -> Path:
    return folder.with_name(folder.name + ".lock")


def _try_lock(stream: IO[str]) -> bool:
    """Take the lock if it is free; return whether it was."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
