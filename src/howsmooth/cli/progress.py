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
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[left]}"))
        self._display = Display(*columns, console=notes, disable=not notes.is_terminal, transient=True)
        self._task = None

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
        left = remaining(state, self.elapsed)
        failed = f", {state.failed} failed" if state.failed else ""
        if self._task is None:
            self._task = self._display.add_task("measuring", total=state.total, completed=state.done, left=left)
        self._display.update(self._task, completed=state.done, left=left + failed)
        if not self.notes.is_terminal and time.monotonic() - self._said > _EVERY:
            self._said = time.monotonic()
            self.notes.print(f"{state.done} of {state.total} tasks, {left}{failed}", style="dim")


def remaining(state: Progress, elapsed: float) -> str:
    """Long tasks come first, so what is left is counted in expected seconds, not in tasks.

    >>> remaining(Progress(total=10, done=4, seconds_left=30.0, seconds_done=10.0), elapsed=20.0)
    '60 s left'
    """
    if not state.seconds_done:
        return "…"
    return f"{duration(elapsed * max(0.0, state.seconds_left) / state.seconds_done)} left"
