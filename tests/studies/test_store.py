"""The store: stored records survive kills, there is one writer at a time, damaged files are recovered."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from howsmooth.errors import InputError
from howsmooth.studies.store import STORE_VERSION, Store, StoreFailed


def rows(first: int, last: int, size: int = 10):
    return [(f"task{i}", {"i": i, "upper": float("inf"), "pad": "x" * size}, None) for i in range(first, last)]


def filled(path, count=50, size=10):
    with Store.write(path) as store:
        store.plan({"name": "s"}, [f"task{i}" for i in range(count)])
        for i in range(count):
            store.add(rows(i, i + 1, size))
    return path


def test_records_are_returned_in_the_order_of_the_plan(tmp_path):
    with Store.write(tmp_path / "s.sqlite") as store:
        store.plan({"name": "s"}, ["task2", "task0", "task1"])
        assert store.add(rows(0, 2)) == 2
        assert store.add(rows(1, 3)) == 1  # a task that ran twice is stored once
        store.add([("task9", None, "broke")])
        assert [record["i"] for record in store.records()] == [2, 0, 1]
        assert next(iter(store.records()))["upper"] is None
        assert store.counts() == {"planned": 3, "done": 3, "failed": 0, "other": 0}
        assert store.done(["task1", "task7"]) == {"task1"}
        store.plan({"name": "s"}, ["task0", "task9"])  # a changed study
        assert store.counts() == {"planned": 2, "done": 1, "failed": 1, "other": 2}
        assert len(list(store.records())) == 1 and len(list(store.records(everything=True))) == 3
        store.add(rows(9, 10))
        assert store.failures() == []
    with Store.read(tmp_path / "s.sqlite") as store:
        assert store.study == {"name": "s"} and store.counts()["done"] == 2


def test_a_second_writer_is_refused_and_a_reader_is_not(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store.write(path) as store:
        store.plan({}, ["task0"])
        store.add(rows(0, 1))
        refused = pytest.raises(InputError, match=rf"in use by process {os.getpid()} since .*--store")
        with refused, Store.write(path):
            pass
        with Store.read(path) as reader:
            assert reader.counts()["done"] == 1
    with Store.write(path):  # the lock is gone with its holder
        pass
    assert [file.name for file in tmp_path.iterdir()] == ["s.sqlite"]


def test_a_process_killed_while_writing(tmp_path):
    """SIGKILL between and inside transactions: every record reported as stored is there, and the lock is released."""
    path = tmp_path / "s.sqlite"
    code = f"""
        from howsmooth.studies.store import Store
        with Store.write({str(path)!r}) as store:
            store.plan({{}}, (f"task{{i}}" for i in range(10**5)))
            for i in range(10**5):
                store.add([(f"task{{i}}", {{"i": i, "pad": "x" * 300}}, None)])
                print(i, flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True) as process:
        for said in process.stdout:  # the process waits where the pipe is full: it cannot come to its end
            if int(said) >= 500:
                break
        process.send_signal(signal.SIGKILL)
        last = [said, *process.stdout.read().splitlines()][-1]
    with Store.write(path) as store:
        assert store.recovered is None
        kept = [record["i"] for record in store.records()]
    assert kept == list(range(len(kept))) and len(kept) >= int(last)


def test_a_store_of_a_later_version(tmp_path):
    path = filled(tmp_path / "s.sqlite", 1)
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {STORE_VERSION + 1}")
    db.execute("UPDATE meta SET value = '9.9' WHERE key = 'howsmooth'")
    db.commit()
    db.close()
    before = path.read_bytes()
    for open_store in (Store.write, Store.read):
        refused = pytest.raises(InputError, match=rf"version {STORE_VERSION + 1}, written by howsmooth 9\.9; install")
        with refused, open_store(path):
            pass
    assert path.read_bytes() == before


def test_other_files_are_refused_and_unchanged(tmp_path):
    text, other = tmp_path / "notes.txt", tmp_path / "other.sqlite"
    text.write_text("my notes, not a database, long enough to have no header " * 40)
    db = sqlite3.connect(other)
    db.execute("CREATE TABLE t (x)")
    db.commit()
    db.close()
    for path, words in ((text, "another kind of file"), (other, "another program")):
        before = path.read_bytes()
        for way in (Store.write, Store.read):
            with pytest.raises(InputError, match=words), way(path):
                pass
        assert path.read_bytes() == before
    with pytest.raises(InputError, match="does not exist"), Store.read(tmp_path / "none"):
        pass
    with pytest.raises(InputError, match="folder that exists"), Store.write(tmp_path / "no" / "s.sqlite"):
        pass


COUNT = 1600  # records on many pages


