"""Errors that are part of the product: what was expected, what came, what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_origin

_MOST_SHOWN = 80  # characters of a wrong value


class InputError(ValueError):
    """The caller gave something that cannot work; the message says what would."""


class NotConverged(RuntimeError):
    """A solver stopped before its tolerance. `partial` holds all that it had computed."""

    def __init__(self, message: str, partial):
        super().__init__(message)
        self.partial = partial


def complaints(
    found: Iterable[Mapping[str, Any]], model: type, hidden: Iterable[str] = (), name: Callable[[str], str] = str
) -> str:
    """What pydantic found wrong with declared values, in one line that names each key, what it expects and what it got.

    Args:
        found: `ValidationError.errors()`.
        model: the pydantic model of the whole file.
        hidden: fields that a file may not set, and that no suggestion names.
        name: what to call a key, for example by the option of the command line that sets it.

    >>> from pydantic import BaseModel, ConfigDict, ValidationError
    >>> class Flow(BaseModel):
    ...     model_config = ConfigDict(extra="forbid")
    ...     until: float
    >>> try:
    ...     Flow.model_validate({"untill": 1.0})
    ... except ValidationError as error:
    ...     complaints(error.errors(), Flow)
    "unknown key 'untill'; did you mean 'until'?; until: missing"
    """
    lines = {_complaint(item, model, set(hidden), name) for item in found}
    return "; ".join(sorted(lines, key=lambda line: (not line.startswith("unknown"), line)))


def _complaint(item: Mapping[str, Any], model: type, hidden: set[str], name: Callable[[str], str]) -> str:
    unknown = item["type"] == "extra_forbidden"
    keys, table = _keys(item["loc"][:-1] if unknown else item["loc"], model)
    path = ".".join(keys)
    if unknown:
        key, known = str(item["loc"][-1]), [name for name in table if name not in hidden]
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        inside = f" in {keys[0]}" if keys else ""
        return f"unknown key {key!r}{inside}; " + (
            f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        )
    path = name(path) if path else path
    if item["type"] == "missing":
        return f"{path}: missing"
    if item["type"] in ("model_type", "dict_type"):
        return f"{path}: expected a table, got {repr(item['input'])[:_MOST_SHOWN]}"
    said = item["msg"].removeprefix("Value error, ")
    said = re.sub(r"^Input should be (?=greater|less)", "expected a number ", said)
    said = re.sub(r"^Input should be ", "expected ", said)
    said = re.sub(r"^expected a valid (?=[aeiou])", "expected an ", said).replace("expected a valid ", "expected a ")
    said = re.sub(r"^\w+ should have ", "expected a value with ", said)
    got = "" if "got" in said or not path else f", got {repr(item['input'])[:_MOST_SHOWN]}"
    return f"{path}: {said[0].lower()}{said[1:]}{got}" if path else said


def _keys(loc: Iterable[str | int], model: type) -> tuple[list[str], Mapping[str, Any]]:
    """The part of a location that means something to the author of a file, and the fields of the table where it ends.

    Types in a union show up in a location, too: what is neither a number nor a field of its table is left out.
    """
    keys: list[str] = []
    table: Mapping[str, Any] = getattr(model, "model_fields", {})
    free = False  # inside a table whose keys are the author's own
    for part in loc:
        if isinstance(part, int) or free:
            keys.append(str(part))
        elif part in table:
            keys.append(part)
            annotation = table[part].annotation
            table, free = _fields(annotation), get_origin(annotation) is dict
    return keys, table


def _fields(annotation: Any) -> Mapping[str, Any]:
    """The fields of the model in an annotation such as tuple[Model, ...] or Model | None; none where there is no model."""
    own = getattr(annotation, "model_fields", None)
    return own or next((found for part in get_args(annotation) if (found := _fields(part))), {})
