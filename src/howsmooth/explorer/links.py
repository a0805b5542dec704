"""Links that restore a view: the values of a form as query parameters, and how they are read.

A link may come from anyone. Every parameter has a parser that accepts only what the form itself could contain; names of
models go through the catalog. The first error ends the reading, with a message of one line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import urlencode

from howsmooth.errors import InputError

NAME = "show"  # the parameter that names the view; gradio has its own `view`
MAX_LAYER = 9999  # the model itself has fewer
MAX_TEXT = 4000  # characters; browsers and servers limit the length of an address

Parser: TypeAlias = Callable[[str, str], Any]  # of the name of a parameter and its value


@dataclass(frozen=True)
class View:
    """A form whose values a link contains.

    Attributes:
        name: Name of the view, and of its run button.
        tab: The tab that contains it.
        parsers: Parser of each parameter.
    """

    name: str
    tab: str
    parsers: Mapping[str, Parser]


def link(view: str, values: Mapping[str, Any], default_text: str = "") -> str | None:
    """Return the query of a link to a view; None if its text is too long for a link.

    Args:
        view: Name of the view.
        values: Its values; None and the default text are left out.
        default_text: The text that the form contains at first.

    Example:
        >>> link("measure", {"model": "minilm", "text": "A quay & ships", "layer": None})
        '?show=measure&model=minilm&text=A+quay+%26+ships'
    """
    kept = {
        name: ",".join(map(str, value)) if isinstance(value, (list, tuple)) else value
        for name, value in values.items()
        if value is not None and (name, value) != ("text", default_text)
    }
    if len(str(kept.get("text", ""))) > MAX_TEXT:
        return None
    return "?" + urlencode({NAME: view, **kept})


def read_link(parameters: Iterable[tuple[str, str]], views: Sequence[View]) -> tuple[View, dict[str, Any]] | None:
    """Return the view of a link and its values; None if the parameters name no view.

    Args:
        parameters: Names and values of the query. Those that begin with two underscores belong to the server.
        views: The views of the page.

    Raises:
        InputError: The view or a parameter is unknown, given twice, or has a value that the form could not contain.

    Example:
        >>> views = [View("growth", "Growth", {"layer": whole_number(0, 99)})]
        >>> read_link([("show", "growth"), ("layer", "4")], views)[1]
        {'layer': 4}
    """
    given = [(name, value) for name, value in parameters if not name.startswith("__")]
    if not any(name == NAME for name, _ in given):
        return None
    twice = next((name for i, (name, _) in enumerate(given) if name in dict(given[:i])), None)
    if twice is not None:
        raise InputError(f"expected each parameter of a link once, got {twice[:40]!r} twice; correct the link")
    values = dict(given)
    name = values.pop(NAME)
    view = next((view for view in views if view.name == name), None)
    if view is None:
        raise InputError(
            f"expected a link to one of {', '.join(view.name for view in views)}, got {name[:40]!r}; correct the link"
        )
    unknown = next((name for name in values if name not in view.parsers), None)
    if unknown is not None:
        raise InputError(
            f"expected parameters among {', '.join(view.parsers)} in a link to {name}, got {unknown[:40]!r}; "
            "correct the link"
        )
    return view, {name: view.parsers[name](name, value) for name, value in values.items()}


def whole_number(low: int, high: int) -> Parser:
    """Return a parser of whole numbers from `low` to `high`."""

    def parse(name: str, value: str) -> int:
        if not re.fullmatch(r"-?[0-9]{1,9}", value) or not low <= int(value) <= high:
            raise InputError(f"expected {name} in the link as a whole number from {low} to {high}, got {value[:40]!r}")
        return int(value)

    return parse


def real_number(low: float, high: float) -> Parser:
    """Return a parser of numbers from `low` to `high`."""

    def parse(name: str, value: str) -> float:
        try:
            number = float(value[:40])
        except ValueError:
            number = math.nan
        if not low <= number <= high:  # also false for nan
            raise InputError(f"expected {name} in the link as a number from {low:g} to {high:g}, got {value[:40]!r}")
        return number

    return parse


def one_of(options: Sequence[str]) -> Parser:
    """Return a parser of one of the options."""

    def parse(name: str, value: str) -> str:
        if value not in options:
            raise InputError(f"expected {name} in the link as one of {', '.join(options)}, got {value[:40]!r}")
        return value

    return parse


def some_of(options: Sequence[str]) -> Parser:
    """Return a parser of several of the options, separated by commas."""

    def parse(name: str, value: str) -> list[str]:
        return [one_of(options)(name, part) for part in dict.fromkeys(value.split(","))]

    return parse


def checked(check: Callable[[str], object], limit: int = 200) -> Parser:
    """Return a parser of text of at most `limit` characters that `check` accepts."""

    def parse(name: str, value: str) -> str:
        if len(value) > limit:
            raise InputError(f"expected {name} in the link of at most {limit:,} characters, got {len(value):,}")
        check(value)
        return value

    return parse


def layer_list(value: str) -> None:
    """Raise InputError unless the value is "all" or numbers separated by commas."""
    if not re.fullmatch(r"all|[0-9]{1,4}( ?, ?[0-9]{1,4})*", value):
        raise InputError(f'expected layers in the link as "all" or numbers such as 0,6, got {value[:40]!r}')


TEXT = checked(lambda value: None, MAX_TEXT)
LAYERS = checked(layer_list)