@pytest.mark.parametrize("share", [0.9, 0.5])
def test_readable_records_of_a_truncated_store_are_recovered(tmp_path, share):
    path = filled(tmp_path / "s.sqlite", COUNT, size=400)
    whole = path.read_bytes()
    os.truncate(path, int(len(whole) * share) // 16384 * 16384 + 100)
    with pytest.raises(InputError, match="damaged; `howsmooth study resume`"), Store.read(path) as store:
        list(store.records())
    with Store.write(path) as store:
        kept = {record["i"] for record in store.records(everything=True)}
        assert f"{len(kept)} records could be read" in store.recovered
        assert len(kept) >= COUNT * (share - 0.15), len(kept)
        store.plan({}, [f"task{i}" for i in range(COUNT)])
        for i in range(COUNT):  # and it takes the rest
            store.add(rows(i, i + 1))
        assert store.counts()["done"] == COUNT
    (damaged,) = tmp_path.glob("s.sqlite.damaged-*")
    assert len(whole) > damaged.stat().st_size > 0


def test_a_truncated_log_loses_its_last_transaction_only(tmp_path):
    """The process was killed and the log lost its end: SQLite drops the incomplete transaction."""
    path = tmp_path / "s.sqlite"
    code = f"""
        import os
        from howsmooth.studies.store import Store
        with Store.write({str(path)!r}) as store:
            for i in range(40):
                store.add([(f"task{{i}}", {{"i": i, "pad": "x" * 900}}, None)])
            os._exit(1)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)])
    log = tmp_path / "s.sqlite-wal"
    os.truncate(log, log.stat().st_size - 5000)
    with Store.write(path) as store:
        kept = [record["i"] for record in store.records(everything=True)]
    assert kept == list(range(len(kept))) and 30 <= len(kept) < 40


def test_a_full_disk_is_reported(tmp_path):
    """SQLite reports a full disk as well when a file reaches its limit of pages."""
    with Store.write(tmp_path / "s.sqlite") as store:
        store.add(rows(0, 10))
        (pages,) = store._db.execute("PRAGMA page_count").fetchone()
        store._db.execute(f"PRAGMA max_page_count = {pages + 1}")
        with pytest.raises(StoreFailed, match=r"full.*still there"):
            for i in range(10, 1000):
                store.add(rows(i, i + 1, size=500))
        kept = [record["i"] for record in store.records(everything=True)]
        assert kept == list(range(len(kept))) and len(kept) >= 10
        store._db.execute(f"PRAGMA max_page_count = {pages + 1000}")
        store.add(rows(900, 901))  # there is space again
    with Store.read(tmp_path / "s.sqlite") as store:
        assert store.done(["task900"]) and json.dumps(kept)


@contextmanager
def without_rights() -> Iterator[None]:
    """Be nobody in this process, whom the rights of files bind; other users than root are bound already."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("log", [False, True])
def test_a_store_is_read_where_nothing_can_be_written(log):
    """As on a read-only mount; after a run that was killed, the last records are in the log."""
    results = [("a", {"value": 1.0}, None), ("b", {"value": 2.0}, None)]
    with tempfile.TemporaryDirectory() as folder:  # nobody may not enter those of pytest
        os.chmod(folder, 0o755)
        path = Path(folder) / "s.sqlite"
        with Store.write(path) as store:
            store.plan({"name": "s"}, ["a", "b"])
            store.add(results[:1])
            if log:
                shutil.copyfile(path, Path(folder) / "kept.sqlite")
                store.add(results[1:])
                shutil.copyfile(f"{path}-wal", Path(folder) / "kept.sqlite-wal")
        if log:
            path = Path(folder) / "kept.sqlite"
        before = sorted(os.listdir(folder))
        os.chmod(folder, 0o555)
        try:
            with without_rights():
                with Store.read(path) as store:
                    records = list(store.records())
                with pytest.raises(InputError, match="can be written"), Store.write(path):
                    pass
        finally:
            os.chmod(folder, 0o755)
        assert [record["value"] for record in records] == ([1.0, 2.0] if log else [1.0])  # exact: as they were stored
        assert sorted(os.listdir(folder)) == before


@pytest.mark.parametrize("with_crc", [True, False])
def test_a_flipped_digit_is_found_without_parsing(tmp_path, with_crc):
    """By the CRC, or by the checksum in a store that was written before there was one."""
    path = filled(tmp_path / "s.sqlite", 20)
    with sqlite3.connect(path) as db:
        if not with_crc:
            db.execute("ALTER TABLE records DROP COLUMN crc")
        db.execute("""UPDATE records SET record = replace(record, '"i": 7,', '"i": 8,') WHERE hash = 'task7'""")
        db.execute("UPDATE records SET record = 'x' WHERE hash = 'task9'")
    db.close()
    with Store.read(path) as store:
        store.check()
        assert [line.split()[1] for line in store.changed] == ["8", "10"]
    with Store.write(path) as store:  # the CRC alone is not what is trusted
        assert "2 records (8, 10)" in store.recovered
        store.add(rows(7, 8))
        store._db.execute("UPDATE records SET crc = 5")
        store.check()
        assert not store.changed and store.counts()["done"] == 19
