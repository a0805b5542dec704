"""The store of a study: one SQLite file that survives whatever happens to the process that writes it.

The results of a solve are one transaction in the write-ahead log: a killed process loses only what it had not finished.
(If the machine loses power, the last transactions may be missing, but the file stays intact.) A lock file admits one
writer at a time; any number of readers may open the file meanwhile. The readable rows of a damaged file are recovered.

A record is a line of JSON with its checksum, SHA-256. Beside it is a CRC of the line: `study status` sees by it, in a
third of the time, that nothing was changed.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from howsmooth import __version__
from howsmooth.errors import InputError
from howsmooth.records.lines import is_intact, json_line, parse_json, sealed_line, unsealed
from howsmooth.records.lock import only_writer

APPLICATION_ID = 0x686F7773  # "hows"
STORE_VERSION = 2  # raise it when the tables or their meaning change
_MAX_MISSING_ROWS = 20_000  # so many row numbers in sequence without a readable row: the end, or too much is damaged
_SCHEMA = f"""
    CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
    CREATE TABLE tasks (position INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE);
    CREATE TABLE records (id INTEGER PRIMARY KEY, hash TEXT NOT NULL UNIQUE, record TEXT NOT NULL, crc INTEGER);
    CREATE TABLE failures (hash TEXT PRIMARY KEY, error TEXT NOT NULL, attempts INTEGER NOT NULL);
    PRAGMA application_id = {APPLICATION_ID};
    PRAGMA user_version = {STORE_VERSION};
