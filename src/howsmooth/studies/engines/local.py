"""The local engine: processes of this machine that run bundles and are replaced if they die."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from typing import Any

from howsmooth.studies.engines.in_flight import InFlight, Result, error_message, failed_results
from howsmooth.threads import set_threads, wait_passively

Work = Callable[[Any], Iterable[list[Result]]]

_PR_SET_PDEATHSIG = 1  # of prctl(2): the signal that a process gets when its parent dies


def in_this_process(bundles: Iterable[Any], work: Work) -> Generator[list[Result], None, None]:
    """Run bundles without worker processes: for tests, debuggers, and callers with processes of their own."""
    for bundle in bundles:
        try:
            yield from work(bundle)
        except Exception as error:
            yield failed_results(bundle, f"{type(error).__name__}: {error}")


def local_engine(
    bundles: Iterable[Any], work: Work, *, workers: int, threads: int, retries: int = 3
) -> Generator[list[Result], None, None]:
    """Run bundles on worker processes.

    Args:
        bundles: The bundles; each is taken when a worker is free.
        work: What a worker does with a bundle. It is pickled by name.
        workers: Number of processes.
        threads: Threads of each process.
        retries: How often the tasks of a process that died are tried again.
    """
    new_bundles = iter(bundles)
    retry_queue: deque[InFlight] = deque()
    processes: list[_Worker] = []

    def next_in_flight() -> InFlight | None:
        if retry_queue:
            return retry_queue.popleft()
        bundle = next(new_bundles, None)
        return None if bundle is None else InFlight(bundle)

    try:
        while True:
            for worker in [w for w in processes if w.in_flight is None]:
                in_flight = next_in_flight()
                if in_flight is None:
                    break
                worker.submit(in_flight)
            while len(processes) < workers and (in_flight := next_in_flight()) is not None:
                processes.append(_Worker.start(work, threads))
                processes[-1].submit(in_flight)
            busy = [worker for worker in processes if worker.in_flight is not None]
            if not busy:
                return
            readable = connection.wait([worker.pipe for worker in busy])
            for worker in [worker for worker in busy if worker.pipe in readable]:
                in_flight = worker.in_flight
                assert in_flight is not None  # it is busy
                try:
                    message = worker.pipe.recv()
                except (EOFError, OSError, pickle.UnpicklingError):  # it died, perhaps in the middle of a message
                    processes.remove(worker)
                    reason = f"its process ended with {_describe_exit(worker.stop())}"
                    results = in_flight.after_loss(retry_queue, retries, reason)
                    if results:
                        yield results
                    continue
                if message is None:  # the bundle is finished
                    worker.in_flight = None
                elif isinstance(message, str):  # the whole bundle failed, and would fail again
                    worker.in_flight = None
                    yield failed_results(in_flight.remaining(), message)
                else:
                    in_flight.add_results(message)
                    yield message
    finally:
        for worker in processes:
            worker.stop()


def _describe_exit(code: int | None) -> str:
    if code is not None and code < 0:
        name = signal.Signals(-code).name
        return name + (" (the system does that when memory runs out)" if name == "SIGKILL" else "")
    return f"exit code {code}"


@dataclass(eq=False)
class _Worker:
    """A worker process, seen from the driver."""

    process: Any
    pipe: connection.Connection
    in_flight: InFlight | None = None

    @classmethod
    def start(cls, work: Work, threads: int) -> _Worker:
        context = get_context("spawn")  # a fork would inherit the store's lock and torch's threads
        driver_end, worker_end = context.Pipe()
        # Pickled here, by name: the worker sets its number of threads before it imports anything heavy.
        arguments = (worker_end, pickle.dumps(work), threads, os.getpid())
        process = context.Process(target=_worker_main, args=arguments, daemon=True)
        process.start()
        worker_end.close()  # else reading would not end when the worker dies
        return cls(process, driver_end)

    def submit(self, in_flight: InFlight) -> None:
        self.in_flight = in_flight
        with suppress(OSError):  # it is dead already: the next read reports that
            self.pipe.send(in_flight.bundle)

    def stop(self) -> int | None:
        self.process.kill()
        self.process.join()
        self.pipe.close()
        return self.process.exitcode


def _worker_main(pipe: connection.Connection, pickled_work: bytes, threads: int, driver_pid: int) -> None:
    """Receive bundles and send their results until the driver closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no orphans, even if the driver is killed
        if os.getppid() != driver_pid:
            return
    wait_passively()
    set_threads(threads)  # before torch is imported, unless the driver's main module has imported it here
    work = pickle.loads(pickled_work)
    while True:
        try:
            bundle = pipe.recv()
        except EOFError:
            return
        try:
            for results in work(bundle):
                pipe.send(results)
            pipe.send(None)
        except BrokenPipeError:
            return
        except Exception as error:
            pipe.send(error_message(error))
