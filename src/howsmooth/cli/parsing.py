"""What an option's text means: lists of numbers, sizes of memory."""

from __future__ import annotations

import math
import re
from typing import Any

import click

LARGEST = 1e100  # of radii and distances: their squares are numbers still


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
            self.fail(f"expected {wanted}, got {value[:60]!r}", param, ctx)
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
            self.fail(f"expected norm, data or a positive number up to {LARGEST:g}, got {value!r}", param, ctx)
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
                      f"{value!r}", param, ctx)
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
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", value.strip(), flags=re.IGNORECASE)
        size = int(float(match[1]) * self._FACTORS[match[2].upper()]) if match else 0
        if size < 1:
            self.fail(f"expected a size such as 4G, 512M or a number of bytes, got {value!r}", param, ctx)
        return size


def show_bytes(size: float) -> str:
    """A size for people.

    >>> show_bytes(1610612736)
    '1.5 GiB'
    """
    power = max(p for p in range(4) if size >= 1024**p or p == 0)
    return f"{size / 1024**power:.{1 if power else 0}f} {('B', 'KiB', 'MiB', 'GiB')[power]}"
