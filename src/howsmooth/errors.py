"""The two exceptions of the package, and validation errors of declared values as one readable line."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, get_args, get_origin

_MAX_SHOWN = 80  # characters of an invalid value


class InputError(ValueError):
    """Invalid input. The message has the form "expected …, got …; what to do".

    Example:
        >>> import howsmooth
        >>> try:
        ...     howsmooth.read("absent.jsonl")
        ... except howsmooth.InputError as error:
        ...     "absent.jsonl" in str(error)
        True
    """


class NotConverged(RuntimeError):
    """A solver stopped before it reached its tolerance.

    Attributes:
        partial: The result so far, of the type that the solver returns; its interval is valid but wide.

    Example:
        >>> import howsmooth, torch
        >>> x = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
        >>> try:
        ...     howsmooth.local_lipschitz(lambda x: torch.softmax(x @ x.T, -1) @ x, x, max_steps=2)
        ... except howsmooth.NotConverged as error:
        ...     error.partial.status
        'step limit'
    """

    def __init__(self, message: str, partial: Any) -> None:
        """Take the message and the result so far."""
        super().__init__(message)
        self.partial = partial


def first_line(error: BaseException) -> str:
    """Return the first line of an exception, or its type where it has no message.

    Example:
        >>> first_line(OSError("No space left.")), first_line(KeyboardInterrupt())
        ('No space left', 'KeyboardInterrupt')
    """
    return (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is a failed allocation; torch raises a plain RuntimeError for it on a CPU."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in ("allocate", "out of memory"))


def describe_validation_errors(
    found: Iterable[Mapping[str, Any]], model: type, hidden: Iterable[str] = (), name: Callable[[str], str] = str
) -> str:
    """Return pydantic's validation errors in one line: for each key what was expected and what was given.

    Args:
        found: `ValidationError.errors()`.
        model: The pydantic model of the whole file.
        hidden: Fields of the file itself that it may not set; no suggestion names them.
        name: Maps a key to the name shown for it, for example to the command-line option that sets it.

    Returns:
        The messages, unknown keys first, joined by semicolons.

    Example:
        >>> from pydantic import BaseModel, ConfigDict, ValidationError
        >>> class Flow(BaseModel):
        ...     model_config = ConfigDict(extra="forbid")
        ...     until: float
        >>> try:
        ...     Flow.model_validate({"untill": 1.0})
        ... except ValidationError as error:
        ...     describe_validation_errors(error.errors(), Flow)
        "unknown key 'untill'; did you mean 'until'?; until: missing"
    """
    lines = {_describe(item, model, set(hidden), name) for item in found}
    return "; ".join(sorted(lines, key=lambda line: (not line.startswith("unknown"), line)))


def _describe(item: Mapping[str, Any], model: type, hidden: set[str], name: Callable[[str], str]) -> str:
    unknown = item["type"] == "extra_forbidden"
    keys, table = _keys(item["loc"][:-1] if unknown else item["loc"], model)
    path = ".".join(keys)
    if unknown:
        key, known = str(item["loc"][-1]), [field for field in table if keys or field not in hidden]
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        inside = f" in {keys[0]}" if keys else ""
        return f"unknown key {key!r}{inside}; " + (
            f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        )
    path = name(path) if path else path
    if item["type"] == "missing":
        return f"{path}: missing"
    if item["type"] in ("model_type", "dict_type"):
        return f"{path}: expected a table, got {repr(item['input'])[:_MAX_SHOWN]}"
    if item["type"] == "string_unicode":  # records are UTF-8, so that they cannot have such a name
        return f"{path}: expected a name in UTF-8, got {repr(item['input'])[:_MAX_SHOWN]}; rename the file or folder"
    message = item["msg"].removeprefix("Value error, ")
    message = re.sub(r"^Input should be (?=greater|less)", "expected a number ", message)
    message = re.sub(r"^Input should be ", "expected ", message)
    message = re.sub(r"^expected a valid (?=[aeiou])", "expected an ", message)
    message = message.replace("expected a valid ", "expected a ")
    message = re.sub(r"^\w+ should have ", "expected a value with ", message)
    got = "" if "got" in message or not path else f", got {repr(item['input'])[:_MAX_SHOWN]}"
    return f"{path}: {message[0].lower()}{message[1:]}{got}" if path else message


def _keys(loc: Iterable[str | int], model: type) -> tuple[list[str], Mapping[str, Any]]:
    """Return the keys of a pydantic location as the author of a file wrote them, and the fields of the innermost table.

    A location also contains the types of a union: parts that are neither an index nor a field are left out.
    """
    keys: list[str] = []
    table: Mapping[str, Any] = getattr(model, "model_fields", {})
    free = False  # inside a table with arbitrary keys
    for part in loc:
        if isinstance(part, int) or free:
            keys.append(str(part))
        elif part in table:
            keys.append(part)
            annotation = table[part].annotation
            table, free = _fields(annotation), get_origin(annotation) is dict
    return keys, table


def _fields(annotation: Any) -> Mapping[str, Any]:
    """Return the fields of the model in an annotation such as tuple[Model, ...] or Model | None; none without one."""
    own = getattr(annotation, "model_fields", None)
    return own or next((found for part in get_args(annotation) if (found := _fields(part))), {})
