"""What an option's text means: lists of numbers, sizes of memory."""

from __future__ import annotations

import math
import re
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


class IntegerList(click.ParamType):
    """Comma-separated integers such as 64,128 (duplicates dropped, order kept), or a word such as `all`."""

    def __init__(self, *, word: str | None = None, least: int = 0, example: str):
        self.word, self.least, self.example = word, least, example
        self.name = "integers"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return f"{self.example}|{self.word}" if self.word else self.example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        text = value.strip()
        if self.word and text == self.word:
            return self.word
        pieces = [piece.strip() for piece in text.split(",")]
        if not all(re.fullmatch(r"[+-]?\d{1,18}", piece) for piece in pieces):  # more are no number of anything here
            wanted = f"comma-separated integers such as {self.example}" + (
                f", or {self.word}" if self.word else ""
            )
            self.fail(f"expected {wanted}, got {shorten(value)!r}", param, ctx)
        numbers = tuple(dict.fromkeys(int(piece) for piece in pieces))
        if min(numbers) < self.least:
            self.fail(f"expected integers of at least {self.least}, got {min(numbers)}", param, ctx)
        return numbers


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
            self.fail(f"expected norm, data or a positive number up to {LARGEST:g}, got "
                      f"{shorten(str(value))!r}", param, ctx)
        return radius


class NumberList(click.ParamType):
    """Comma-separated positive numbers such as 0.01,0.1 (order kept, duplicates dropped unless they mean something)."""

    name = "numbers"

    def __init__(self, *, example: str, duplicates: bool = False):
        self.example, self.duplicates = example, duplicates

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        return self.example

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None):
        if not isinstance(value, str):
            return value
        try:
            numbers = tuple(float(piece) for piece in value.split(","))
            numbers = numbers if self.duplicates else tuple(dict.fromkeys(numbers))
        except ValueError:
            numbers = (math.nan,)
        if not all(0 < number <= LARGEST for number in numbers):
            self.fail(f"expected comma-separated positive numbers such as {self.example}, at most {LARGEST:g}, got "
                      f"{shorten(value)!r}", param, ctx)
        return numbers


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


def show_bytes(size: float) -> str:
    """A size for people.

    >>> show_bytes(1610612736)
    '1.5 GiB'
    """
    power = max(p for p in range(4) if size >= 1024**p or p == 0)
    return f"{size / 1024**power:.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"
