"""The local engine: dead workers are replaced, finished tasks are kept, failures are reported."""

from __future__ import annotations

import os
import tracemalloc
from collections import Counter

import pytest

from howsmooth.studies.engines import in_this_process, local_engine
from howsmooth.studies.store import Store

WORK = '''
import os, signal, time
from dataclasses import dataclass, replace

@dataclass(frozen=True)
class Bundle:
    tasks: list
    marks: str = ""
    def without(self, done):
        left = [task for task in self.tasks if task not in done]
        return replace(self, tasks=left) if left else None

def threads(bundle):
    yield [(task, {"threads": os.environ["OMP_NUM_THREADS"], "pid": os.getpid()}, None) for task in bundle.tasks]

def padded(bundle):
    yield [(task, {"value": 1.0, "pad": "x" * 1024}, None) for task in bundle.tasks]

def noop(bundle):
    yield [(task, {"value": 1.0}, None) for task in bundle.tasks]

def deadly(bundle):
    """Dies once, by SIGKILL, after the first task of each bundle; always at a task named poison."""
    for task in bundle.tasks:
        mark = os.path.join(bundle.marks, task + ".died")
        if "poison" in task or ("b" in task and not os.path.exists(mark)):
            open(mark, "a").write("x")
            os.kill(os.getpid(), signal.SIGKILL)
        open(os.path.join(bundle.marks, task + ".ran"), "a").write("x")
        yield [(task, {"task": task}, None)]

def raising(bundle):
    if "bad" in bundle.tasks:
        raise ValueError("expected something else")
    yield from noop(bundle)
'''


@pytest.fixture
def work(tmp_path, monkeypatch):
    """A module that workers can import."""
    import importlib

    (tmp_path / "work_of_this_test.py").write_text(WORK)
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("work_of_this_test")
    yield module
    import sys

    del sys.modules["work_of_this_test"]


def test_every_task_runs_once_on_the_requested_number_of_processes(work):
    bundles = [work.Bundle([f"t{i}.{j}" for j in range(3)]) for i in range(20)]
    rows = [row for rows in local_engine(bundles, work.threads, workers=2, threads=3) for row in rows]
    assert Counter(task for task, _, _ in rows) == Counter(task for bundle in bundles for task in bundle.tasks)
    assert {record["threads"] for _, record, _ in rows} == {"3"}
    pids = {record["pid"] for _, record, _ in rows}
    assert 1 <= len(pids) <= 2 and os.getpid() not in pids


def test_tasks_of_a_dead_worker_are_retried(work, tmp_path):
    bundles = [
        work.Bundle(["a0", "b0", "c0"], str(tmp_path)),
        work.Bundle(["a1", "poison", "c1"], str(tmp_path)),
        work.Bundle(["a2"], str(tmp_path)),
    ]
    rows = [row for rows in local_engine(bundles, work.deadly, workers=2, threads=1, retries=1) for row in rows]
    ends = {task: error for task, _, error in rows}
    assert len(rows) == len(ends) == 7
    assert [task for task, error in ends.items() if error] == ["poison", "c1"]
    assert "given up after 2 attempts: its process ended with SIGKILL" in ends["poison"]
    ran = {path.stem: len(path.read_text()) for path in tmp_path.glob("*.ran")}
    assert ran == {"a0": 1, "b0": 1, "c0": 1, "a1": 1, "a2": 1}  # nothing that had come back ran again


def test_work_that_raises_is_not_retried(work):
    bundles = [work.Bundle(["bad", "x"]), work.Bundle(["fine"])]
    for engine in (in_this_process, lambda *a: local_engine(*a, workers=1, threads=1)):
        ends = {task: error for rows in engine(iter(bundles), work.raising) for task, _, error in rows}
        assert ends["fine"] is None and "expected something else" in ends["bad"] and "expected" in ends["x"]


def test_closing_the_engine_ends_its_processes(work):
    engine = local_engine((work.Bundle([str(i)]) for i in range(10**9)), work.threads, workers=2, threads=1)
    pids = {next(engine)[0][1]["pid"] for _ in range(5)}
    engine.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_memory_of_the_driver_does_not_grow_with_the_tasks(work, tmp_path):
    """2,000 records of 1 KiB through pipe, engine and store leave no memory allocated."""
    count, peaks = 2000, []
    with Store.write(tmp_path / "s.sqlite") as store:
        store.plan({}, (f"t{i}" for i in range(count)))
        bundles = (work.Bundle([f"t{i}"]) for i in range(count))
        tracemalloc.start()
        try:
            for i, rows in enumerate(local_engine(bundles, work.padded, workers=1, threads=1), 1):
                store.add(rows)
                if i % (count // 4) == 0:
                    peaks.append(tracemalloc.get_traced_memory()[1])
                    tracemalloc.reset_peak()
        finally:
            tracemalloc.stop()
        assert store.counts()["done"] == count
    assert max(peaks) - min(peaks) < count // 4 * 512  # half of what the records of one quarter hold
