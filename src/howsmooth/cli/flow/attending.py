"""Which attention a flow has: by kind and matrices, from a file, or drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from howsmooth.cli.parsing import Count, Number
from howsmooth.errors import InputError

if TYPE_CHECKING:
    from howsmooth.dynamics.declared import Example

NAMES = ("identity", "-identity", "rotation", "random")


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

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
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


class Numbers(click.ParamType):
    """Comma-separated numbers, the entries of a vector."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        try:
            entries = [float(entry) for entry in value.split(",")]
        except ValueError:
            entries = [math.nan]
        if not all(math.isfinite(entry) for entry in entries):
            self.fail(f"expected comma-separated numbers such as 0.5,-1, got {value!r}", param, ctx)
        return entries


def attention_options(kinds: list[str], dim: int) -> Callable:
    """Options for `declared_attention`, in the order that help shows."""
    options = (
        click.argument("example", required=False),
        click.option("--kind", type=click.Choice(kinds), help="Of attention.  [default: softmax]"),
        click.option("--A", "a", type=MatrixText(), help="Of the scores ⟨Ax, y⟩ (l2: |Ax − y|²); names: "
                     + ", ".join(NAMES) + ".  [default: identity]"),
        click.option("--V", "v", type=MatrixText(), help="Of the values Vy, likewise.  [default: identity]"),
        click.option("--dim", type=Count(), metavar="NUMBER",
                     help=f"Of the space.  [default: the file's, or {dim}]"),
        click.option("--until", type=Number(0, open=True), metavar="TIME",
                     help="How far.  [default: the file's, or 1]"),
        click.option("--seed", type=Count(0, 2**63 - 1), metavar="NUMBER", default=0, show_default=True,
                     help="Of random matrices and of particles."),
    )

    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def declared_attention(example: str | None, *, kind: str | None, a: Any, v: Any, dim: int | None, until: float | None,
                       seed: int, default_dim: int) -> Example:
    """The example or file with what the options change; without either, softmax with A = V = I."""
    from howsmooth.dynamics.declared import example_of, read_example

    if example is None:
        declared = example_of("flow", {"tokens": {"dim": dim or default_dim}, "flow": {"until": 1.0}})
    else:
        declared = read_example(example).but("tokens", dim=dim)
    d = declared.tokens.dim
    if declared.flow.sphere or declared.flow.noise:
        raise InputError(f"expected a flow off the sphere and without noise, got {example} with "
                         f"{'sphere' if declared.flow.sphere else 'noise'}; use howsmooth flow particles")
    if declared.attention.heads and (a is not None or v is not None):
        raise InputError(f"expected --A and --V for attention of one head, got them with the heads of {example}; "
                         "change the file")
    return (declared.but("attention", kind=kind, A=named_matrix(a, d, 2 * seed), V=named_matrix(v, d, 2 * seed + 1))
            .but("flow", until=until))


def named_matrix(given: Any, d: int, seed: int) -> Any:
    """The matrix of a name in dimension d; anything else as it is.

    >>> named_matrix("rotation", 2, 0)
    [[0.0, -1.0], [1.0, 0.0]]
    """
    import torch

    if not isinstance(given, str):
        return given
    if given == "random":  # entries of variance 1/d: eigenvalues of size one, whatever d
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(d, d, dtype=torch.float64, generator=generator) / math.sqrt(d)).tolist()
    if given == "rotation":
        if d % 2:
            raise InputError(f"expected an even dimension for a rotation by a quarter turn, got {d}; add --dim 2")
        quarter = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
        return torch.block_diag(*[quarter] * (d // 2)).tolist()
    return 1.0 if given == "identity" else -1.0