"""
# A record has some 2 kB: in pages of 4 kB nearly half of the file is empty.
_CREATE = f"PRAGMA page_size = 16384; PRAGMA journal_mode = WAL; BEGIN IMMEDIATE; {_SCHEMA} COMMIT;"


class StoreFailed(InputError):
    """A write to the store failed, for example because the disk is full. What was stored before is still there."""


class Store:
    """The tasks and records of a study in an SQLite file.

    Open it with `Store.write(path)` or `Store.read(path)`; both are context managers.

    Attributes:
        path: The file.
        recovered: What was recovered if the file was damaged, in words; else None.
        changed: What `records` left out because it is not as it was written, one line each.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Store.write(f"{folder}/growth.sqlite") as store:
        ...         store.plan({"name": "growth"}, ["task 1", "task 2"])
        ...         store.add([("task 1", {"value": 2.5}, None)])
        ...     with Store.read(f"{folder}/growth.sqlite") as store:
        ...         store.counts(), list(store.records())
        1
        ({'planned': 2, 'done': 1, 'failed': 0, 'other': 0}, [{'value': 2.5}])
    """

    def __init__(self, path: Path, connection: sqlite3.Connection):
        """Wrap an open connection; use `Store.write` or `Store.read` instead."""
        self.path, self._db = path, connection
        self.recovered: str | None = None
        self.changed: list[str] = []

    @classmethod
    @contextmanager
    def write(cls, path: str | Path) -> Iterator[Store]:
        """Open a store for writing; only one process at a time may.

        A store that does not exist is created. If the file is damaged, the rows that can be read are recovered. Records
        that are not as they were written are removed, so that the study computes them again.
        """
        path = Path(path)
        if not path.parent.is_dir():
            raise InputError(f"expected a folder that exists for the store, got {path.parent}; create it first")
        with only_writer(path, "a store", "--store"):
            recovered = _recover(path)
            with _errors(path):
                db = sqlite3.connect(path, isolation_level=None)
            try:
                with _errors(path):
                    if not db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        db.executescript(_CREATE)
                    _check(db, path)
                    if not _has_crc(db):
                        db.execute("ALTER TABLE records ADD COLUMN crc INTEGER")
                    db.execute("PRAGMA journal_mode = WAL")
                    db.execute("PRAGMA synchronous = NORMAL")
                store = cls(path, db)
                store.recovered = "; ".join(filter(None, (recovered, store._remove_changed()))) or None
                yield store
            finally:
                db.close()

    @classmethod
    @contextmanager
    def read(cls, path: str | Path) -> Iterator[Store]:
        """Open a store for reading, also while another process writes it, and where nothing can be written."""
        path = Path(path)
        if not path.is_file():
            raise InputError(f"expected a store, got {path}, which does not exist; run the study first")
        with ExitStack() as stack:
            with _errors(path):
                # Not read-only: after a crash a reader has to apply the write-ahead log.
                db = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
                try:
                    db.execute("PRAGMA query_only = ON")
                    _check(db, path)
                except sqlite3.OperationalError:
                    if _can_write_beside(path):
                        raise
                    db = stack.enter_context(_read_only(path))
                    _check(db, path)
            yield cls(path, db)

    def plan(self, study: dict[str, Any], tasks: Iterable[str]) -> None:
        """Set the study and its tasks. Records of tasks that are no longer part of it stay in the file."""
        with self._transaction() as db:
            facts = {"study": json.dumps(study), "howsmooth": __version__}
            db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", facts.items())
            db.execute("DELETE FROM tasks")
            db.executemany("INSERT INTO tasks (hash) VALUES (?)", ((task,) for task in tasks))

    def add(self, results: Iterable[tuple[str, dict[str, Any] | None, str | None]]) -> int:
        """Store results, (task, record, error) each, in one transaction; return how many records were new."""
        added = 0
        with self._transaction() as db:
            for task, record, error in results:
                if record is None:
                    db.execute(
                        "INSERT INTO failures VALUES (?, ?, 1) ON CONFLICT (hash) DO UPDATE "
                        "SET error = excluded.error, attempts = attempts + 1",
                        (task, error),
                    )
                else:
                    line = sealed_line(record)
                    row = (task, line, zlib.crc32(line.encode("utf-8", "replace")))
                    insert = "INSERT OR IGNORE INTO records (hash, record, crc) VALUES (?, ?, ?)"
                    added += db.execute(insert, row).rowcount
                    db.execute("DELETE FROM failures WHERE hash = ?", (task,))
        return added

    def done(self, tasks: list[str]) -> set[str]:
        """Return which of these tasks have a record."""
        found: set[str] = set()
        with _errors(self.path):
            for first in range(0, len(tasks), 500):
                batch = tasks[first : first + 500]  # SQLite limits the number of parameters
                marks = ",".join("?" * len(batch))
                found.update(
                    task for (task,) in self._db.execute(f"SELECT hash FROM records WHERE hash IN ({marks})", batch)
                )
        return found

    @property
    def study(self) -> dict[str, Any] | None:
        """The study as plain values; None if none was set."""
        with _errors(self.path):
            row = self._db.execute("SELECT value FROM meta WHERE key = 'study'").fetchone()
        if row is None:
            return None
        try:
            study = parse_json(row[0])
        except (ValueError, TypeError):
            study = None
        if not isinstance(study, dict):
            raise InputError(
                f"expected a study in {self.path}, got something else; use "
                "`howsmooth study run STUDY.toml`, which repeats nothing that is stored"
            )
        return study

    def counts(self) -> dict[str, int]:
        """Return the numbers of tasks planned, done and failed, and of other records, from an earlier plan."""
        with _errors(self.path):
            (planned,) = self._db.execute("SELECT count(*) FROM tasks").fetchone()
            (done,) = self._db.execute("SELECT count(*) FROM tasks JOIN records USING (hash)").fetchone()
            (failed,) = self._db.execute("SELECT count(*) FROM tasks JOIN failures USING (hash)").fetchone()
            (kept,) = self._db.execute("SELECT count(*) FROM records").fetchone()
        return {"planned": planned, "done": done, "failed": failed, "other": kept - done}

    def records(self, everything: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the records of the study in the order of its plan.

        Args:
            everything: Yield all records of the file instead, in the order in which they were added.
        """
        return (record for _, record in self.lines(everything))

    def lines(self, everything: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (line, record) for each of the `records`: as they are stored, and parsed."""
        query = (
            "SELECT id, record FROM records ORDER BY id"
            if everything
            else "SELECT id, record FROM tasks JOIN records USING (hash) ORDER BY position"
        )
        self.changed = []
        with _errors(self.path):
            for number, text in self._db.execute(query):
                try:
                    record = unsealed(text)
                    if "\\u" in text:  # perhaps half of a surrogate pair, which cannot be written
                        json_line(record).encode()
                except (ValueError, TypeError):
                    record = None
                if isinstance(record, dict):
                    yield text, record
                else:
                    self.changed.append(self._left_out(number))

    def _remove_changed(self) -> str | None:
        """Remove the records that are not as they were written; return which, in words, or None if there are none."""
        with self._transaction() as db:
            rows = db.execute("SELECT id, record FROM records ORDER BY id")
            changed = [number for number, text in rows if not (isinstance(text, str) and is_intact(text))]
            db.executemany("DELETE FROM records WHERE id = ?", ((number,) for number in changed))
        if not changed:
            return None
        numbers = ", ".join(map(str, changed[:10])) + (" …" if len(changed) > 10 else "")
        return (
            f"{len(changed)} record{'s' * (len(changed) > 1)} ({numbers}) of {self.path.name} changed after being "
            "written, and will be computed again"
        )

    def check(self) -> None:
        """Set `changed` from the CRCs of the records, and the checksums of those whose CRC does not fit."""
        with _errors(self.path):
            crc = "crc" if _has_crc(self._db) else "NULL"
            rows = self._db.execute(f"SELECT id, {crc}, CAST(record AS BLOB) FROM records ORDER BY id")
            differing = [number for number, expected, line in rows if zlib.crc32(line) != expected]
            one = "SELECT record FROM tasks JOIN records USING (hash) WHERE id = ?"
            texts = ((number, self._db.execute(one, (number,)).fetchone()) for number in differing)
            self.changed = [
                self._left_out(number)
                for number, row in texts
                if row is not None and not (isinstance(row[0], str) and is_intact(row[0]))
            ]

    def _left_out(self, number: int) -> str:
        return (
            f"record {number} of {self.path.name} was changed after it was written and is left out; "
            "`howsmooth study resume` computes it again"
        )

    def failures(self) -> list[tuple[str, str, int]]:
        """Return (task, error, attempts) of each failed task."""
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


def description_of(descriptions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return what a store keeps of a study: its spec, or those of its questions, as `specs_of` reads them."""
    return descriptions[0] if len(descriptions) == 1 else {"specs": list(descriptions)}


def _can_write_beside(path: Path) -> bool:
    """Return whether the files of a write-ahead log can be written beside a store; readers need them, too."""
    try:
        with tempfile.TemporaryFile(dir=os.path.dirname(os.path.realpath(path))):
            return True
    except OSError:
        return False


@contextmanager
def _read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a store on a file system where nothing can be written, such as a read-only mount.

    Nobody writes it there, so that SQLite needs neither locks nor a shared index of the log ("immutable"). It ignores
    the log then, which has the last records of a run that was killed: such a store is copied together with its log.
    """
    file = Path(os.path.realpath(path))
    log = file.with_name(file.name + "-wal")
    with tempfile.TemporaryDirectory(prefix="howsmooth-store-") as folder:
        if log.is_file() and log.stat().st_size:
            copy = Path(folder) / file.name
            shutil.copyfile(file, copy)
            shutil.copyfile(log, copy.with_name(log.name))
            address = copy.as_uri()
        else:
            address = file.as_uri() + "?immutable=1"
        with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as db:
            db.execute("PRAGMA query_only = ON")
            yield db


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite into errors that say what to do."""
    try:
        yield
    except UnicodeDecodeError:
        raise InputError(
            f"expected an intact store, got {path}, which is damaged; `howsmooth study resume` recovers what it can"
        ) from None
    except sqlite3.DatabaseError as error:
        name = getattr(error, "sqlite_errorname", "") or ""
        if name.startswith("SQLITE_NOTADB"):
            raise InputError(
                f"expected a store, got {path}, which is another kind of file; name another store"
            ) from None
        if name.startswith("SQLITE_CORRUPT"):
            raise InputError(
                f"expected an intact store, got {path}, which is damaged; `howsmooth study resume` recovers what it can"
            ) from None
        raise StoreFailed(
            f"cannot use the store {path} ({error}); what was stored before is still there: free some space or "
            "repair the file system, then resume"
        ) from None


def _check(db: sqlite3.Connection, path: Path) -> None:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION_ID:
        raise InputError(f"expected a store, got {path}, an SQLite file of another program; name another store")
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version != STORE_VERSION:
        written_by = db.execute("SELECT value FROM meta WHERE key = 'howsmooth'").fetchone()
        raise InputError(
            f"expected a store of version {STORE_VERSION}, got {path} of version {version}, written by howsmooth "
            f"{written_by[0] if written_by else 'of another version'}; install that version, or run the study into "
            "another store"
        )


def _has_crc(db: sqlite3.Connection) -> bool:
    """Return whether the records have CRCs, which stores did not have at first."""
    return any(name == "crc" for _, name, *_ in db.execute("PRAGMA table_info(records)"))


def _recover(path: Path) -> str | None:
    """If a store is damaged, replace it by what can be read of it and keep the damaged file under another name.

    Returns:
        What was recovered, in words; None if the store is intact.
    """
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
    damaged = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    fresh = path.with_name(path.name + ".saved")
    fresh.unlink(missing_ok=True)
    count = _copy_readable_rows(path, fresh)
    shutil.move(path, damaged)
    for suffix in ("-wal", "-shm"):
        log = path.with_name(path.name + suffix)
        if log.exists():
            shutil.move(log, damaged.with_name(damaged.name + suffix))
    os.replace(fresh, path)
    return f"the store was damaged: {count} records could be read and were kept, the old file is {damaged.name}"


def _copy_readable_rows(damaged: Path, fresh: Path) -> int:
    """Copy every row of a damaged store that can be read into a new one; return the number of records.

    Rows are read one by one: a page that is damaged costs the rows on it and no others. The indices, which may be what
    is damaged, are not used. `writable_schema` makes SQLite read a file that is shorter than its header says.
    """
    old, new = sqlite3.connect(damaged, isolation_level=None), sqlite3.connect(fresh, isolation_level=None)
    try:
        old.execute("PRAGMA writable_schema = ON")
        new.executescript(_CREATE)
        new.execute("BEGIN IMMEDIATE")
        for table, columns, on_conflict in (
            ("meta", "key, value", "REPLACE"),
            ("tasks", "position, hash", "IGNORE"),
            ("records", "hash, record", "IGNORE"),
        ):
            insert = f"INSERT OR {on_conflict} INTO {table} ({columns}) VALUES (?, ?)"
            for first, second in _readable_rows(old, f"SELECT {columns} FROM {table} WHERE rowid = ?"):
                if table != "records" or (isinstance(second, str) and is_intact(second)):
                    new.execute(insert, (first, second))
        new.execute("COMMIT")
        return new.execute("SELECT count(*) FROM records").fetchone()[0]
    finally:
        old.close()
        new.close()


def _readable_rows(db: sqlite3.Connection, query: str) -> Iterator[tuple[Any, Any]]:
    """Yield the rows that a query by row number can read."""
    number = missing = 0
    while missing < _MAX_MISSING_ROWS:
        number += 1
        try:
            row = db.execute(query, (number,)).fetchone()
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            row = None
        missing = missing + 1 if row is None else 0
        if row is not None:
            yield row
