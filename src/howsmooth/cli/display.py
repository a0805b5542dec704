"""What a command shows while it computes: a growing table on a terminal, else a line for each length, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from howsmooth.cli.outputs import Record
from howsmooth.questions.question import describe_place
from howsmooth.report.rows import counted, number

SECONDS_BETWEEN_TABLES = 0.25
SECONDS_BETWEEN_LINES = 30.0  # at one length, where there is no terminal
_LINES_BELOW_TABLE = 3  # of the terminal: the progress bar, and room for the shell's own line


class RecordDisplay:
    """Shows the records of a computation as they arrive.

    On a terminal: the table so far, above a progress bar; both are removed at the end, when the command prints the
    whole table. Elsewhere: a line when all records of a length are there, if the computation goes from length to
    length, and every half minute in between.

    Attributes:
        records: The records so far.
    """

    def __init__(
        self,
        console: Console,
        name: str,
        total: int,
        *,
        record_noun: str,
        describe: Callable[..., str] | None = None,
        table: Callable[[list[Record]], RenderableType] | None = None,
        live: bool = True,
        verbose: bool = False,
    ) -> None:
        """Take the console and what is shown.

        Args:
            console: The console of stderr.
            name: The model or map.
            total: The number of records.
            record_noun: What a record is called.
            describe: Turns the coordinates of a place into a text; by default layer, head and n.
            table: Returns the table of the records; None shows the bar alone.
            live: Whether a terminal shows table and bar; not if it also shows what the command writes to stdout.
            verbose: Whether a line is printed for each record.
        """
        self.records: list[Record] = []
        self._console, self._name, self._total, self._record_noun = console, name, total, record_noun
        self._describe, self._table, self._verbose = describe, table, verbose
        self._start = self._last_line = self._length_start = time.monotonic()
        self._last_table = 0.0
        self._position = ""
        self._announced: int | None = None  # the length that the last line was about
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        self._bar = Progress(*columns, console=console)
        self._task = self._bar.add_task(name, total=total)
        self._live: Live | None = None
        if live and console.is_terminal and not console.quiet:
            # Records go to stdout through the stream that the live display would replace.
            self._live = Live(self._bar, console=console, transient=True, redirect_stdout=False)

    def __enter__(self) -> RecordDisplay:
        """Start the display."""
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove the display."""
        if self._live is not None:
            self._live.stop()

    def show_position(self, at: dict[str, Any]) -> None:
        """Show what is computed now; the progress callback of the computation."""
        self._position = (self._describe or describe_place)(at)
        if "n" in at:
            self._finish_length(at["n"])
        self._bar.update(self._task, description=f"{self._name} {self._position}")
        if self._live is None and time.monotonic() - self._last_line > SECONDS_BETWEEN_LINES:
            self._print(f"{len(self.records)} of {counted(self._total, self._record_noun)}, now {self._position}")

    def add(self, record: Record) -> None:
        """Show a record that has been computed."""
        self.records.append(record)
        self._bar.advance(self._task)
        if self._verbose:
            self._print(f"{self._position or self._name}: {describe_record(record)}")
        now = time.monotonic()
        if self._live is not None and self._table is not None and now - self._last_table > SECONDS_BETWEEN_TABLES:
            self._live.update(Group(LastLines(self._table(self.records)), self._bar), refresh=True)
            self._last_table = time.monotonic()

    def _finish_length(self, next_n: int) -> None:
        """Print a line about the last length if it is complete, which it is when another one begins."""
        n = self.records[-1].get("n") if self.records else None
        if n in (None, next_n, self._announced) or self._live is not None or self._verbose:
            return
        finished = []
        for record in reversed(self.records):
            if record.get("n") != n:
                break
            finished.append(record)
        now = time.monotonic()
        values = value_range(finished)
        self._print(
            f"n = {n}: {counted(len(finished), self._record_noun)}{values and f', {values}'}, "
            f"{now - self._length_start:.1f} s"
        )
        self._length_start, self._announced = now, n

    def _print(self, line: str) -> None:
        self._console.print(line, style="dim", markup=False, soft_wrap=True)
        self._last_line = time.monotonic()


def value_range(records: Sequence[Record]) -> str:
    """Return the range of the values of measurements, such as "4.034 – 4.610"; empty for records of other kinds.

    Example:
        >>> value_range([{"kind": "measurement", "value": value} for value in (4.61, 4.034)])
        '4.034 – 4.610'
        >>> value_range([{"kind": "bound", "value": 2.0}])
        ''
    """
    if not records or any(record.get("kind") != "measurement" for record in records):
        return ""
    values = [record["value"] for record in records]
    shown = dict.fromkeys((number(min(values)), number(max(values))))
    return " – ".join(shown)


def describe_record(record: Record) -> str:
    """Return value, status, steps and time of a record, as far as it has them.

    Example:
        >>> describe_record(
        ...     {"kind": "measurement", "value": 4.034, "status": "converged", "steps": 9, "seconds": 0.123}
        ... )
        '4.034, converged, 9 steps, 0.12 s'
    """
    parts = [part for part in (value_range([record]), record.get("status")) if part]
    if isinstance(record.get("steps"), int):
        parts.append(counted(record["steps"], "step"))
    if isinstance(record.get("seconds"), float):
        parts.append(f"{record['seconds']:.2f} s")
    return ", ".join(parts) or "done"


class LastLines:
    """A renderable cut to the last lines that fit in the terminal, above the progress bar."""

    def __init__(self, renderable: RenderableType) -> None:
        """Take the whole renderable."""
        self.renderable = renderable

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the lines."""
        lines = console.render_lines(self.renderable, options.update(height=None), pad=False)
        for line in lines[-max(1, console.height - _LINES_BELOW_TABLE) :]:
            yield from line
            yield Segment.line()
