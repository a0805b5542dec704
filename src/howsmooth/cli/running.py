"""Running the measuring loop for a person: progress on stderr, every record kept the moment it exists."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from howsmooth.cli.main import EXIT_INTERRUPTED
from howsmooth.cli.outputs import RecordFile, unwritable
from howsmooth.errors import InputError
from howsmooth.report.rows import FINE, model_name

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.studies import Settings, Text

Step = Callable[..., None]  # (n, layer, head), or what `describe` takes: what is about to be computed

_PLAIN_WIDTH = 120  # columns of a table that goes to a file or a pipe


def console(*, stderr: bool = False, record: bool = False, width: int | None = None) -> Console:
    """A console that wraps at the terminal's width, and at a wide one where there is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream,
        width=width or (None if stream.isatty() else _PLAIN_WIDTH),
        highlight=False,
        record=record,
    )


def say(notes: Console, line: str, style: str = "") -> None:
    """One line, never wrapped and never read as markup."""
    notes.print(line, style=style, markup=False, soft_wrap=True)


@dataclass
class Run:
    """The records of a command so far, and how it ended."""

    files: Sequence[RecordFile]
    notes: Console
    records: list[dict[str, Any]] = field(default_factory=list)
    interrupted: bool = False
    failures: dict[str, InputError] = field(default_factory=dict)  # path -> why it could not be written
    thing: str = "estimate"  # what a record is called when counted

    @contextmanager
    def writing(self, path: str | Path, option: str) -> Iterator[None]:
        """Keep a failure to write for `finish`: what else was computed is still written and shown."""
        try:
            yield
        except BrokenPipeError:  # a reader that has enough is no failure
            raise
        except OSError as error:
            self.failures.setdefault(str(path), unwritable(path, option, error))

    def collect(self, model: str, total: int, produce: Callable[[Step], Iterable[dict[str, Any]]],
                describe: Callable[..., str] | None = None) -> None:
        """Keep what `produce(step)` yields, `total` records in all, the moment each is there.

        Ctrl-C or a file that cannot be written ends it early; what was computed stays.
        """
        name = model_name(model)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        try:
            with Progress(
                *columns, console=self.notes, disable=not self.notes.is_terminal, transient=True
            ) as bar:
                task = bar.add_task(name, total=total)

                def show(*what: Any) -> None:
                    bar.update(task, description=f"{name} {(describe or _place)(*what)}")

                for record in produce(show):
                    self.records.append(record)
                    for file in self.files:
                        with self.writing(file.path, file.option):
                            file.write(record)
                    if self.failures:
                        break
                    bar.advance(task)
        except KeyboardInterrupt:
            self.interrupted = True

    def finish(self) -> int:
        """Close the files, say what there is and what to doubt; the exit code.

        Raises for the first file that could not be written, after all else is said.
        """
        for file in self.files:
            with self.writing(file.path, file.option):
                file.close()
        counts = {file.path: file.count for file in self.files if file.count and file.path != "-"}
        written = list(counts)
        for count in sorted(set(counts.values()), reverse=True):
            if not self.interrupted:
                paths = " and ".join(path for path in written if counts[path] == count)
                say(self.notes, f"wrote {_count(count, self.thing)} to {paths}")
        _warn_unfinished(self.records, self.notes)
        if self.failures:
            first, *others = self.failures.values()
            for failure in others:
                say(self.notes, f"howsmooth: {failure}")
            raise first
        if not self.interrupted:
            return 0
        where = (
            f"kept in {' and '.join(written)}" if written else "shown above" if self.records else "none kept"
        )
        count = _count(len(self.records), self.thing)
        say(self.notes, f"howsmooth: interrupted after {count}, {where}")
        return EXIT_INTERRUPTED


def announce(model: Model, text: Text, settings: Settings, notes: Console) -> None:
    """Say what is about to be computed and the memory it needs; refused here if that is too much."""
    from howsmooth.cli.parsing import show_bytes
    from howsmooth.studies import memory_plan

    memory = memory_plan(model, text, settings)
    maps = _count(len(settings.layers), "layer")
    if settings.heads is not None:
        maps += " × " + _count(len(settings.heads), "head")
    lengths = ", ".join(str(n) for n in settings.lengths)
    say(
        notes,
        f"{model_name(model.name)}: {_count(settings.estimates, 'estimate')} "
        f"({maps} × n = {lengths} × {_count(settings.samples, 'sample')}) "
        f"in {str(model.dtype).removeprefix('torch.')} on {model.device}, "
        f"at most {show_bytes(memory.total)} of memory for a solve",
        style="dim",
    )


def _place(n: int, layer: int, head: int | None) -> str:
    return f"layer {layer}{'' if head is None else f' head {head}'}, n = {n}"


def _warn_unfinished(records: Sequence[dict[str, Any]], notes: Console) -> None:
    unfinished = [record for record in records if record.get("status", FINE[0]) not in FINE]  # searches have none
    if unfinished:
        statuses = ", ".join(sorted({record["status"] for record in unfinished}))
        say(
            notes,
            f"howsmooth: warning: {len(unfinished)} of {len(records)} estimates did not reach the tolerance "
            f"({statuses}); their intervals hold but are wider: try --dtype float64 or a larger --tol",
            style="yellow",
        )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
