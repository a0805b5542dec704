"""Run a study with a progress bar, and print its failures and tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as RichProgress

from howsmooth.lazy import deferred

if TYPE_CHECKING:
    from howsmooth.questions.spec import Spec
    from howsmooth.studies.run import Progress
    from howsmooth.studies.store import Store

EXIT_FAILED_TASKS = 1
_SECONDS_BETWEEN_LINES = 30.0  # of progress, where there is no terminal
duration = deferred("howsmooth.report.plan_tables:duration")


class StudyProgressBar:
    """A progress bar on a terminal; without one, a line every half minute."""

    def __init__(self, console: Console) -> None:
        """Take the console to print to."""
        self.console = console
        self._start = self._last_line = time.monotonic()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[time_left]}"),
        )
        self._bar = RichProgress(*columns, console=console, disable=not console.is_terminal, transient=True)
        self._task: TaskID | None = None
        self._first_result: tuple[float, float] | None = None  # its time, and the expected seconds of work done by then

    def __enter__(self) -> StudyProgressBar:
        """Show the bar and start the clock."""
        self._start = self._last_line = time.monotonic()
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the bar."""
        self._bar.stop()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def show(self, state: Progress) -> None:
        """Show the state of a study, the `progress` callback of `run_study`."""
        time_left = self._time_left(state)
        failed = f", {state.failed} failed" if state.failed else ""
        if self._task is None:
            self._task = self._bar.add_task("measuring", total=state.total, completed=state.done, time_left=time_left)
        self._bar.update(self._task, completed=state.done, time_left=time_left + failed)
        if not self.console.is_terminal and time.monotonic() - self._last_line > _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            self.console.print(f"{state.done} of {state.total} tasks, {time_left}{failed}", style="dim")

    def _time_left(self, state: Progress) -> str:
        """Extrapolate from the time since the first result, which leaves out the start of the workers."""
        now = time.monotonic()
        if self._first_result is None:
            self._first_result = (now, state.seconds_done) if state.seconds_done else None
            return "…"
        start, done_at_start = self._first_result
        return format_time_left(state.seconds_done - done_at_start, state.seconds_left, now - start)


def format_time_left(done: float, left: float, elapsed: float) -> str:
    """Return the time left, from expected seconds of work: long tasks run first, so tasks are not counted.

    Args:
        done: Expected seconds of the tasks that are done.
        left: Expected seconds of the tasks that are left.
        elapsed: Seconds that the tasks took.

    Example:
        >>> format_time_left(done=10.0, left=30.0, elapsed=20.0)
        '60 s left'
    """
    return f"{duration(elapsed * max(0.0, left) / done)} left" if done > 0 else "…"


def run_and_store(
    specs: Sequence[Spec], path: Path, message: str | None = None, *, connect: bool, **trust: bool
) -> int:
    """Run the tasks of a study that its store lacks, print its tables and return the exit code.

    Args:
        specs: The spec of each of its questions.
        path: The SQLite file of the store.
        message: A line to print first.
        connect: Whether the command line names the Ray cluster.
        trust: `trust_remote_code` and `allow_pickle`, as given on the command line.
    """
    from howsmooth.cli.loading import check_models, check_texts, load_torch
    from howsmooth.cli.main import EXIT_INTERRUPTED
    from howsmooth.cli.run import make_console, print_line, print_warning
    from howsmooth.cli.runtime import use_default_threads
    from howsmooth.questions.spec import ModelSpec, refuse_connection

    refuse_connection(specs[0], connect)
    about_models = [spec for spec in specs if isinstance(spec, ModelSpec)]
    for spec in about_models:
        check_models(spec)
        if not any(text.source.startswith(("-", "hf:")) for text in spec.texts):  # those can be read once, or slowly
            check_texts(spec)
    longest = max((max(spec.lengths) for spec in about_models), default=None)
    use_default_threads(longest, workers=specs[0].engine.workers)

    from howsmooth.studies.store import Store, description_of

    stderr, interrupted = make_console(stderr=True), False
    with Store.write(path) as store:  # first of all, so that a second run of the study fails at once
        for line in filter(None, (message, store.recovered)):
            print_warning(stderr, line)
        if store.study is None:  # before anything slow, so that a run that ends early can be resumed from its store
            store.plan(description_of([spec.declared() for spec in specs]), ())
        load_torch(stderr)

        from howsmooth.report.plan_tables import plan_table
        from howsmooth.studies.plan import prepare
        from howsmooth.studies.run import run_study

        plans = [prepare(spec, log=lambda line: print_line(stderr, line, style="dim"), **trust) for spec in specs]
        store.plan(
            description_of([plan.description for plan in plans]), chain.from_iterable(plan.tasks() for plan in plans)
        )
        for plan in plans:
            stderr.print(plan_table(plan, store.counts()["done"] if len(plans) == 1 else 0))
        with StudyProgressBar(stderr) as bar:
            try:
                run_study(plans, store, progress=bar.show)
            except KeyboardInterrupt:
                interrupted = True
        counts = store.counts()
        print_line(stderr, f"{path}: {progress_line(counts)}, {duration(bar.elapsed)}")
        for line in failure_lines(store.failures()):
            print_warning(stderr, line)
        print_tables(store, make_console())
    if interrupted:
        print_warning(stderr, f"interrupted; resume with: howsmooth study resume {path}")
        return EXIT_INTERRUPTED
    return EXIT_FAILED_TASKS if counts["done"] < counts["planned"] else 0


def print_tables(store: Store, console: Console) -> None:
    """Print the tables of a store's records, and the number of intervals that are wider than the tolerance."""
    from howsmooth.questions import find_question, question_of, record_error
    from howsmooth.report.measurement_tables import Summary, study_tables

    others: dict[str, list[dict[str, Any]]] = {}

    def measurements() -> Iterator[dict[str, Any]]:
        """Yield measurements, which a summary reads once; keep the records of other questions."""
        for line, record in store.lines():
            # Invalid records, which another program may have written, are left out; `howsmooth report` lists them.
            if record_error(record, line) is not None:
                continue
            if record["kind"] == "measurement":
                yield record
            else:
                others.setdefault(question_of(record), []).append(record)

    summary = Summary(measurements())
    for table in study_tables(summary) if summary.samples else ():
        console.print(table)
    for name, records in others.items():
        for part in find_question(name).tables(records):
            console.print(part)
    for name, count in summary.unfinished.items():
        console.print(f"{count} intervals are wider than the tolerance ({name})", style="yellow")


def progress_line(counts: dict[str, int]) -> str:
    """Return one line with the numbers of tasks that are done and failed."""
    parts = [f"{counts['done']} of {counts['planned']} tasks done"]
    if counts["failed"]:
        parts.append(f"{counts['failed']} failed")
    if counts["other"]:
        parts.append(f"{counts['other']} records of an earlier plan")
    return ", ".join(parts)


def failure_lines(failures: list[tuple[str, str, int]]) -> list[str]:
    """Return a line for each error message, with the number of tasks that failed with it.

    Args:
        failures: Task, error message and number of attempts of each failure.
    """
    counted: dict[str, int] = {}
    for _, error, _ in failures:
        counted[error] = counted.get(error, 0) + 1
    return [f"{count} tasks failed and are retried by resume: {error}" for error, count in counted.items()]
