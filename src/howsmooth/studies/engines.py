"""Engines run bundles of tasks: in this process, in several processes of this machine, or on a Ray cluster.

    engine(bundles, work, …) -> Iterator[list[TaskResult]]

`work(bundle)` yields lists of results. A bundle has `tasks`, a list of hashes, and `without(done)`. An engine takes a
bundle from the iterable whenever it can start one. It retries the unfinished tasks of a lost worker, and returns those
that cannot be computed as results with an error message.

Ray itself runs a task again when its worker or node is lost; a task that Ray gives up is submitted again from here. A
task that ran twice is stored once, because the store identifies it by its hash. A cluster that is started here, on one
machine, can be reached from this machine only, reports nothing to Ray's authors, and leaves no files behind.
"""

from __future__ import annotations

import ctypes
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from multiprocessing import connection, get_context
from typing import Any

from howsmooth.errors import InputError, first_line
from howsmooth.extras import require
from howsmooth.threads import set_threads, wait_passively

Result = tuple[str, dict[str, Any] | None, str | None]  # task, record, error; `TaskResult` is one


def error_message(error: BaseException) -> str:
    """Return the first line of an error, with its type unless it is a `ValueError`."""
    return first_line(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {first_line(error)}"


def failed_results(bundle: Any | None, error: str) -> list[Result]:
    """Return a result with this error for each task of a bundle."""
    return [] if bundle is None else [(task, None, error) for task in bundle.tasks]


@dataclass
class InFlight:
    """A bundle that was submitted to a worker.

    Attributes:
        bundle: The bundle.
        attempts: How often its tasks were submitted, this time included.
        finished: Hashes of the tasks whose results have arrived.
    """

    bundle: Any
    attempts: int = 1
    finished: set[str] = field(default_factory=set)

    def add_results(self, results: Iterable[Result]) -> None:
        """Mark the tasks of these results as finished."""
        self.finished.update(task for task, _, _ in results)

    def remaining(self) -> Any | None:
        """Return the bundle without its finished tasks; None if all are finished."""
        return self.bundle.without(self.finished)

    def after_loss(self, retry_queue: deque[InFlight], max_retries: int, reason: str) -> list[Result]:
        """Queue the remaining tasks again after their worker was lost, or return them as failed.

        Args:
            retry_queue: Where the remaining tasks are appended if they may be tried again.
            max_retries: How often tasks are tried again.
            reason: How the worker was lost.
        """
        remaining = self.remaining()
        if remaining is not None and self.attempts <= max_retries:
            retry_queue.append(InFlight(remaining, self.attempts + 1))
            return []
        return failed_results(remaining, f"given up after {self.attempts} attempts: {reason}")


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


CONNECT_TIMEOUT = 5.0  # seconds for a cluster to answer at its port
# Ray has one switch for the loopback interface, named after the systems on which that is the default.
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_USAGE_STATS = "RAY_USAGE_STATS_ENABLED"
_LONGEST_FOLDER = 18  # characters: the names of our folder and of Ray's sockets have 89 more, and the system allows 107
# It outlives the process that its stdin comes from, and Ray's own, which end a moment after that process.
_REMOVE_AT_THE_END = """
import os, shutil, signal, sys, time
for name in ("SIGINT", "SIGTERM", "SIGHUP"):
    signal.signal(getattr(signal, name), signal.SIG_IGN)
sys.stdin.read()
for _ in range(100):
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.1)
"""


def ray_engine(
    bundles: Iterable[Any],
    work: Callable[[Any], Iterable[list[Result]]],
    *,
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
) -> Generator[list[Result], None, None]:
    """Run bundles on a Ray cluster.

    Args:
        bundles: The bundles; a few more than can run at once are submitted ahead of time.
        work: What a Ray task does with a bundle.
        address: Address of the cluster; without one, Ray starts a cluster on this machine that only this machine can
            reach, whatever RAY_ADDRESS says.
        cpus: CPUs of one Ray task.
        gpus: GPUs of one Ray task.
        retries: How often a task is run again whose worker or node was lost.
    """
    require("ray", purpose="for this engine", otherwise="or use the local engine")
    os.environ.setdefault(_USAGE_STATS, "0")
    import ray
    from ray.exceptions import RayError, RayTaskError

    with nullcontext() if ray.is_initialized() else _own_cluster(ray) if address is None else _joined(ray, address):
        _check_resources(ray, cpus, gpus)
        task = ray.remote(_run_bundle).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=retries, scheduling_strategy="SPREAD"
        )
        new_bundles = iter(bundles)
        retry_queue: deque[InFlight] = deque()
        pending: dict[Any, InFlight] = {}

        def submit() -> bool:
            bundle = None if retry_queue else next(new_bundles, None)
            if not retry_queue and bundle is None:
                return False
            in_flight = retry_queue.popleft() if retry_queue else InFlight(bundle)
            pending[task.remote(work, in_flight.bundle, max(1, math.floor(cpus)))] = in_flight
            return True

        while True:
            # Enough that no worker is idle, and few enough that the driver needs little memory.
            max_pending = max(4, 2 * math.ceil(_total(ray, "CPU") / cpus))
            while len(pending) < max_pending and submit():
                pass
            if not pending:
                return
            ready, _ = ray.wait(list(pending), num_returns=1)
            for reference in ready:
                in_flight = pending.pop(reference)
                try:
                    batches = ray.get(reference)
                except RayTaskError as error:  # raised by `work`, which would raise it again
                    cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
                    yield failed_results(in_flight.bundle, error_message(cause))
                except RayError as error:
                    results = in_flight.after_loss(retry_queue, retries, error_message(error))
                    if results:
                        yield results
                else:
                    yield from batches
                del reference  # Ray keeps a result as long as there is a reference to it


