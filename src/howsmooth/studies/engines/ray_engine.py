"""A Ray cluster: bundles as Ray tasks, results kept by the driver as each comes in.

Ray itself runs a task again when its worker or node is lost; what it gives up on is tried again from here. A task that
ran twice is stored once, because the store knows it by its hash.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import Any

from howsmooth.errors import InputError
from howsmooth.studies.engines.rows import Hand, lost

PATIENCE = 5.0  # seconds for a cluster to answer at its port


def ray_engine(
    bundles: Iterable[Any],
    work: Callable,
    *,
    address: str | None = None,
    cpus: float = 1,
    gpus: float = 0,
    retries: int = 3,
) -> Generator[list, None, None]:
    """Run bundles on the cluster at `address`, or on one that Ray starts on this machine."""
    try:
        import ray
        from ray.exceptions import RayError, RayTaskError
    except ImportError:
        raise InputError(
            "expected Ray for this engine, got none; pip install 'howsmooth[ray]', or use the local engine"
        ) from None
    ours = not ray.is_initialized()
    if ours:
        _refuse_silence(address)
        try:
            ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=None)
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = (str(error) or type(error).__name__).strip().splitlines()[0]
            raise InputError(
                f"expected a Ray cluster at {address}, got none ({reason}); start one with "
                "`ray start --head`, or leave the address out"
            ) from None
    try:
        _refuse_impossible(ray, cpus, gpus)
        task = ray.remote(_collect).options(
            num_cpus=cpus, num_gpus=gpus, max_retries=retries, scheduling_strategy="SPREAD"
        )
        source, again, pending = iter(bundles), deque(), {}

        def submit() -> bool:
            bundle = None if again else next(source, None)
            if not again and bundle is None:
                return False
            hand = again.popleft() if again else Hand(bundle)
            pending[task.remote(work, hand.bundle, max(1, math.floor(cpus)))] = hand
            return True

        while True:
            # Enough that no worker waits, few enough that the driver holds little.
            room = max(4, 2 * math.ceil(_total(ray, "CPU") / cpus))
            while len(pending) < room and submit():
                pass
            if not pending:
                return
            ready, _ = ray.wait(list(pending), num_returns=1)
            for reference in ready:
                hand = pending.pop(reference)
                try:
                    batches = ray.get(reference)
                except RayTaskError as error:  # raised by the work itself: it would be again
                    cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
                    yield lost(hand.bundle, _said(cause))
                except RayError as error:
                    rows = hand.after_loss(again, retries, _said(error))
                    if rows:
                        yield rows
                else:
                    yield from batches
                del reference
    finally:
        if ours:
            ray.shutdown()


def _refuse_silence(address: str | None) -> None:
    """Refuse an address where nobody listens: Ray itself would wait for a quarter of an hour."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():  # none, "auto" or "local"
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"expected a Ray cluster at {address}, got none ({reason.lower()}); start one with `ray start "
            "--head`, correct the address, or leave it out"
        ) from None


def _collect(work: Callable, bundle: Any, threads: int) -> list[list]:
    import torch

    torch.set_num_threads(threads)
    return [[tuple(row) for row in rows] for rows in work(bundle)]


def _refuse_impossible(ray: Any, cpus: float, gpus: float) -> None:
    """Ray would wait for ever for a node that is large enough."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
        have = ", ".join(f"{node.get('CPU', 0):g} CPUs and {node.get('GPU', 0):g} GPUs" for node in nodes)
        raise InputError(
            f"expected a node with {cpus:g} CPUs and {gpus:g} GPUs for one task, got {have}; ask for fewer"
        )


def _total(ray: Any, resource: str) -> float:
    return sum(node["Resources"].get(resource, 0) for node in ray.nodes() if node["Alive"])


def _said(error: BaseException) -> str:
    said = (str(error) or type(error).__name__).strip().splitlines()[0]
    return said if isinstance(error, ValueError) else f"{type(error).__name__}: {said}"
