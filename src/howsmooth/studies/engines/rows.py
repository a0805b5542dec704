"""A bundle in a worker's hands: what has come back of it, and how often it was lost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any


def lost(bundle: Any, why: str) -> list[tuple[str, None, str]]:
    """The rows of tasks that will not be done."""
    return [(task, None, why) for task in bundle.tasks] if bundle is not None else []


@dataclass
class Hand:
    bundle: Any
    attempts: int = 1
    back: set[str] = field(default_factory=set)

    def seen(self, rows: list) -> None:
        self.back.update(row[0] for row in rows)

    def left(self) -> Any | None:
        return self.bundle.without(self.back)

    def after_loss(self, again: deque[Hand], retries: int, why: str) -> list:
        """Queue what is left of it once more, or give it up: the rows to keep for it now."""
        left = self.left()
        if left is not None and self.attempts <= retries:
            again.append(Hand(left, self.attempts + 1))
            return []
        return lost(left, f"given up after {self.attempts} attempts: {why}")
