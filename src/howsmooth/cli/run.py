"""Run the computation of a command: progress on stderr, each record written at once, then table, figure and page."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.text import Text

from howsmooth.cli.display import RecordDisplay
from howsmooth.cli.main import EXIT_INTERRUPTED
from howsmooth.cli.options import chosen_style
from howsmooth.cli.outputs import (
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
from howsmooth.lazy import deferred
from howsmooth.report.rows import ACCEPTED_STATUSES, counted, model_name
from howsmooth.report.style import check_animation_path, check_plot_path

if TYPE_CHECKING:
    from howsmooth.models.model import Model
    from howsmooth.questions.question import Question
    from howsmooth.questions.spec import ModelSpec
    from howsmooth.studies.plan import Plan

WIDTH_WITHOUT_TERMINAL = 120  # columns of output to a file or a pipe


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
        question: The question that they answer.
        files: Files that records are written to.
        stderr: Console for progress and messages.
        records: All records so far.
        interrupted: Whether Ctrl-C ended the computation.
        write_errors: For each path that could not be written, the error.
    """

    question: Question
    files: Sequence[RecordFile]
    stderr: Console
    records: list[Record] = field(default_factory=list)
    interrupted: bool = False
    write_errors: dict[str, InputError] = field(default_factory=dict)

    @contextmanager
    def defer_write_errors(self, path: str | Path, option: str) -> Iterator[None]:
        """Keep an OSError within the block for `finish`, so that the other outputs are still written."""
        try:
            yield
        except BrokenPipeError:  # the reader closed the pipe, which is not an error
            raise
        except OSError as error:
            self.write_errors.setdefault(str(path), write_error(path, option, error))

    def collect(self, name: str, plan: Plan, existing: Sequence[Record] = (), *, again: bool = False) -> None:
        """Compute the records of a plan, and write each of them at once.

        Ctrl-C or a file that cannot be written ends the computation early; the records so far are kept.

        Args:
            name: The model or map, shown beside the progress bar.
            plan: The plan.
            existing: Records of an earlier run, which are not computed again.
            again: Compute everything, for tensors that records do not contain.
        """
        from howsmooth.studies.run import records_of

        live_tables = self.question.live_tables or self.question.tables
        records_on_screen = any(file.path == "-" for file in self.files) and sys.stdout.isatty()
        display = RecordDisplay(
            self.stderr,
            model_name(name),
            plan.count,
            record_noun=self.question.noun,
            describe=self.question.describe,
            table=lambda records: Group(*live_tables(records)),
            live=not records_on_screen,
            verbose=current_runtime().verbose,
        )

        def show(at: dict[str, Any]) -> None:
            if "note" in at:
                print_warning(self.stderr, f"note: {at['note']}")
            else:
                display.show_position(at)

        try:
            with display:
                for record in records_of(plan, existing, progress=show, again=again):
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
        noun = self.question.noun
        counts = {file.path: file.count for file in self.files if file.count and file.path != "-"}
        if not self.interrupted:
            for count in sorted(set(counts.values()), reverse=True):
                paths = " and ".join(path for path in counts if counts[path] == count)
                print_line(self.stderr, f"wrote {counted(count, noun)} to {paths}")
        if self.records:
            for line in (self.question.caveats or partial(_tolerance_caveats, record_noun=noun))(self.records):
                print_warning(self.stderr, line)
        if self.write_errors:
            first, *others = self.write_errors.values()
            for error in others:
                print_warning(self.stderr, str(error))
            raise first
        if not self.interrupted:
            return 0
        where = f"kept in {' and '.join(counts)}" if counts else "shown above" if self.records else "none kept"
        print_warning(self.stderr, f"interrupted after {counted(len(self.records), noun)}, {where}")
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

    maps = counted(len(spec.layers), "layer") if spec.map_type.per_layer else "the whole model"
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
    question: Question,
    prepare: Callable[[Console], tuple[str, Plan]],
    *,
    outputs: dict[str, str | None],
    inputs: dict[str, str | None],
    theme: str,
) -> int:
    """Check the output files, compute the records, and write tables, figure and page; return the exit code.

    Each record is written as soon as it is computed. Tables, figure and page are made of the records so far if Ctrl-C
    or an error ends the computation.

    Args:
        question: The question.
        prepare: Loads what is needed and returns the name of the model or map, and the plan. It is called after the
            outputs have been checked, with the console for messages.
        outputs: Paths by option ("--json", "--csv", "--plot", "--report", those of the question, and "--artefacts" for
            a file of tensors).
        inputs: Paths of input files by option; no output may be one of them.
        theme: Colours of figures.
    """
    from howsmooth.studies.formats import read_to_continue

    check_distinct_files(outputs)
    for option, path in inputs.items():
        if path != "-":
            check_distinct_files({option: path, **outputs})
    with record_files(outputs["--json"], outputs["--csv"], read_to_continue) as files:
        _check_other_outputs(outputs)
        run = CommandRun(question, files, make_console(stderr=True))
        existing = [record for file in files for record in file.existing]
        for note in (note for file in files for note in file.notes):
            print_warning(run.stderr, f"note: {note}")
        name, plan = prepare(run.stderr)
        try:
            run.collect(name, plan, existing, again="--artefacts" in outputs)
        finally:
            if run.records:
                _print_tables(run, to_stderr="-" in (outputs["--json"], outputs["--csv"]))
                _write_other_outputs(run, outputs, theme)
            existing_ids = {id(record) for record in existing}
            if reused := sum(id(record) in existing_ids for record in run.records):
                line = f"{counted(reused, question.noun)} had been in {outputs['--json']} before"
                print_line(run.stderr, line, style="dim")
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


def _print_tables(run: CommandRun, *, to_stderr: bool) -> None:
    """Print the tables; to stderr if stdout has the records."""
    console = run.stderr if to_stderr else make_console()
    with run.defer_write_errors("-", "the table"):
        for part in run.question.tables(run.records):
            console.print(part, soft_wrap=isinstance(part, Text))  # text below a table is not wrapped


def _write_other_outputs(run: CommandRun, outputs: dict[str, str | None], theme: str) -> None:
    """Write the figure, the page, and the files of the question's own options."""
    question = run.question
    if path := outputs.get("--plot"):
        with run.defer_write_errors(path, "--plot"):
            _draw("--plot", question.charts(run.records) if question.charts else [], path, theme, run.stderr)
    if path := outputs.get("--report"):
        with run.defer_write_errors(path, "--report"):
            write_page(Path(path), deferred(question.page or "howsmooth.report.web_page:report_page")(run.records))
            print_line(run.stderr, f"wrote the report {path}")
    for option, output in question.outputs.items():
        if path := outputs[option]:
            with run.defer_write_errors(path, option):
                _draw(option, deferred(output.charts)(run.records), path, theme, run.stderr)
    if path := outputs.get("--artefacts"):
        print_line(run.stderr, f"saved tensors in {path}")


def _draw(option: str, shown: Any, path: str, theme: str, stderr: Console) -> None:
    """Write what a question shows of its records, as a figure or as an animation."""
    from howsmooth.report.figure import draw, save_animation, save_figure
    from howsmooth.report.style import figure_style

    if option == "--animate":
        save_animation(path, shown, theme=theme)
        print_line(stderr, f"wrote {path}")
    elif shown is not None:  # there is nothing to draw
        with figure_style(chosen_style()):
            save_figure(draw(shown, theme=theme), path)
        print_line(stderr, f"drew {path}")


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