@contextmanager
def _own_cluster(ray: Any) -> Iterator[None]:
    """Start a cluster of this machine, on the loopback interface alone and with its files in a private folder."""
    with _private_folder() as folder:
        try:
            with _on_loopback():
                ray.init(
                    address="local",
                    log_to_driver=False,
                    logging_level="ERROR",
                    include_dashboard=False,
                    _temp_dir=folder,
                )
            yield
        finally:
            ray.shutdown()


@contextmanager
def _private_folder() -> Iterator[str]:
    """Yield a folder for Ray's files that no other user can enter; it is removed however this process ends.

    A scheduler sends its signals to Ray's processes as well, and Ray ends a driver that has lost them at once: what
    removes the folder is a process of its own. Ray lets everyone write into the folder that it is given, which is
    therefore within the private one.
    """
    usual = tempfile.gettempdir()
    folder = tempfile.mkdtemp(prefix="howsmooth-ray-", dir=usual if len(usual) <= _LONGEST_FOLDER else "/tmp")
    command = [sys.executable, "-I", "-c", _REMOVE_AT_THE_END, folder]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True):
        yield f"{folder}/r"  # leaving the block closes the pipe, and waits


@contextmanager
def _on_loopback() -> Iterator[None]:
    """Make the processes that Ray starts listen on the loopback interface; without it they listen on all of them."""
    from ray._private import ray_constants

    variable, constant = os.environ.get(_CLUSTERS), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[_CLUSTERS] = "0"  # for the processes
    ray_constants.ENABLE_RAY_CLUSTER = False  # for this one, where the variable was read when ray was imported
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = constant
        if variable is None:
            del os.environ[_CLUSTERS]
        else:
            os.environ[_CLUSTERS] = variable


@contextmanager
def _joined(ray: Any, address: str) -> Iterator[None]:
    """Connect to a cluster that is running."""
    _check_address(address)
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = first_line(error)
        raise InputError(
            f"expected a Ray cluster at {address}, got none ({reason}); start one with "
            "`ray start --head`, or leave the address out"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Raise if nothing listens at an address: Ray itself would wait for a quarter of an hour."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():  # "auto" or "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"expected a Ray cluster at {address}, got none ({reason.lower()}); start one with `ray start "
            "--head`, correct the address, or leave it out"
        ) from None


def _run_bundle(work: Callable[[Any], Iterable[list[Result]]], bundle: Any, threads: int) -> list[list[Result]]:
    """Run one bundle; this is the Ray task."""
    import torch

    torch.set_num_threads(threads)
    return [[(task, record, error) for task, record, error in results] for results in work(bundle)]


def _check_resources(ray: Any, cpus: float, gpus: float) -> None:
    """Raise if no node is large enough for a task: Ray would wait for one for ever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise InputError(
            f"expected a node with {cpus:g} CPUs and {gpus:g} GPUs for one task, got {have}; ask for fewer"
        )


def _total(ray: Any, resource: str) -> float:
    return sum(node["Resources"].get(resource, 0) for node in ray.nodes() if node["Alive"])
