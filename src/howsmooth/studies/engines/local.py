"""Processes of this machine: each takes a bundle, sends rows back as they are ready, and is replaced if it dies."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any

from howsmooth.studies.engines.rows import Hand, lost

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def in_this_process(bundles: Iterable[Any], work: Callable) -> Generator[list, None, None]:
    """No workers at all: for tests, debuggers, and callers that bring their own processes."""
    for bundle in bundles:
        try:
            yield from work(bundle)
        except Exception as error:
            yield lost(bundle, f"{type(error).__name__}: {error}")


def local_engine(
    bundles: Iterable[Any], work: Callable, *, workers: int, threads: int, retries: int = 3
) -> Generator[list, None, None]:
    """Run bundles on so many processes of so many threads each."""
    source = iter(bundles)
    again: deque[Hand] = deque()
    crew: list[_Worker] = []

    def next_hand() -> Hand | None:
        if again:
            return again.popleft()
        bundle = next(source, None)
        return None if bundle is None else Hand(bundle)

    try:
        while True:
            for worker in [w for w in crew if w.hand is None]:
                hand = next_hand()
                if hand is None:
                    break
                worker.give(hand)
            while len(crew) < workers and (hand := next_hand()) is not None:
                crew.append(_Worker.start(work, threads))
                crew[-1].give(hand)
            busy = {worker.pipe: worker for worker in crew if worker.hand is not None}
            if not busy:
                return
            for pipe in connection.wait(list(busy)):
                worker = busy[pipe]
                try:
                    message = pipe.recv()
                except (EOFError, OSError, pickle.UnpicklingError):  # it died, perhaps in the middle of a message
                    crew.remove(worker)
                    hand, code = worker.hand, worker.stop()
                    rows = hand.after_loss(again, retries, f"its process ended with {_ending(code)}")
                    if rows:
                        yield rows
                    continue
                if message is None:
                    worker.hand = None
                elif isinstance(message, str):  # the whole bundle failed: trying again would not help
                    hand, worker.hand = worker.hand, None
                    yield lost(hand.left(), message)
                else:
                    worker.hand.seen(message)
                    yield message
    finally:
        for worker in crew:
            worker.stop()


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return name + (" (the system does that when memory runs out)" if name == "SIGKILL" else "")
    return f"exit code {code}"


@dataclass(eq=False)
class _Worker:
    process: Any
    pipe: connection.Connection
    hand: Hand | None = field(default=None)

    @classmethod
    def start(cls, work: Callable, threads: int) -> _Worker:
        context = get_context("spawn")  # a fork would take the lock, the store and torch's threads along
        ours, theirs = context.Pipe()
        # By name, so that nothing heavy is imported before the number of threads is set.
        process = context.Process(target=_serve, args=(theirs, pickle.dumps(work), threads, os.getpid()), daemon=True)
        process.start()
        theirs.close()  # or a dead worker would never look dead
        return cls(process, ours)

    def give(self, hand: Hand) -> None:
        self.hand = hand
        try:
            self.pipe.send(hand.bundle)
        except OSError:
            pass  # it is dead already: reading will say so

    def stop(self) -> int | None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


def _serve(pipe: connection.Connection, work: bytes, threads: int, parent: int) -> None:
    """The life of a worker: bundle in, rows out, until the driver goes away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the driver's business
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no orphans, even after SIGKILL
        if os.getppid() != parent:
            return
    for name in _THREADS:
        os.environ[name] = str(threads)
    do = pickle.loads(work)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    while True:
        try:
            bundle = pipe.recv()
        except EOFError:
            return
        try:
            for rows in do(bundle):
                pipe.send(rows)
            pipe.send(None)
        except BrokenPipeError:
            return
        except Exception as error:
            said = (str(error) or type(error).__name__).strip().splitlines()[0]
            pipe.send(said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}")
