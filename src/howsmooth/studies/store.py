"""The store: one SQLite file per study. What is in it stays in it, whatever happens to the process that writes.

Rows of a solve are one transaction in the write-ahead log: a killed process loses what it had not finished, nothing
else. (A machine that loses its power may lose the last moments, too, but never the file.) One process writes at a
time, which a lock file says; readers are always welcome.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from howsmooth import __version__
from howsmooth.errors import InputError
from howsmooth.records import json_line, parsed
from howsmooth.studies.salvage import salvage

APPLICATION, FORM = 0x686F7773, 2  # "hows"; raise FORM when stores of different forms cannot be read alike
_SCHEMA = f"""
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE tasks (position INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE);
    CREATE TABLE records (id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, record TEXT NOT NULL);
    CREATE TABLE failures (hash TEXT PRIMARY KEY, error TEXT NOT NULL, attempts INTEGER NOT NULL);
    PRAGMA application_id = {APPLICATION};
    PRAGMA user_version = {FORM};
"""


class StoreFailed(InputError):
    """The store could not take a row: a full disk, a file system that went away. What it has, it keeps."""


class Store:
    """Open with `Store.write(path)` or `Store.read(path)`, both context managers."""

    def __init__(self, path: Path, connection: sqlite3.Connection):
        self.path, self._db = path, connection
        self.recovered: str | None = None  # what was saved from a damaged file, if it was one

    @classmethod
    @contextmanager
    def write(cls, path: str | Path) -> Iterator[Store]:
        """The one writer. A missing store is made, a damaged one is saved as far as it can be read."""
        path = Path(path)
        if not path.parent.is_dir():
            raise InputError(f"expected a folder that exists for the store, got {path.parent}; create it first")
        with _lock(path):
            saved = _repaired(path)
            with _errors(path):
                db = sqlite3.connect(path, isolation_level=None)
            try:
                with _errors(path):
                    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        db.executescript("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE;" + _SCHEMA + "COMMIT;")
                    _check(db, path)
                    db.execute("PRAGMA journal_mode = WAL")
                    db.execute("PRAGMA synchronous = NORMAL")
                store = cls(path, db)
                store.recovered = saved
                yield store
            finally:
                db.close()

    @classmethod
    @contextmanager
    def read(cls, path: str | Path) -> Iterator[Store]:
        """A reader, beside whoever writes."""
        path = Path(path)
        if not path.is_file():
            raise InputError(f"expected a store, got {path}, which does not exist; run the study first")
        with _errors(path):
            # Not read-only: a reader that comes after a crash has to look into the log.
            db = sqlite3.connect(path, isolation_level=None)
        try:
            with _errors(path):
                db.execute("PRAGMA query_only = ON")
                _check(db, path)
            yield cls(path, db)
        finally:
            db.close()

    def plan(self, study: dict[str, Any], tasks: Iterable[str]) -> None:
        """Say what the study is now. Records of tasks that are no longer part of it stay, out of the way."""
        with self._transaction() as db:
            facts = {"study": json.dumps(study), "howsmooth": __version__}
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", facts.items())
            db.execute("DELETE FROM tasks")
            db.executemany("INSERT INTO tasks (hash) VALUES (?)", ((task,) for task in tasks))

    def add(self, rows: Iterable[tuple[str, dict[str, Any] | None, str | None]]) -> int:
        """Keep finished tasks, (hash, record, error) each, in one transaction; how many were new."""
        added = 0
        with self._transaction() as db:
            for task, record, error in rows:
                if record is None:
                    db.execute(
                        "INSERT INTO failures VALUES (?, ?, 1) ON CONFLICT (hash) DO UPDATE "
                        "SET error = excluded.error, attempts = attempts + 1",
                        (task, error),
                    )
                else:
                    added += db.execute(
                        "INSERT OR IGNORE INTO records (hash, record) VALUES (?, ?)", (task, json_line(record))
                    ).rowcount
                    db.execute("DELETE FROM failures WHERE hash = ?", (task,))
        return added

    def done(self, tasks: list[str]) -> set[str]:
        """Those of these tasks that have a record."""
        found: set[str] = set()
        with _errors(self.path):
            for first in range(0, len(tasks), 500):
                some = tasks[first : first + 500]
                marks = ",".join("?" * len(some))
                found.update(
                    task for (task,) in self._db.execute(f"SELECT hash FROM records WHERE hash IN ({marks})", some)
                )
        return found

    @property
    def study(self) -> dict[str, Any] | None:
        with _errors(self.path):
            row = self._db.execute("SELECT value FROM meta WHERE key = 'study'").fetchone()
        if row is None:
            return None
        try:
            return parsed(row[0])
        except (ValueError, TypeError):
            raise InputError(
                f"expected a study in {self.path}, got something else; use "
                "`howsmooth study run STUDY.toml`, which repeats nothing that is stored"
            ) from None

    def counts(self) -> dict[str, int]:
        """Tasks planned, done and failed, and records that the study no longer asks for."""
        with _errors(self.path):
            (planned,) = self._db.execute("SELECT count(*) FROM tasks").fetchone()
            (done,) = self._db.execute("SELECT count(*) FROM tasks JOIN records USING (hash)").fetchone()
            (failed,) = self._db.execute("SELECT count(*) FROM tasks JOIN failures USING (hash)").fetchone()
            (kept,) = self._db.execute("SELECT count(*) FROM records").fetchone()
        return {"planned": planned, "done": done, "failed": failed, "other": kept - done}

    def records(self, everything: bool = False) -> Iterator[dict[str, Any]]:
        """Records in the order of the plan, or all that there are in the order they came."""
        query = (
            "SELECT id, record FROM records ORDER BY id"
            if everything
            else "SELECT id, record FROM tasks JOIN records USING (hash) ORDER BY position"
        )
        with _errors(self.path):
            for place, text in self._db.execute(query):
                try:
                    record = parsed(text)
                except (ValueError, TypeError):
                    record = None
                if not isinstance(record, dict):
                    raise InputError(
                        f"expected a JSON object in record {place} of {self.path}, got something else; "
                        "the file was changed by another program: delete that row, or run the study anew"
                    )
                yield record

    def failures(self) -> list[tuple[str, str, int]]:
        """(task, why, attempts) of those that have no record."""
        with _errors(self.path):
            return self._db.execute(
                "SELECT hash, error, attempts FROM failures JOIN tasks USING (hash) ORDER BY position"
            ).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with _errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """SQLite's complaints in words that help."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(
            f"expected a whole store, got {path}, which is damaged; `howsmooth study resume` saves what can be read"
        ) from None
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith("SQLITE_NOTADB"):
            raise InputError(
                f"expected a store, got {path}, which is another kind of file; name another store"
            ) from None
        if name.startswith("SQLITE_CORRUPT"):
            raise InputError(
                f"expected a whole store, got {path}, which is damaged; `howsmooth study resume` saves what can be read"
            ) from None
        raise StoreFailed(
            f"cannot use the store {path} ({error}); what it held before is still in it: make room or "
            "repair the file system, then resume"
        ) from None


