"""The number of threads that Python's entry points compute with, and that they restore it."""

from __future__ import annotations

import threading

import pytest
import torch

import howsmooth
from howsmooth import threads

SHORT, LONG = torch.ones(4, 2), torch.ones(threads.SHORT_LENGTH + 1, 2)


@pytest.fixture
def cores(monkeypatch):
    """Two cores, on which the caller chose nothing; the number of torch is restored at the end."""
    for name in threads.THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(threads, "available_cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield 2
    torch.set_num_threads(before)


def counts_of(call):
    """Return the numbers of threads with which a map is evaluated while `call` measures it."""
    seen = set()

    def f(x):
        seen.add(torch.get_num_threads())
        return x.sin()

    call(f)
    return seen


@pytest.mark.parametrize("x, expected", [(SHORT, {1}), (SHORT[None], {1}), (LONG, {2}), (SHORT[0], {2})])
def test_short_inputs_take_one_thread(cores, x, expected):
    assert counts_of(lambda f: howsmooth.local_lipschitz(f, x)) == expected
    assert torch.get_num_threads() == cores


def test_a_number_that_the_caller_chose_stays(cores, monkeypatch):
    torch.set_num_threads(3)
    assert counts_of(lambda f: howsmooth.local_lipschitz(f, SHORT)) == {3}
    torch.set_num_threads(cores)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert counts_of(lambda f: howsmooth.local_lipschitz(f, SHORT)) == {cores}


def test_the_number_is_restored_after_an_error(cores):
    def fails(x):
        assert torch.get_num_threads() == 1
        raise RuntimeError("no value")

    with pytest.raises(Exception, match="no value"):
        howsmooth.local_lipschitz(fails, SHORT)
    assert torch.get_num_threads() == cores


def test_measure_takes_one_thread_for_all_of_its_calls(cores):
    during = []
    howsmooth.measure(
        "minilm", layers=[0], lengths=[8], samples=2, progress=lambda record: during.append(torch.get_num_threads())
    )
    assert during == [1, 1]
    assert torch.get_num_threads() == cores


def test_a_call_beside_another_changes_nothing(cores, monkeypatch):
    with threads.few_threads_if_short(8):
        changed = []
        monkeypatch.setattr(torch, "set_num_threads", changed.append)
        monkeypatch.setattr(torch, "get_num_threads", lambda: cores)
        other = threading.Thread(target=lambda: howsmooth.local_lipschitz(torch.sin, SHORT))
        other.start()
        other.join()
        assert changed == []
        monkeypatch.undo()
