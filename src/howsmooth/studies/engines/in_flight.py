"""Bundles that are running: which of their tasks have finished, and what happens if their worker is lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from howsmooth.errors import first_line

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
