"""Options that the commands of `howsmooth flow` share: those of the attention and of figures."""

from __future__ import annotations

import math
from typing import Any

import click

from howsmooth.cli.options import Decorator, apply_options
from howsmooth.cli.parameter_types import MAX_COUNT, Count, Number, seed_option

MATRIX_NAMES = (
    "identity",
    "-identity",
    "rotation",
    "random",
)  # as howsmooth.dynamics.overrides.named_matrix takes them
POSITIVE = Number(0, exclusive=True)


class MatrixText(click.ParamType):
    """A matrix: a number (times the identity), a diagonal 1,-2, rows 1,0;0,2, or a name.

    Example:
        >>> MatrixText().convert("1,0;0,2", None, None), MatrixText().convert("-0.5", None, None)
        ([[1.0, 0.0], [0.0, 2.0]], -0.5)
    """

    name = "matrix"

    def __init__(self, names: tuple[str, ...] = MATRIX_NAMES) -> None:
        """Take the names that are allowed."""
        self.names = names

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the forms of a matrix."""
        return "NUMBER|1,2|1,0;0,2" + ("|NAME" if self.names else "")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a number, a list of the diagonal or a list of rows, or return the name."""
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


def kind_option(kinds: list[str], default: str) -> Decorator:
    """Return a decorator that adds `--attention`."""
    return click.option(
        "--attention", "kind", type=click.Choice(kinds), help=f"Kind of attention.  [default: {default}]"
    )


def dim_option(default: str, largest: int = MAX_COUNT) -> Decorator:
    """Return a decorator that adds `--dim`, a number up to `largest`."""
    kind = Count(1, largest)
    return click.option("--dim", type=kind, metavar="NUMBER", help=f"Dimension of tokens.  [default: {default}]")


def until_option(default: str) -> Decorator:
    """Return a decorator that adds `--until`."""
    return click.option(
        "--until",
        type=POSITIVE,
        metavar="DEPTH",
        help=f"Final depth; depth is the time of the flow.  [default: {default}]",
    )


def attention_options(kinds: list[str], dim: int, largest_dim: int = MAX_COUNT) -> Decorator:
    """Return a decorator that adds the options of `howsmooth.dynamics.overrides.declared_attention`.

    Args:
        kinds: The kinds of attention.
        dim: The default dimension.
        largest_dim: The largest dimension.
    """
    return apply_options(
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
        dim_option(f"the file's, or {dim}", largest_dim),
        until_option("the file's, or 1"),
        seed_option(0),
    )


def animation_options(*, animate: str) -> Decorator:
    """Return a decorator that adds the options of an animation and of colours."""
    return apply_options(
        click.option(
            "--animate", "animation_path", metavar="FILE", help=f"An animation (gif, or mp4 with ffmpeg): {animate}."
        ),
        theme_option,
    )


theme_option = click.option(
    "--theme", type=click.Choice(["light", "dark"]), default="light", show_default=True, help="Colours of figures."
)
