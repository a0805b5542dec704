"""A study as a person sees it: the bar with the time that is left, what failed, the tables."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Display

from howsmooth.report.plan_tables import duration, plan_table
from howsmooth.studies.run import Progress

if TYPE_CHECKING:
    from howsmooth.studies.spec import Spec
    from howsmooth.studies.store import Store

EXIT_FAILED_TASKS = 1
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


def run_and_keep(study: Spec, path: Path, said: str | None = None, **trust: bool) -> int:
    """Prepare, say what will be done, do it with a bar, show what came out."""
    from howsmooth.cli.main import EXIT_INTERRUPTED
    from howsmooth.cli.run import console, say
    from howsmooth.studies.plan import prepare
    from howsmooth.studies.run import run_study
    from howsmooth.studies.store import Store

    notes, interrupted = console(stderr=True), False
    with Store.write(path) as store:  # first of all: a second run is refused at once
        for line in filter(None, (said, store.recovered)):
            say(notes, f"howsmooth: {line}", style="yellow")
        prepared = prepare(study, log=lambda line: say(notes, line, style="dim"), **trust)
        store.plan(prepared.spec.model_dump(mode="json"), prepared.tasks())
        notes.print(plan_table(prepared, store.counts()["done"]))
        with Bar(notes) as bar:
            try:
                run_study(prepared, store, progress=bar.show)
            except KeyboardInterrupt:
                interrupted = True
        counts = store.counts()
        say(notes, f"{path}: {progress_line(counts)}, {duration(bar.elapsed)}")
        for line in failure_lines(store.failures()):
            say(notes, f"howsmooth: {line}", style="yellow")
        show_tables(store, console())
    if interrupted:
        say(notes, f"howsmooth: interrupted; go on with: howsmooth study resume {path}")
        return EXIT_INTERRUPTED
    return EXIT_FAILED_TASKS if counts["done"] < counts["planned"] else 0


def show_tables(store: Store, shown: Console) -> None:
    """Print the tables of what a store holds, and how many intervals are wider than asked."""
    from howsmooth.records import record_error
    from howsmooth.report.measurement_tables import Summary, study_tables

    # What another program changed in the store is left to `howsmooth report`, which says what is wrong with it.
    summary = Summary(record for record in store.records() if record_error(record) is None)
    for table in study_tables(summary):
        shown.print(table)
    for name, count in summary.unfinished.items():
        shown.print(f"{count} intervals are wider than asked ({name})", style="yellow")


def progress_line(counts: dict[str, int]) -> str:
    """Return how far a study is."""
    parts = [f"{counts['done']} of {counts['planned']} tasks done"]
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    if counts["other"]:
        parts.append(f"{counts['other']} records of an earlier plan")
    return ", ".join(parts)


def failure_lines(failures: list[tuple[str, str, int]]) -> list[str]:
    """Each reason once, with how many tasks it stopped."""
    counted: dict[str, int] = {}
    for _, error, _ in failures:
        counted[error] = counted.get(error, 0) + 1
    return [f"{count} tasks failed and will be tried again by resume: {error}" for error, count in counted.items()]
