"""Options that the flows share: those of attention and of pictures."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import click

from howsmooth.cli.parameter_types import Count, Number, seed_option

MATRIX_NAMES = ("identity", "-identity", "rotation", "random")  # as howsmooth.dynamics.runs.named_matrix takes them
POSITIVE = Number(0, open=True)


class MatrixText(click.ParamType):
    """A number (times the identity), a diagonal 1,-2, rows 1,0;0,2, or a name.

    >>> MatrixText().convert("1,0;0,2", None, None), MatrixText().convert("-0.5", None, None)
    ([[1.0, 0.0], [0.0, 2.0]], -0.5)
    """

    name = "matrix"

    def __init__(self, names: tuple[str, ...] = MATRIX_NAMES):
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
            self.fail(
                f"expected a number, a diagonal such as 1,-2 or rows such as 1,0;0,2{named}, got {value!r}", param, ctx
            )
        return rows if len(rows) > 1 else rows[0] if len(rows[0]) > 1 else rows[0][0]


def kind_option(kinds: list[str], default: str) -> Callable:
    return click.option("--attention", "kind", type=click.Choice(kinds), help=f"Which attention.  [default: {default}]")


def dim_option(default: str) -> Callable:
    return click.option("--dim", type=Count(), metavar="NUMBER", help=f"Dimension of tokens.  [default: {default}]")


def until_option(default: str) -> Callable:
    return click.option(
        "--until",
        type=POSITIVE,
        metavar="DEPTH",
        help=f"How deep; depth is the time of the flow.  [default: {default}]",
    )


def attention_options(kinds: list[str], dim: int) -> Callable:
    """Make the options of `howsmooth.dynamics.runs.declared_attention`, in the order that help shows."""
    options = (
        click.argument("example", required=False),
        kind_option(kinds, "the file's, or softmax"),
        click.option(
            "--A",
            "a",
            type=MatrixText(),
            help="Matrix A of the scores ⟨Ax, y⟩; l2: |Ax − y|². Names: "
            + ", ".join(MATRIX_NAMES)
            + ".  [default: the file's, or identity]",
        ),
        click.option(
            "--V", "v", type=MatrixText(), help="Matrix V of the values Vy.  [default: the file's, or identity]"
        ),
        dim_option(f"the file's, or {dim}"),
        until_option("the file's, or 1"),
        seed_option(0),
    )
    return _in_order(options)


def picture_options(*, animate: str) -> Callable:
    """Make the options of moving pictures and of their colours."""
    return _in_order(
        (
            click.option(
                "--animate", "animation_path", metavar="FILE", help=f"A film (gif, or mp4 with ffmpeg): {animate}."
            ),
            theme_option,
        )
    )


theme_option = click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours of pictures."
)


def _in_order(options: tuple[Callable, ...]) -> Callable:
    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
