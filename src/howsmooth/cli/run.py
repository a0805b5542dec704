"""Running the measuring loop for a person: progress on stderr, every record kept the moment it exists."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from howsmooth.cli.main import EXIT_INTERRUPTED
from howsmooth.cli.outputs import RecordFile, unwritable
from howsmooth.errors import InputError
from howsmooth.report.rows import FINE, counted, model_name

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.studies.plan import Plan
    from howsmooth.studies.spec import Spec

ProgressCallback = Callable[..., None]  # called with (n, layer, head), or the arguments of `describe`

_PLAIN_WIDTH = 120  # columns of a table that goes to a file or a pipe


def console(*, stderr: bool = False, record: bool = False, width: int | None = None) -> Console:
    """A console that wraps at the terminal's width, and at a wide one where there is no terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(
        file=stream, width=width or (None if stream.isatty() else _PLAIN_WIDTH), highlight=False, record=record
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
    doubts: Callable[[list[dict[str, Any]]], Iterable[str]] | None = None  # lines of warning; None: of estimates

    @contextmanager
    def writing(self, path: str | Path, option: str) -> Iterator[None]:
        """Keep a failure to write for `finish`: what else was computed is still written and shown."""
        try:
            yield
        except BrokenPipeError:  # a reader that has enough is no failure
            raise
        except OSError as error:
            self.failures.setdefault(str(path), unwritable(path, option, error))

    def collect(
        self,
        model: str,
        total: int,
        produce: Callable[[ProgressCallback], Iterable[dict[str, Any]]],
        describe: Callable[..., str] | None = None,
    ) -> None:
        """Keep what `produce(progress)` yields, `total` records in all, the moment each is there.

        Ctrl-C or a file that cannot be written ends it early; what was computed stays.
        """
        name = model_name(model)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        try:
            with Progress(*columns, console=self.notes, disable=not self.notes.is_terminal, transient=True) as bar:
                task = bar.add_task(name, total=total)

                def show(*what: Any) -> None:
                    bar.update(task, description=f"{name} {(describe or _place)(*what)}")

                for record in produce(show):
                    first = self.records[0] if self.records else record
                    for file in self.files:
                        if file.form == "csv" and record.get("record") != first.get("record"):
                            continue  # its columns are those of the first kind of record
                        with self.writing(file.path, file.option):
                            file.write(record)
                    self.records.append(record)
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
                say(self.notes, f"wrote {counted(count, self.thing)} to {paths}")
        if self.records:
            for line in self.doubts(self.records) if self.doubts else _unfinished(self.records, self.thing):
                say(self.notes, f"howsmooth: {line}", style="yellow")
        if self.failures:
            first, *others = self.failures.values()
            for failure in others:
                say(self.notes, f"howsmooth: {failure}")
            raise first
        if not self.interrupted:
            return 0
        where = f"kept in {' and '.join(written)}" if written else "shown above" if self.records else "none kept"
        count = counted(len(self.records), self.thing)
        say(self.notes, f"howsmooth: interrupted after {count}, {where}")
        return EXIT_INTERRUPTED


def announce(spec: Spec, model: Model, notes: Console, plan: Plan | None = None) -> None:
    """Say what is about to be computed and the memory it needs."""
    from howsmooth.report.plan_tables import show_bytes

    maps = "the whole model" if spec.kind == "model" else counted(len(spec.layers), "layer")
    if spec.heads is not None:
        maps += " × " + counted(len(spec.heads), "head")
    lengths = ", ".join(str(n) for n in spec.lengths)
    memory = "" if plan is None else f", at most {show_bytes(plan.planned_models[0].solve_bytes)} of memory for a solve"
    tokens = (
        "random tokens"
        if spec.inputs == "normalised"
        else (f"special tokens {'added' if spec.adds_special_tokens else 'not added'}")
    )
    variants = 1 if plan is None else plan.count // spec.estimates  # quantities and choices of tokens
    each = f" × {variants} quantities or choices of tokens" if variants > 1 else ""
    say(
        notes,
        f"{model_name(model.name)}: {counted(spec.estimates * variants, 'estimate')} "
        f"({maps} × n = {lengths} × {counted(spec.samples, 'sample')}{each}) "
        f"in {str(model.dtype).removeprefix('torch.')} on {model.device}, {tokens}{memory}",
        style="dim",
    )
    if spec.inputs == "normalised" and model.positions is not None and max(spec.lengths) > model.positions:
        say(
            notes,
            f"howsmooth: note: {model_name(model.name)} was made for {model.positions} positions; beyond them "
            "records say extrapolated",
            style="yellow",
        )


Work = tuple[
    str, int, Callable[[ProgressCallback], Iterable[dict[str, Any]]]
]  # name, number of records, what produces them