def _check(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION:
        raise InputError(f"expected a store, got {path}, an SQLite file of another program; name another store")
    (form,) = db.execute("PRAGMA user_version").fetchone()
    if form != FORM:
        made = db.execute("SELECT value FROM meta WHERE key = 'howsmooth'").fetchone()
        raise InputError(
            f"expected a store of form {FORM}, got {path} of form {form}, written by howsmooth "
            f"{made[0] if made else 'of another version'}; install that version, or run the study into "
            "another store"
        )


def _repaired(path: Path) -> str | None:
    """Replace a damaged store by what can be read of it, the damaged one kept beside it."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    db = sqlite3.connect(path, isolation_level=None)
    try:
        try:
            _check(db, path)
            if db.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok":
                return None
        except sqlite3.DatabaseError as error:
            if not (getattr(error, "sqlite_errorname", "") or "").startswith("SQLITE_CORRUPT"):
                with _errors(path):
                    raise
    finally:
        db.close()
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    fresh = path.with_name(path.name + ".saved")
    fresh.unlink(missing_ok=True)
    count = salvage(path, fresh, _SCHEMA)
    shutil.move(path, aside)
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists():
            shutil.move(log, aside.with_name(aside.name + suffix))
    os.replace(fresh, path)
    return f"the store was damaged: {count} records could be read and were kept, the old file is {aside.name}"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Be the one writer. The system lets go of the lock when the process ends, however it ends."""
    lock = path.with_name(path.name + ".lock")
    while True:
        try:
            stream = open(lock, "a+", encoding="utf-8")
        except OSError as error:
            raise InputError(
                f"expected a store that can be written, got {path} ({(error.strerror or '').lower()}); name another one"
            ) from None
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            stream.seek(0)
            holder = stream.read().strip() or "another process"
            stream.close()
            raise InputError(
                f"expected a store that nobody else is writing, got {path}, in use by {holder}; wait for "
                "it to end, or give this run another --store"
            ) from None
        # Whoever ends removes the file; one that was removed while this process waited locks nothing.
        if os.path.exists(lock) and os.fstat(stream.fileno()).st_ino == os.stat(lock).st_ino:
            break
        stream.close()
    try:
        stream.truncate(0)
        stream.write(f"process {os.getpid()} since {time.strftime('%Y-%m-%d %H:%M:%S')}\n")
        stream.flush()
        yield
    finally:
        lock.unlink(missing_ok=True)
        stream.close()
