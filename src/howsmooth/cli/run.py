"""Run the computation of a command: progress on stderr, each record written at once, then table, figure and page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console, Group
from rich.text import Text

from howsmooth.cli.display import RecordDisplay
from howsmooth.cli.main import EXIT_INTERRUPTED
from howsmooth.cli.options import chosen_style
from howsmooth.cli.outputs import (
    Reader,
    Record,
    RecordFile,
    check_distinct_files,
    check_writable,
    record_files,
    write_error,
    write_page,
)
from howsmooth.cli.runtime import current_runtime
from howsmooth.errors import InputError
from howsmooth.report.output_paths import check_animation_path, check_plot_path
from howsmooth.report.rows import ACCEPTED_STATUSES, counted, model_name

if TYPE_CHECKING:
    from howsmooth.models import Model
    from howsmooth.questions.spec import ModelSpec
    from howsmooth.studies.plan import Plan

WIDTH_WITHOUT_TERMINAL = 120  # columns of output to a file or a pipe

ProgressCallback = Callable[..., None]  # called with (n, layer, head), or the arguments of `describe`


class Computation(NamedTuple):
    """What a command computes.

    Attributes:
        name: The model or map, shown beside the progress bar.
        total: The number of records.
        records: Yields the records. It is called with a callback, which it calls before each record with the arguments
            of `describe` in `run_command`.
    """

    name: str
    total: int
    records: Callable[[ProgressCallback], Iterable[Record]]


def make_console(*, stderr: bool = False, record: bool = False, width: int | None = None) -> Console:
    """Return a console for stdout or stderr, as wide as the terminal or `WIDTH_WITHOUT_TERMINAL`.

    With `--quiet`, the console of stderr prints warnings only (`print_warning`).

    Args:
        stderr: Whether the console prints to stderr.
        record: Whether it records its output, for `save_console_svg`.
        width: Number of columns, in place of the terminal's.
    """
    stream = sys.stderr if stderr else sys.stdout
    if width is None and not stream.isatty():
        width = WIDTH_WITHOUT_TERMINAL
    quiet = stderr and current_runtime().quiet
    return Console(file=stream, width=width, highlight=False, record=record, quiet=quiet)


def print_line(console: Console, line: str, style: str = "") -> None:
    """Print one line without wrapping it and without interpreting markup."""
    console.print(line, style=style, markup=False, soft_wrap=True)


def print_warning(console: Console, line: str) -> None:
    """Print one line with the name of the program, also with `--quiet`."""
    quiet, console.quiet = console.quiet, False
    print_line(console, f"howsmooth: {line}", style="yellow")
    console.quiet = quiet


@dataclass
class CommandRun:
    """The records of a command so far, and how it ended.

    Attributes:
        files: Files that records are written to.
        stderr: Console for progress and messages.
        records: All records so far.
        interrupted: Whether Ctrl-C ended the computation.
        write_errors: For each path that could not be written, the error.
        record_noun: What a record is called when records are counted.
        caveats: Lines of warning about the records; by default, about tolerances that were not reached.
        live_table: Returns the table that a terminal shows while records are computed.
    """

    files: Sequence[RecordFile]
    stderr: Console
    records: list[Record] = field(default_factory=list)
    interrupted: bool = False
    write_errors: dict[str, InputError] = field(default_factory=dict)
    record_noun: str = "estimate"
    caveats: Callable[[list[Record]], Iterable[str]] | None = None
    live_table: Callable[[list[Record]], Any] | None = None

    @contextmanager
    def defer_write_errors(self, path: str | Path, option: str) -> Iterator[None]:
        """Keep an OSError within the block for `finish`, so that the other outputs are still written."""
        try:
            yield
        except BrokenPipeError:  # the reader closed the pipe, which is not an error
            raise
        except OSError as error:
            self.write_errors.setdefault(str(path), write_error(path, option, error))

    def collect(self, computation: Computation, describe: Callable[..., str] | None = None) -> None:
        """Compute the records, and write each of them at once.

        Ctrl-C or a file that cannot be written ends the computation early; the records so far are kept.

        Args:
            computation: What to compute.
            describe: Turns the coordinates of a place into a text; by default layer, head and n.
        """
        records_on_screen = any(file.path == "-" for file in self.files) and sys.stdout.isatty()
        display = RecordDisplay(
            self.stderr,
            model_name(computation.name),
            computation.total,
            record_noun=self.record_noun,
            describe=describe,
            table=self.live_table,
            live=not records_on_screen,
            verbose=current_runtime().verbose,
        )
        try:
            with display:
                for record in computation.records(display.show_position):
                    self._write(record)
                    self.records.append(record)
                    if self.write_errors:
                        break
                    display.add(record)
        except KeyboardInterrupt:
            self.interrupted = True

    def _write(self, record: Record) -> None:
        for file in self.files:
            with self.defer_write_errors(file.path, file.option):
                file.write(record)

    def finish(self) -> int:
        """Close the files, print what was written and the caveats, and return the exit code.

        Raises:
            InputError: The first write error, after everything else has been printed.
        """
        for file in self.files:
            with self.defer_write_errors(file.path, file.option):
                file.close()
        counts = {file.path: file.count for file in self.files if file.count and file.path != "-"}
        if not self.interrupted:
            for count in sorted(set(counts.values()), reverse=True):
                paths = " and ".join(path for path in counts if counts[path] == count)
                print_line(self.stderr, f"wrote {counted(count, self.record_noun)} to {paths}")
        if self.records:
            caveats = self.caveats(self.records) if self.caveats else _tolerance_caveats(self.records, self.record_noun)
            for line in caveats:
                print_warning(self.stderr, line)
        if self.write_errors:
            first, *others = self.write_errors.values()
            for error in others:
                print_warning(self.stderr, str(error))
            raise first
        if not self.interrupted:
            return 0
        where = f"kept in {' and '.join(counts)}" if counts else "shown above" if self.records else "none kept"
        print_warning(self.stderr, f"interrupted after {counted(len(self.records), self.record_noun)}, {where}")
        return EXIT_INTERRUPTED


def print_overview(spec: ModelSpec, model: Model, stderr: Console, plan: Plan) -> None:
    """Print what a command is going to compute, and how much memory that takes.

    Args:
        spec: The spec, resolved against the model.
        model: The model.
        stderr: The console to print to.
        plan: The tasks.
    """
    from howsmooth.report.plan_tables import sample_counts, show_bytes, special_tokens

    maps = "the whole model" if spec.map_name == "model" else counted(len(spec.layers), "layer")
    if spec.heads is not None:
        maps += " × " + counted(len(spec.heads), "head")
    lengths = ", ".join(str(n) for n in spec.lengths)
    planned = plan.planned_models[0]
    memory = f", at most {show_bytes(planned.solve_bytes)} of memory for a solve" if spec.question == "measure" else ""
    tokens = {
        "text": special_tokens(plan) if spec.inputs == "text" else "",
        "ids": "random token ids",
        "normalised": "random tokens",
        "images": "images",
        "audio": "sounds",
    }[spec.inputs]
    variants = len(getattr(spec, "variants", "1"))  # quantities and choices of tokens
    samples = sum(len(planned.fitted(inputs, n)[1]) for inputs in planned.inputs for n in spec.lengths)
    each = f" × {variants} quantities or choices of tokens" if variants > 1 else ""
    print_line(
        stderr,
        f"{model_name(model.name)}: {counted(planned.num_maps * samples * variants, 'estimate')} "
        f"({maps} × n = {lengths} × {sample_counts(plan)}{each}) "
        f"in {str(model.dtype).removeprefix('torch.')} on {model.device}, {tokens}{memory}",
        style="dim",
    )
    if spec.inputs == "normalised" and model.positions is not None and max(spec.lengths) > model.positions:
        print_warning(
            stderr,
            f"note: {model_name(model.name)} was trained with {model.positions} positions; records beyond them are "
            "marked extrapolated",
        )


def run_command(
    *,
    outputs: dict[str, str | None],
    prepare: Callable[[Console, list[Record]], Computation],
    record_noun: str,
    table: Callable[[list[Record]], Any],
    plot: Callable[[list[Record]], Any] | None = None,
    page: Callable[[list[Record]], str] | None = None,
    inputs: dict[str, str | None] | None = None,
    describe: Callable[..., str] | None = None,
    read_existing: Reader | None = None,
    writers: dict[str, Callable[[str, list[Record]], None]] | None = None,
    caveats: Callable[[list[Record]], Iterable[str]] | None = None,
    live_table: Callable[[list[Record]], Any] | None = None,
) -> int:
    """Check the output files, compute the records, and write table, figure and page; return the exit code.

    Each record is written as soon as it is computed. Table, figure and page are made of the records so far if Ctrl-C or
    an error ends the computation.

    Args:
        outputs: Paths by option ("--json", "--csv", "--plot", "--report", and the options of `writers`).
        prepare: Loads what is needed and returns the computation. It is called after the outputs have been checked,
            with the console for messages and the existing records.
        record_noun: What a record is called when records are counted, such as "estimate".
        table: Returns the table of the records, a rich renderable.
        plot: Returns the figure of --plot.
        page: Returns the HTML of --report.
        inputs: Paths of input files by option; no output may be one of them.
        describe: Turns the coordinates of a place into a text; by default layer, head and n.
        read_existing: Reads the records of an existing --json file, which makes the command resumable.
        writers: Functions of path and records that write the outputs of further options.
        caveats: Returns lines of warning about the records; by default, about tolerances that were not reached.
        live_table: Returns the table that a terminal shows while records are computed; by default `table`.
    """
    check_distinct_files(outputs)
    for option, path in (inputs or {}).items():
        if path != "-":
            check_distinct_files({option: path, **outputs})
    with record_files(outputs.get("--json"), outputs.get("--csv"), read_existing) as files:
        _check_other_outputs(outputs)
        stderr = make_console(stderr=True)
        run = CommandRun(files, stderr, record_noun=record_noun, caveats=caveats, live_table=live_table or table)
        existing = [record for file in files for record in file.existing]
        for note in (note for file in files for note in file.notes):
            print_warning(stderr, f"note: {note}")
        computation = prepare(stderr, existing)
        try:
            run.collect(computation, describe)
        finally:
            if run.records:
                _print_table(run, table, to_stderr="-" in (outputs.get("--json"), outputs.get("--csv")))
                _write_figure_and_page(run, outputs, plot, page)
                for option, write in (writers or {}).items():
                    if path := outputs[option]:
                        with run.defer_write_errors(path, option):
                            write(path, run.records)
            existing_ids = {id(record) for record in existing}
            if reused := sum(id(record) in existing_ids for record in run.records):
                print_line(
                    stderr, f"{counted(reused, record_noun)} had been in {outputs['--json']} before", style="dim"
                )
            code = run.finish()
    return code


def _check_other_outputs(outputs: dict[str, str | None]) -> None:
    """Check the paths of figures and pages; those of records are checked by `record_files`."""
    for option, path in outputs.items():
        if not path or option in ("--json", "--csv"):
            continue
        if option.startswith("--plot"):
            check_plot_path(path, option)
        elif option == "--animate":
            check_animation_path(path, option)
        check_writable(Path(path), option)


def _print_table(run: CommandRun, table: Callable[[list[Record]], Any], *, to_stderr: bool) -> None:
    """Print the table; to stderr if stdout has the records."""
    console = run.stderr if to_stderr else make_console()
    with run.defer_write_errors("-", "the table"):
        renderable = table(run.records)
        for part in renderable.renderables if isinstance(renderable, Group) else [renderable]:
            console.print(part, soft_wrap=isinstance(part, Text))  # text below a table is not wrapped


def _write_figure_and_page(
    run: CommandRun,
    outputs: dict[str, str | None],
    plot: Callable[[list[Record]], Any] | None,
    page: Callable[[list[Record]], str] | None,
) -> None:
    plot_path, page_path = outputs.get("--plot"), outputs.get("--report")
    if plot_path and plot is not None:
        from howsmooth.report.figure import save_figure
        from howsmooth.report.style import figure_style

        with run.defer_write_errors(plot_path, "--plot"), figure_style(chosen_style()):
            save_figure(plot(run.records), plot_path)
            print_line(run.stderr, f"drew {plot_path}")
    if page_path and page is not None:
        with run.defer_write_errors(page_path, "--report"):
            write_page(Path(page_path), page(run.records))
            print_line(run.stderr, f"wrote the report {page_path}")


def _tolerance_caveats(records: Sequence[Record], record_noun: str) -> Iterator[str]:
    """Yield a line about records without an upper end, and one about those that did not reach the tolerance."""
    one_sided = sum(record.get("upper", 0.0) is None and record.get("lower") is not None for record in records)
    if one_sided:
        yield f"note: {one_sided} of {len(records)} {record_noun}s have only a certified lower end"
    unconverged = [
        record
        for record in records
        if record.get("status", ACCEPTED_STATUSES[0]) not in ACCEPTED_STATUSES  # records of searches have no status
        and record.get("upper", 0.0) is not None
    ]
    if not unconverged:
        return
    statuses = ", ".join(sorted({record["status"] for record in unconverged}))
    yield (
        f"warning: {len(unconverged)} of {len(records)} {record_noun}s did not reach the tolerance ({statuses}); their "
        "intervals are valid but wider: try --dtype float64 or a larger --tol"
    )
