"""Threads of a process: how many, and how they wait for each other.

OpenMP reads its settings when torch is imported. By default its threads wait for each other in a busy loop, which on a
machine with other work takes the time of the threads that are waited for: MiniLM at n = 64 took 81 s with two threads,
7 s with two that wait passively and 5 s with one, beside two busy processes on two cores.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
PASSIVE_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0"}  # of GNU and Intel OpenMP
SHORT_LENGTH = 256  # tokens up to which one thread is used: at n = 256 two took 25 s where one took 16, as above
_LOCK = threading.Lock()
_calls = 0  # of `few_threads_if_short` that have not ended, in all threads


def wait_passively() -> None:
    """Let OpenMP threads sleep while they wait, unless the environment says otherwise.

    It has an effect before torch is imported.

    Example:
        >>> wait_passively()
        >>> "OMP_WAIT_POLICY" in os.environ
        True
    """
    for name, value in PASSIVE_WAITING.items():
        os.environ.setdefault(name, value)


def set_threads(count: int) -> None:
    """Set the number of threads of this process, before or after torch is imported."""
    for name in THREAD_VARIABLES:
        os.environ[name] = str(count)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(count)


def default_threads(longest: int | None = None) -> int | None:
    """Return the number of threads for a computation in one process.

    Args:
        longest: The largest number of tokens; None if that does not apply.

    Returns:
        One for short lengths, else one per core; None if the environment sets the number.

    Example:
        >>> from unittest import mock
        >>> with mock.patch.dict(os.environ, clear=True):
        ...     default_threads(64), default_threads(4096) == available_cores()
        (1, True)
    """
    if "OMP_NUM_THREADS" in os.environ:
        return None
    return 1 if longest is not None and longest <= SHORT_LENGTH else available_cores()


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def few_threads_if_short(longest: int | None) -> Iterator[None]:
    """Compute with one thread where the commands do, and restore the number at the end.

    The number stays as it is where the caller chose it, by the environment or by `torch.set_num_threads`, while another
    call is running, and for inputs that are longer than `SHORT_LENGTH` tokens.

    Args:
        longest: The largest number of tokens; None if the input has none.

    Example:
        >>> import torch
        >>> before = torch.get_num_threads()
        >>> with few_threads_if_short(64):
        ...     pass
        >>> torch.get_num_threads() == before
        True
    """
    global _calls
    import torch

    before = torch.get_num_threads()
    # Torch takes as many threads as there are cores, or half as many where a core runs two: others were chosen.
    unchosen = default_threads(longest) == 1 and before in (available_cores(), available_cores() // 2)
    with _LOCK:
        changes = unchosen and before > 1 and _calls == 0
        _calls += 1
    if changes:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if changes:
            torch.set_num_threads(before)
        with _LOCK:
            _calls -= 1
