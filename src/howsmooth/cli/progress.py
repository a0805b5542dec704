"""The bar of a study: tasks done, and the time that is left by the work they were expected to be."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Display

from howsmooth.cli.overriding import duration
from howsmooth.studies.running import Progress

_EVERY = 30.0  # seconds between lines where there is no terminal


class Bar:
    """A live bar on a terminal, a line now and then elsewhere."""

    def __init__(self, notes: Console):
        self.notes = notes
        self._began = self._said = time.monotonic()
        left = TextColumn("{task.fields[left]}")
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), left)
        self._display = Display(*columns, console=notes, disable=not notes.is_terminal, transient=True)
        self._task = None
        self._first: tuple[float, float] | None = None  # when the first rows came, and the work they were

    def __enter__(self) -> Bar:
        self._began = self._said = time.monotonic()
        self._display.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._display.stop()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._began

    def show(self, state: Progress) -> None:
        left = self._left(state)
        failed = f", {state.failed} failed" if state.failed else ""
        if self._task is None:
            self._task = self._display.add_task("measuring", total=state.total, completed=state.done, left=left)
        self._display.update(self._task, completed=state.done, left=left + failed)
        if not self.notes.is_terminal and time.monotonic() - self._said > _EVERY:
            self._said = time.monotonic()
            self.notes.print(f"{state.done} of {state.total} tasks, {left}{failed}", style="dim")


    def _left(self, state: Progress) -> str:
        """Counted from the first rows on: how long workers take to start says nothing about the rest."""
        now = time.monotonic()
        if self._first is None:
            self._first = (now, state.seconds_done) if state.seconds_done else None
            return "…"
        return remaining(state.seconds_done - self._first[1], state.seconds_left, now - self._first[0])


def remaining(done: float, left: float, elapsed: float) -> str:
    """Long tasks come first, so work is counted in expected seconds, not in tasks.

    >>> remaining(done=10.0, left=30.0, elapsed=20.0)
    '60 s left'
    """
    return f"{duration(elapsed * max(0.0, left) / done)} left" if done > 0 else "…"
