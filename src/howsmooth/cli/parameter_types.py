"""Click parameter types of options that are not fields of the spec: numbers, lists, radii, sizes of memory."""

from __future__ import annotations

import math
import re
from typing import Any, ClassVar

import click

MAX_NUMBER = 1e100  # radii and distances up to this have a finite square
MAX_COUNT = 10**6  # steps, samples or particles: more would take too long
_MAX_SHOWN = 60  # characters of an invalid value that an error message repeats


class Count(click.IntRange):
    """An integer from `minimum` to `maximum`.

    Example:
        >>> Count().convert("12", None, None)
        12
    """

    name = "count"

    def __init__(self, minimum: int = 1, maximum: int = MAX_COUNT) -> None:
        """Take the smallest and the largest value that are allowed."""
        super().__init__(minimum, maximum)
        self.minimum, self.maximum = minimum, maximum

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse an integer; longer texts than Python parses are out of range."""
        text = str(value).strip()
        number = int(text) if re.fullmatch(r"[+-]?\d{1,40}", text) else None
        if number is None or not self.minimum <= number <= self.maximum:
            self.fail(
                f"expected a whole number from {self.minimum} to {self.maximum}, got {shorten(text)!r}", param, ctx
            )
        return number


class Number(click.FloatRange):
    """A finite number from `minimum` to `maximum`, or strictly between them with `exclusive`.

    Example:
        >>> Number(0, 1, exclusive=True).convert("0.5", None, None)
        0.5
    """

    name = "number"

    def __init__(self, minimum: float = -MAX_NUMBER, maximum: float = MAX_NUMBER, *, exclusive: bool = False) -> None:
        """Take the ends of the interval, and whether they are excluded."""
        super().__init__(minimum, maximum, min_open=exclusive, max_open=exclusive)
        self.minimum, self.maximum, self.exclusive = minimum, maximum, exclusive

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parse a number within the interval."""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if self.exclusive:
            is_valid, interval = self.minimum < number < self.maximum, f"between {self.minimum:g} and {self.maximum:g}"
        else:
            is_valid, interval = self.minimum <= number <= self.maximum, f"from {self.minimum:g} to {self.maximum:g}"
        if not is_valid:
            self.fail(f"expected a finite number {interval}, got {shorten(str(value))!r}", param, ctx)
        return number


class NumberList(click.ParamType):
    """Comma-separated numbers such as 0.01,0.1, or a keyword such as `all`.

    Args:
        example: A valid value, for the metavar and for error messages.
        integer: Whether the numbers are integers.
        minimum: Smallest value; by default, numbers have to be positive.
        maximum: Largest finite value.
        allow_infinity: Whether inf or ∞ is allowed.
        keyword: A word that is allowed in place of numbers; it is returned as it is.
        keep_duplicates: Whether repeated numbers are kept.

    Example:
        >>> NumberList(example="2,inf", minimum=1, allow_infinity=True).convert("2,∞", None, None)
        (2.0, inf)
        >>> NumberList(example="0,3", integer=True, minimum=0, keyword="all").convert("0,3,3", None, None)
        (0, 3)
    """

    name = "numbers"

    def __init__(
        self,
        *,
        example: str,
        integer: bool = False,
        minimum: float | None = None,
        maximum: float = MAX_NUMBER,
        allow_infinity: bool = False,
        keyword: str | None = None,
        keep_duplicates: bool = False,
    ) -> None:
        """Take the arguments of the class."""
        self.example, self.integer, self.minimum, self.maximum = example, integer, minimum, maximum
        self.allow_infinity, self.keyword, self.keep_duplicates = allow_infinity, keyword, keep_duplicates

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Return the example, and the keyword if there is one."""
        return f"{self.example}|{self.keyword}" if self.keyword else self.example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a tuple of numbers, or return the keyword."""
        if not isinstance(value, str):
            return value
        if self.keyword and value.strip() == self.keyword:
            return self.keyword
        numbers = [self._parse(piece.strip()) for piece in value.split(",")]
        if not all(self._is_valid(number) for number in numbers):
            self.fail(
                f"expected comma-separated {self._description()}, such as {self.example}, got {shorten(value)!r}",
                param,
                ctx,
            )
        return tuple(numbers) if self.keep_duplicates else tuple(dict.fromkeys(numbers))

    def _parse(self, piece: str) -> float:
        if self.integer:
            return int(piece) if re.fullmatch(r"[+-]?\d{1,18}", piece) else math.nan
        try:
            return float(piece.replace("∞", "inf"))
        except ValueError:
            return math.nan

    def _is_valid(self, number: float) -> bool:
        if number == math.inf:
            return self.allow_infinity
        return (number > 0 if self.minimum is None else self.minimum <= number) and number <= self.maximum

    def _description(self) -> str:
        """Return what is allowed, for the error message."""
        text = "integers" if self.integer else "numbers" if self.minimum is not None else "positive numbers"
        if self.minimum is not None:
            text += f" from {self.minimum:g}"
        if self.maximum < MAX_NUMBER or not self.integer:
            text += f" {'up ' if self.minimum is None else ''}to {self.maximum:g}"
        return text + (", or inf" if self.allow_infinity else "") + (f", or {self.keyword}" if self.keyword else "")


class Bytes(click.ParamType):
    """A size of memory: 4G, 512M, 64K (powers of 1024), or a number of bytes.

    Example:
        >>> Bytes().convert("1.5G", None, None)
        1610612736
    """

    name = "size"
    _FACTORS: ClassVar = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a number of bytes."""
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMGT]?)(?:i?B)?", value.strip(), flags=re.IGNORECASE)
        size = int(float(match[1]) * self._FACTORS[match[2].upper()]) if match else 0
        if not 1 <= size < 2**63:
            self.fail(f"expected a size such as 4G, 512M or a number of bytes, got {shorten(value)!r}", param, ctx)
        return size


def shorten(text: str) -> str:
    """Return a text, cut to a length that fits in an error message.

    Example:
        >>> shorten("9" * 5000)[-5:]
        '9999…'
    """
    return text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "…"
