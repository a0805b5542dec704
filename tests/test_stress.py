"""The stress runner applies its disturbances and reports failures."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager

import pytest

from tests import stress

SEEN = """
import os, sys

def test_seen():
    print("threads", os.environ.get("OMP_NUM_THREADS"), "priority", os.nice(0), "shuffled",
          "pytest_randomly" in sys.modules)
    assert {passes}
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    """A separate folder with one test, which prints its environment."""
    monkeypatch.setattr(stress, "ROOT", tmp_path)
    monkeypatch.setattr(stress, "PARALLEL", ("-s", "-p", "no:randomly"))

    def write(passes: bool = True) -> str:
        (tmp_path / "test_seen.py").write_text(SEEN.format(passes=passes))
        return str(tmp_path / "test_seen.py")

    return write


@pytest.mark.slow
def test_disturbances_reach_the_tests(suite, capfd, monkeypatch):
    counts = []

    @contextmanager
    def loops(count):
        counts.append(count)
        yield

    monkeypatch.setattr(stress, "busy_loops", loops)
    assert stress.main(["--runs", "threads-8+busy+shuffled nice", "--seed", "7", suite()]) == 0
    first, second = re.findall(r"threads (\w+) priority (\d+) shuffled (\w+)", out := capfd.readouterr().out)
    assert (first[0], first[2]) == ("8", "True") and second[1:] == ("19", "False")
    assert counts == [os.cpu_count(), 0] and "random order; seed 7" in out
    assert "passed  threads-8+busy+shuffled" in out and "passed  nice" in out


def test_busy_loops_run_and_end():
    with stress.busy_loops(2) as loops:
        assert [loop.poll() for loop in loops] == [None, None]
    assert all(loop.poll() is not None for loop in loops)


def test_a_failure_is_reported(suite, capfd):
    assert stress.main(["--runs", "threads-1", suite(passes=False)]) == 1
    assert "FAILED (pytest ended with 1)  threads-1" in capfd.readouterr().out


def test_an_unknown_disturbance_is_refused(suite):
    with pytest.raises(SystemExit, match=r"expected disturbances among threads-1.*got 'earthquake'"):
        stress.main(["--runs", "threads-1 busy+earthquake", suite()])


def test_every_run_can_be_parsed():
    assert len({*stress.RUNS}) == 10 and all(stress.parse_run(name) for name in stress.RUNS)


@pytest.mark.slow
def test_each_run_is_repeated_with_seeds(suite, capfd):
    file = suite()
    text = SEEN.replace("threads", "drawn").replace("OMP_NUM_THREADS", "HOWSMOOTH_SEED").format(passes=True)
    (stress.ROOT / "test_seen.py").write_text(text)
    assert stress.main(["--runs", "threads-1", "--seeds", "3", "-mnot random", file]) == 0
    out = capfd.readouterr().out
    assert re.findall(r"drawn (\w+)", out) == ["1", "2", "3"]
    assert out.count("passed  threads-1, HOWSMOOTH_SEED=") == 3


def test_other_seeds_draw_other_numbers(monkeypatch):
    from tests import seeds

    assert seeds.seeds(3, 1000).start % 1_000_000 == 1000 and len(seeds.seeds(3)) == 3
    before = set(seeds.seeds(4000))
    monkeypatch.setattr(seeds, "SEED", seeds.SEED + 1)
    assert not before & set(seeds.seeds(4000))
