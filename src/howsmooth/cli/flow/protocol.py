"""What the flows share: the options of attention and of pictures, checks of files, the bar along depth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.parsing import Count, Number, seed_option

if TYPE_CHECKING:
    from rich.console import Console

NAMES = ("identity", "-identity", "rotation", "random")  # of matrices, as howsmooth.dynamics.runs makes them
POSITIVE = Number(0, open=True)


class MatrixText(click.ParamType):
    """A number (times the identity), a diagonal 1,-2, rows 1,0;0,2, or a name.

    >>> MatrixText().convert("1,0;0,2", None, None), MatrixText().convert("-0.5", None, None)
    ([[1.0, 0.0], [0.0, 2.0]], -0.5)
    """

    name = "matrix"

    def __init__(self, names: tuple[str, ...] = NAMES):
        self.names = names

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "NUMBER|1,2|1,0;0,2" + ("|NAME" if self.names else "")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value in self.names:
            return value
        try:
            rows = [[float(entry) for entry in row.split(",")] for row in value.split(";")]
        except ValueError:
            rows = [[math.nan]]
        if not all(math.isfinite(entry) for row in rows for entry in row):
            named = f", or {', '.join(self.names)}" if self.names else ""
            self.fail(f"expected a number, a diagonal such as 1,-2 or rows such as 1,0;0,2{named}, got {value!r}",
                      param, ctx)
        return rows if len(rows) > 1 else rows[0] if len(rows[0]) > 1 else rows[0][0]


def kind_option(kinds: list[str], default: str) -> Callable:
    return click.option("--attention", "kind", type=click.Choice(kinds), help=f"Which attention.  [default: {default}]")


def dim_option(default: str) -> Callable:
    return click.option("--dim", type=Count(), metavar="NUMBER", help=f"Dimension of tokens.  [default: {default}]")


def until_option(default: str) -> Callable:
    return click.option("--until", type=POSITIVE, metavar="DEPTH",
                        help=f"How deep; depth is the time of the flow.  [default: {default}]")


def attention_options(kinds: list[str], dim: int) -> Callable:
    """Make the options of `howsmooth.dynamics.runs.declared_attention`, in the order that help shows."""
    options = (
        click.argument("example", required=False),
        kind_option(kinds, "the file's, or softmax"),
        click.option("--A", "a", type=MatrixText(), help="Matrix A of the scores ⟨Ax, y⟩; l2: |Ax − y|². Names: "
                     + ", ".join(NAMES) + ".  [default: the file's, or identity]"),
        click.option("--V", "v", type=MatrixText(),
                     help="Matrix V of the values Vy.  [default: the file's, or identity]"),
        dim_option(f"the file's, or {dim}"), until_option("the file's, or 1"), seed_option(0),
    )
    return _in_order(options)


def picture_options(*, animate: str) -> Callable:
    """Make the options of moving pictures and of their colours."""
    return _in_order((
        click.option("--animate", "animation_path", metavar="FILE",
                     help=f"A film (gif, or mp4 with ffmpeg): {animate}."),
        theme_option))


theme_option = click.option("--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True,
                            help="Colours of pictures.")


def _in_order(options: tuple[Callable, ...]) -> Callable:
    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command
    return decorate


def check_files(outputs: dict[str, str | None], inputs: dict[str, str | None] | None = None) -> None:
    """Refuse names that cannot be written or drawn, before anything is computed; both are path by option."""
    from howsmooth.cli.outputs import check_writable, refuse_one_file_twice
    from howsmooth.errors import InputError

    refuse_one_file_twice(outputs | (inputs or {}))
    for option, path in outputs.items():
        if path is None or option in ("--json", "--csv"):
            continue
        if option.startswith("--plot"):
            from howsmooth.report.figure import check_plot_path

            check_plot_path(path)
        elif option == "--animate":
            from howsmooth.report.flow_figures import check_animation_path

            check_animation_path(path)
        elif option == "--report":
            from howsmooth.report.flow_page import check_page_path

            check_page_path(path, option)
        elif option == "--artefacts" and not path.endswith(".safetensors"):
            raise InputError(f"expected a file ending in .safetensors for --artefacts, got {path!r}")
        check_writable(Path(path), option)


@contextmanager
def bar_along(notes: Console, what: str, until: float) -> Iterator[Callable[[float], None]]:
    """Give what is to be called with each depth on the way; shown on a terminal alone."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(what + "{task.completed:.4g} of {task.total:g}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=notes, disable=not notes.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=until)
        yield lambda t: bar.update(task, completed=t)
