"""A bar along depth or time, for the flows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


@contextmanager
def bar_along(notes: Console, what: str, until: float) -> Iterator[Callable[[float], None]]:
    """Gives what is to be called with each place on the way; shown on a terminal alone."""
    columns = (TextColumn(what + "{task.completed:.4g} of {task.total:g}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, disable=not notes.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=until)
        yield lambda t: bar.update(task, completed=t)