def run_and_show(
    outputs: dict[str, str | None],
    *,
    work: Callable[[Console, list[dict[str, Any]]], Work],
    table: Callable[[list[dict[str, Any]]], Any],
    thing: str,
    plot: Callable[[list[dict[str, Any]]], Any] | None = None,
    page: Callable[[list[dict[str, Any]]], str] | None = None,
    inputs: dict[str, str | None] | None = None,
    describe: Callable[..., str] | None = None,
    read: Callable[[str], list[dict[str, Any]]] | None = None,
    also: dict[str, Callable[[str, list[dict[str, Any]]], None]] | None = None,
    doubts: Callable[[list[dict[str, Any]]], Iterable[str]] | None = None,
) -> int:
    """The protocol of a command: check the files, compute, show the table, draw, write the page, say how it ended.

    `outputs` are paths by option ("--json", "--csv", "--plot", "--report"); no output may be one of the `inputs`.
    `also` are functions of path and records that write the outputs of other options. `doubts` are the lines of warning
    about the records; without it, those about estimates that did not reach the tolerance.
    `work` is called once all outputs are known to be good, with the console for notes and the records that the file of
    --json holds already, if `read` makes the command one that can be resumed. Each record is written the moment it is
    there, and whatever ends the computation, what was computed is shown.
    """
    from howsmooth.cli.outputs import record_files, refuse_one_file_twice, write_page

    for named in ({}, *({option: path} for option, path in (inputs or {}).items() if path != "-")):
        refuse_one_file_twice({**named, **outputs})
    files = record_files(outputs.get("--json"), outputs.get("--csv"), read)
    _check_pictures_and_pages(outputs)
    drawn, written = outputs.get("--plot"), outputs.get("--report")
    notes = console(stderr=True)
    run = Run(files, notes, thing=thing, doubts=doubts)
    kept = [record for file in files for record in file.kept]
    name, total, produce = work(notes, kept)
    try:
        run.collect(name, total, produce, describe)
    finally:
        if run.records:
            shown = notes if "-" in (outputs.get("--json"), outputs.get("--csv")) else console()
            with run.writing("-", "the table"):
                found = table(run.records)
                for part in found.renderables if isinstance(found, Group) else [found]:
                    shown.print(part, soft_wrap=isinstance(part, Text))  # a line below a table is never wrapped
        if run.records and drawn and plot is not None:
            from howsmooth.report.figure import save_figure

            with run.writing(drawn, "--plot"):
                save_figure(plot(run.records), drawn)
                say(notes, f"drew {drawn}")
        if run.records and written and page is not None:
            with run.writing(written, "--report"):
                write_page(Path(written), page(run.records))
                say(notes, f"wrote the report {written}")
        for option, write in (also or {}).items():
            path = outputs[option]
            if run.records and path:
                with run.writing(path, option):
                    write(path, run.records)
        there = {id(record) for record in kept}
        reused = sum(id(record) in there for record in run.records)
        if reused:
            say(notes, f"{counted(reused, thing)} had been in {outputs['--json']} before", style="dim")
        code = run.finish()
    return code


def _check_pictures_and_pages(outputs: dict[str, str | None]) -> None:
    """Refuse what could not be drawn or written later; files of records are checked where they are made."""
    from howsmooth.cli.outputs import check_writable

    for option, path in outputs.items():
        if not path or option in ("--json", "--csv"):
            continue
        if option.startswith("--plot"):
            from howsmooth.report.figure import check_plot_path

            check_plot_path(path, option)
        elif option == "--animate":
            from howsmooth.report.flow_figures import check_animation_path

            check_animation_path(path, option)
        check_writable(Path(path), option)


def _place(n: int, layer: int | None, head: int | None) -> str:
    where = "" if layer is None else f"layer {layer}, " if head is None else f"layer {layer} head {head}, "
    return f"{where}n = {n}"


def _unfinished(records: Sequence[dict[str, Any]], thing: str) -> Iterator[str]:
    one_sided = sum(record.get("upper", 0.0) is None and record.get("lower") is not None for record in records)
    if one_sided:
        yield f"note: {one_sided} of {len(records)} {thing}s have a certified lower end alone"
    unfinished = [
        record
        for record in records
        if record.get("status", FINE[0]) not in FINE  # searches have none
        and record.get("upper", 0.0) is not None
    ]
    if unfinished:
        statuses = ", ".join(sorted({record["status"] for record in unfinished}))
        doubt = (
            f"changed nothing that can be read ({statuses}): try --dtype float64 or another --budget"
            if thing == "attack"
            else f"did not reach the tolerance ({statuses}); their intervals hold but are "
            "wider: try --dtype float64 or a larger --tol"
        )
        yield f"warning: {len(unfinished)} of {len(records)} {thing}s {doubt}"
