"""What an option's text means, where it is no field of the spec: numbers, lists of them, sizes of memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import click

LARGEST = 1e100  # of radii and distances: their squares are numbers still
MANY = 10**6  # of anything that is counted: more would not end
_SHOWN = 60  # characters of a value that a refusal repeats


class Count(click.IntRange):
    """A whole number from `least` to `most`.

    >>> Count().convert("12", None, None)
    12
    """

    name = "count"

    def __init__(self, least: int = 1, most: int = MANY):
        super().__init__(least, most)
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value).strip()
        number = int(text) if re.fullmatch(r"[+-]?\d{1,40}", text) else None  # Python reads no more than 4300 digits
        if number is None or not self.least <= number <= self.most:
            self.fail(f"expected a whole number from {self.least} to {self.most}, got {shorten(text)!r}", param, ctx)
        return number


class Number(click.FloatRange):
    """A finite number from `least` to `most`; the ends are taken unless they are open.

    >>> Number(0, 1, open=True).convert("0.5", None, None)
    0.5
    """

    name = "number"

    def __init__(self, least: float = -LARGEST, most: float = LARGEST, *, open: bool = False):
        super().__init__(least, most, min_open=open, max_open=open)
        self.least, self.most, self.open = least, most, open

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (self.least < number < self.most if self.open else self.least <= number <= self.most):
            ends = f"{'between' if self.open else 'from'} {self.least:g} {'and' if self.open else 'to'} {self.most:g}"
            self.fail(f"expected a finite number {ends}, got {shorten(str(value))!r}", param, ctx)
        return number


class NumberList(click.ParamType):
    """Comma-separated numbers such as 0.01,0.1 from `least` to `most`, or a word such as `all`.

    Duplicates are dropped unless they mean something; `integer` takes whole numbers alone, `infinite` also inf or ∞.

    >>> NumberList(example="2,inf", least=1, infinite=True).convert("2,∞", None, None)
    (2.0, inf)
    >>> NumberList(example="0,3", integer=True, least=0, word="all").convert("0,3,3", None, None)
    (0, 3)
    """

    name = "numbers"

    def __init__(
        self,
        *,
        example: str,
        integer: bool = False,
        least: float | None = None,
        most: float = LARGEST,
        infinite: bool = False,
        word: str | None = None,
        duplicates: bool = False,
    ):
        self.example, self.integer, self.least, self.most = example, integer, least, most
        self.infinite, self.word, self.duplicates = infinite, word, duplicates

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"{self.example}|{self.word}" if self.word else self.example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if self.word and value.strip() == self.word:
            return self.word
        numbers = [self._number(piece.strip()) for piece in value.split(",")]
        if not all(self._fits(number) for number in numbers):
            what = "integers" if self.integer else "numbers" if self.least is not None else "positive numbers"
            ends = "" if self.least is None else f" from {self.least:g}"
            if self.most < LARGEST or not self.integer:
                ends += f" {'up ' if self.least is None else ''}to {self.most:g}"
            ends += (", or inf" if self.infinite else "") + (f", or {self.word}" if self.word else "")
            self.fail(
                f"expected comma-separated {what}{ends}, such as {self.example}, got {shorten(value)!r}", param, ctx
            )
        return tuple(numbers) if self.duplicates else tuple(dict.fromkeys(numbers))

    def _number(self, piece: str) -> float:
        if self.integer:
            return int(piece) if re.fullmatch(r"[+-]?\d{1,18}", piece) else math.nan
        try:
            return float(piece.replace("∞", "inf"))
        except ValueError:
            return math.nan

    def _fits(self, number: float) -> bool:
        if number == math.inf:
            return self.infinite
        return (number > 0 if self.least is None else self.least <= number) and number <= self.most


class Words(click.ParamType):
    """Comma-separated words among those known, each once."""

    name = "words"

    def __init__(self, known: tuple[str, ...]):
        self.known = known

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "NAME,…"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        words = tuple(dict.fromkeys(piece.strip() for piece in value.split(",")))
        if unknown := [word for word in words if word not in self.known]:
            self.fail(f"expected names among {', '.join(self.known)}, got {shorten(unknown[0])!r}", param, ctx)
        return words


class Radius(click.ParamType):
    """The radius of a ball of tokens: `norm`, `data`, or a number.

    >>> Radius().convert("data", None, None), Radius().convert("15.5", None, None)
    ('data', 15.5)
    """

    name = "radius"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return "norm|data|NUMBER"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if value in ("norm", "data"):
            return value
        try:
            radius = float(value)
        except ValueError:
            radius = math.nan
        if not 0 < radius <= LARGEST:
            self.fail(
                f"expected norm, data or a positive number up to {LARGEST:g}, got {shorten(str(value))!r}", param, ctx
            )
        return radius


class Bytes(click.ParamType):
    """A size of memory: 4G, 512M, 64K or plain bytes; powers of 1024.

    >>> Bytes().convert("1.5G", None, None)
    1610612736
    """

    name = "size"
    _FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMGT]?)(?:i?B)?", value.strip(), flags=re.IGNORECASE)
        size = int(float(match[1]) * self._FACTORS[match[2].upper()]) if match else 0
        if not 1 <= size < 2**63:
            self.fail(f"expected a size such as 4G, 512M or a number of bytes, got {shorten(value)!r}", param, ctx)
        return size


def shorten(text: str) -> str:
    """The beginning of a text that may be of any length.

    >>> shorten("9" * 5000)[-5:]
    '9999…'
    """
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def ascent_options(*, restarts: int, steps: int) -> Callable:
    """Make the options of a gradient ascent from several starts."""

    def decorate(command: Callable) -> Callable:
        command = click.option(
            "--steps", type=Count(), metavar="COUNT", default=steps, show_default=True, help="Steps of ascent."
        )(command)
        return click.option(
            "--restarts",
            type=Count(),
            metavar="COUNT",
            default=restarts,
            show_default=True,
            help="Starting points, all moved at once; the best is kept.",
        )(command)

    return decorate


radius_option = click.option(
    "--radius",
    type=Radius(),
    default="norm",
    show_default=True,
    help="Radius of the ball or sphere: the most that the normalisation in front can give (norm), what the tokens have "
    "(data), or a number.",
)


def seed_option(default: int | None) -> Callable:
    """Make the option of a seed; None leaves it to a file."""
    shown = "the file's" if default is None else str(default)
    return click.option(
        "--seed",
        type=Count(0, 2**63 - 1),
        metavar="NUMBER",
        default=default,
        help=f"Seed of everything that is drawn.  [default: {shown}]",
    )


def exponents_option(default: str) -> Callable:
    """Make the option of the exponents of a distance."""
    kind = NumberList(least=1, most=1e6, infinite=True, example=default)
    return click.option(
        "--p", "exponents", type=kind, default=default, show_default=True, help="Exponents p ≥ 1 of the distance."
    )
