"""Reading what is left of a damaged store."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

_GIVE_UP = 20_000  # rows in a row that cannot be read: beyond the end, or too much is gone


def salvage(damaged: Path, fresh: Path, schema: str) -> int:
    """Copy every row that can still be read into a new store; the number of records.

    Rows are asked for one by one: a page that is gone costs the rows on it and no others. The indices, which may be
    what is broken, are never used. `writable_schema` makes SQLite read a file that is shorter than its header says.
    """
    old, new = sqlite3.connect(damaged, isolation_level=None), sqlite3.connect(fresh, isolation_level=None)
    try:
        old.execute("PRAGMA writable_schema = ON")
        new.executescript("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE;" + schema + "COMMIT;")
        new.execute("BEGIN IMMEDIATE")
        _copy(
            old, new, "SELECT rowid, key, value FROM meta WHERE rowid = ?", "INSERT OR REPLACE INTO meta VALUES (?, ?)"
        )
        _copy(
            old,
            new,
            "SELECT rowid, position, hash FROM tasks WHERE rowid = ?",
            "INSERT OR IGNORE INTO tasks VALUES (?, ?)",
        )
        _copy(
            old,
            new,
            "SELECT rowid, hash, record FROM records WHERE rowid = ?",
            "INSERT OR IGNORE INTO records (hash, record) VALUES (?, ?)",
            whole=True,
        )
        new.execute("COMMIT")
        return new.execute("SELECT count(*) FROM records").fetchone()[0]
    finally:
        old.close()
        new.close()


def _copy(old: sqlite3.Connection, new: sqlite3.Connection, ask: str, keep: str, whole: bool = False) -> None:
    row = missing = 0
    while missing < _GIVE_UP:
        row += 1
        try:
            found = old.execute(ask, (row,)).fetchone()
            if found is None or (whole and not _whole(found[2])):
                raise sqlite3.DatabaseError("no such row")
        except (sqlite3.DatabaseError, UnicodeDecodeError):
            missing += 1
            continue
        missing = 0
        new.execute(keep, found[1:])


def _whole(record: str) -> bool:
    try:
        return isinstance(json.loads(record), dict)
    except (TypeError, ValueError):
        return False
