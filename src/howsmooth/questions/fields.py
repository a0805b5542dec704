"""Types of the fields of a spec: what users write, on a command line or in a file, as the values that it denotes.

A field is `name: Annotated[type, parser, option("help", metavar="…")] = default`. Its parser takes the text of an
option as well as the plain value of a study file, and raises ValueError "expected …, got …". Nothing here imports
torch.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from howsmooth.choices import MATRIX_NAMES
from howsmooth.errors import InputError
from howsmooth.norms import NORMS

MAX_NUMBER = 1e100  # radii and distances up to this have a finite square
MAX_COUNT = 10**6  # steps, samples or particles: more would take too long
MAX_DIGITS = 18  # of a number of tokens, samples or bytes
_MAX_LENGTHS = 10_000
_MAX_SHOWN = 60  # characters of an invalid value that an error message repeats
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class StrictModel(BaseModel):
    """A frozen pydantic model that rejects unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, protected_namespaces=())


def option(help: str, *, metavar: str | None = None, flag: str | None = None, **limits: Any) -> Any:
    """Return the declaration of a field that is an option of its command.

    Args:
        help: The help text; for the default of a field that has none, end it with "  [default: …]".
        metavar: What the help shows for the value; by default the choices, or the name.
        flag: Name of the option, if it is not that of the field.
        limits: Limits of pydantic, such as `ge=1`.
    """
    extra: Any = {name: value for name, value in (("metavar", metavar), ("flag", flag)) if value is not None}
    return Field(description=help, json_schema_extra=extra or None, **limits)


def shorten(value: Any) -> str:
    """Return a value as it is shown in an error message.

    Example:
        >>> shorten("9" * 5000)[-6:]
        "9999…'"
    """
    if isinstance(value, str):
        return repr(value if len(value) <= _MAX_SHOWN else value[:_MAX_SHOWN] + "…")
    return repr(value)[:_MAX_SHOWN]


def whole(minimum: int = 1, maximum: int = MAX_COUNT) -> Any:
    """Return the parser of a whole number.

    Example:
        >>> whole().func("12")
        12
    """

    def parse(value: Any) -> Any:
        if value is None:
            return None
        text = str(value).strip() if not isinstance(value, bool) else ""
        number = int(text) if re.fullmatch(r"[+-]?\d{1,40}", text) else None
        if number is None or not minimum <= number <= maximum:
            raise ValueError(f"expected a whole number from {minimum} to {maximum}, got {shorten(value)}")
        return number

    return BeforeValidator(parse)


def number(minimum: float = -MAX_NUMBER, maximum: float = MAX_NUMBER, *, exclusive: bool = False) -> Any:
    """Return the parser of a finite number in an interval, or strictly inside of it with `exclusive`.

    Example:
        >>> number(0, 1, exclusive=True).func("0.5")
        0.5
    """

    def parse(value: Any) -> Any:
        if value is None:
            return None
        found = _as_float(value)
        if exclusive:
            is_valid, interval = minimum < found < maximum, f"between {minimum:g} and {maximum:g}"
        else:
            is_valid, interval = minimum <= found <= maximum, f"from {minimum:g} to {maximum:g}"
        if not is_valid:
            raise ValueError(f"expected a finite number {interval}, got {shorten(value)}")
        return found

    return BeforeValidator(parse)


def numbers(
    example: str,
    *,
    integer: bool = False,
    minimum: float | None = None,
    maximum: float = MAX_NUMBER,
    allow_infinity: bool = False,
    keyword: str | None = None,
    keep_duplicates: bool = False,
) -> Any:
    """Return the parser of a list of numbers: 0.01,0.1 on the command line, [0.01, 0.1] in a file.

    Args:
        example: A valid value, for error messages.
        integer: Whether the numbers are integers.
        minimum: Smallest value; by default, numbers have to be positive.
        maximum: Largest finite value.
        allow_infinity: Whether inf or ∞ is allowed.
        keyword: A word that is allowed in place of numbers; it is returned as it is.
        keep_duplicates: Whether repeated numbers are kept.

    Example:
        >>> numbers("2,inf", minimum=1, allow_infinity=True).func("2,∞")
        (2.0, inf)
        >>> numbers("0,3", integer=True, minimum=0, keyword="all").func([0, 3, 3])
        (0, 3)
    """

    def described() -> str:
        text = "integers" if integer else "numbers" if minimum is not None else "positive numbers"
        if minimum is not None:
            text += f" from {minimum:g}"
        if maximum < MAX_NUMBER or not integer:
            text += f" {'up ' if minimum is None else ''}to {maximum:g}"
        return text + (", or inf" if allow_infinity else "") + (f", or {keyword}" if keyword else "")

    def is_valid(found: float) -> bool:
        if found == math.inf:
            return allow_infinity
        return (found > 0 if minimum is None else minimum <= found) and found <= maximum

    def parse_one(piece: Any) -> float:
        if not integer:
            return _as_float(piece)
        return int(str(piece)) if re.fullmatch(r"[+-]?\d{1,18}", str(piece)) else math.nan

    def parse(value: Any) -> Any:
        if value is None or (keyword and isinstance(value, str) and value.strip() == keyword):
            return value if value is None else keyword
        pieces = [piece.strip() for piece in value.split(",")] if isinstance(value, str) else value
        found = [parse_one(piece) for piece in (pieces if isinstance(pieces, (list, tuple)) else [pieces])]
        if not found or not all(map(is_valid, found)):
            raise ValueError(f"expected comma-separated {described()}, such as {example}, got {shorten(value)}")
        return tuple(found) if keep_duplicates else tuple(dict.fromkeys(found))

    return BeforeValidator(parse)


def names(allowed: tuple[str, ...], everything: str | None = None) -> Any:
    """Return the parser of a list of names, each of them once; `everything` is a word for all of them.

    Example:
        >>> names(("sign", "noise")).func("noise,sign,noise")
        ('noise', 'sign')
        >>> names(("sign", "noise"), everything="all").func("all")
        ('sign', 'noise')
    """

    def parse(value: Any) -> Any:
        given = [piece.strip() for piece in value.split(",")] if isinstance(value, str) else value
        if not isinstance(given, (list, tuple)) or not given:
            raise ValueError(f"expected names among {', '.join(allowed)}, got {shorten(value)}")
        if everything and list(given) == [everything]:
            return allowed
        if everything in given:
            raise ValueError(f"expected {everything} by itself or names, got {shorten(value)}")
        if unknown := [name for name in given if name not in allowed]:
            raise ValueError(f"expected names among {', '.join(allowed)}, got {shorten(unknown[0])}")
        return tuple(dict.fromkeys(given))

    return BeforeValidator(parse)


def _parse_radius(value: Any) -> Any:
    if value in ("norm", "data"):
        return value
    radius = _as_float(value)
    if not 0 < radius <= MAX_NUMBER:
        raise ValueError(f"expected norm, data or a positive number up to {MAX_NUMBER:g}, got {shorten(value)}")
    return radius


Radius = Annotated[
    float | Literal["norm", "data"],
    BeforeValidator(_parse_radius),
    option(
        "Radius of the ball or sphere: the largest norm of an output of the normalisation in front (norm), the "
        "largest norm of the tokens (data), or a number.",
        metavar="norm|data|NUMBER",
    ),
]


BudgetNorm = Annotated[
    Literal[*NORMS],  # type: ignore[valid-type]  # the names of the registry
    option(f"Whether the budget is for {' or for '.join(norm.about for norm in NORMS.values())}."),
]

# Options of gradient ascent from many starts.
Restarts = Annotated[
    int, whole(), option("Number of starting points, optimised together; the best result is kept.", metavar="COUNT")
]
Steps = Annotated[int, whole(), option("Steps of gradient ascent.", metavar="COUNT")]


def matrix(named: tuple[str, ...] = MATRIX_NAMES) -> Any:
    """Return the parser of a matrix: a number (times the identity), a diagonal 1,-2, rows 1,0;0,2, or a name.

    Example:
        >>> matrix().func("1,0;0,2"), matrix().func("-0.5")
        ([[1.0, 0.0], [0.0, 2.0]], -0.5)
    """

    def parse(value: Any) -> Any:
        if not isinstance(value, str) or value in named:
            return value
        rows = [[_as_float(entry) for entry in row.split(",")] for row in value.split(";")]
        if not all(math.isfinite(entry) for row in rows for entry in row):
            also = f", or {', '.join(named)}" if named else ""
            raise ValueError(
                f"expected a number, a diagonal such as 1,-2 or rows such as 1,0;0,2{also}, got {shorten(value)}"
            )
        return rows if len(rows) > 1 else rows[0] if len(rows[0]) > 1 else rows[0][0]

    return BeforeValidator(parse)


def _as_float(value: Any) -> float:
    try:
        return math.nan if isinstance(value, bool) else float(str(value).replace("∞", "inf"))
    except ValueError:
        return math.nan


def expand_ranges(text: str) -> list[int]:
    """Return the lengths that a string of ranges denotes.

    >>> expand_ranges("2..8+2"), expand_ranges("16..128*2"), expand_ranges("4,32..64*2")
    ([2, 4, 6, 8], [16, 32, 64, 128], [4, 32, 64])
    """
    lengths: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18})(?:([+*])(\d{1,18}))?)?", part.strip())
        if not match:
            raise ValueError(f"expected lengths such as 16, 2..98+2 or 16..512*2, got {(part.strip() or text)[:60]!r}")
        n, last, operation, step = int(match[1]), int(match[2] or match[1]), match[3] or "+", int(match[4] or 1)
        if last < n or step < (2 if operation == "*" else 1) or (operation == "*" and n < 1):
            raise ValueError(f"expected a range that grows and ends, got {part.strip()!r}")
        while n <= last:
            if len(lengths) >= _MAX_LENGTHS:
                raise ValueError(
                    f"expected at most {_MAX_LENGTHS} lengths, got more in {part.strip()!r}; take larger steps"
                )
            lengths.append(n)
            n = n * step if operation == "*" else n + step
    return lengths


def parse_lengths(value: Any) -> Any:
    """Return lengths as a sorted list: from a string such as "16..512*2", a number or a list."""
    value = expand_ranges(value) if isinstance(value, str) else [value] if isinstance(value, int) else value
    return sorted(set(value)) if isinstance(value, list) and all(isinstance(n, int) for n in value) else value


def parse_bytes(value: Any) -> Any:
    """Return a size such as "4G" in bytes.

    Example:
        >>> parse_bytes("1.5G")
        1610612736
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,20})?)\s*([KMGT]?)(?:i?B)?", value.strip(), flags=re.IGNORECASE)
    size = int(float(match[1]) * _UNITS[match[2].upper()]) if match else 0
    if not 1 <= size < 2**63:
        raise ValueError(f"expected a size such as 4G or 512M, got {shorten(value)}")
    return size


def as_tables(key: str) -> Callable[[Any], Any]:
    """Return a validator that turns a string s, alone or in a list, into the table {key: s}."""

    def tables(value: Any) -> Any:
        value = [value] if isinstance(value, (str, dict)) else value
        return [{key: item} if isinstance(item, str) else item for item in value] if isinstance(value, list) else value

    return tables


Index = Annotated[int, Field(ge=0)]


def _parse_indices(value: Any) -> Any:
    """Return "all" or a list of indices, from numbers or a string such as "0,6"; those below 0 count from the end.

    One error message replaces the three that pydantic's union would report.
    """
    if isinstance(value, str) and value != "all":
        parts = [part.strip() for part in value.split(",")]
        if not all(re.fullmatch(rf"-?\d{{1,{MAX_DIGITS}}}", part) for part in parts):
            raise ValueError(f'expected "all" or numbers such as 0,6 or -1, the last one, got {value[:60]!r}')
        value = [int(part) for part in parts]
    value = [value] if type(value) is int else value
    are_numbers = isinstance(value, (list, tuple)) and value and all(type(i) is int for i in value)
    if value is not None and value != "all" and not are_numbers:
        raise ValueError(f'expected "all" or numbers such as [0, 6] or -1, the last one, got {value!r:.60}')
    return list(dict.fromkeys(value)) if isinstance(value, (list, tuple)) else value


Indices = Annotated[Literal["all"] | tuple[int, ...], BeforeValidator(_parse_indices)]


def split_at_commas(value: Any) -> Any:
    """Return a string of words that are separated by commas as a list."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


FolderName = Annotated[str, BeforeValidator(lambda name: os.fspath(name) if isinstance(name, os.PathLike) else name)]


def make_folder(name: str, option: str = "--artefacts") -> Path:
    """Create a folder if it does not exist, and return its path.

    Args:
        name: The folder.
        option: The option that names it, for error messages.
    """
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"expected a folder that can be created for {option}, got {name} "
            f"({(error.strerror or str(error)).lower()}); name another one"
        ) from None
    return folder


def make_artefact_folder(spec: Any) -> Path | None:
    """Create the folder of a spec with `artefacts`, and return its path; None if nothing is to be saved."""
    return None if spec.artefacts is None else make_folder(spec.artefacts)


def file_name(at: dict[str, Any], n: int, key: str, prefix: str = "") -> str:
    """Return the name of the file for a place, which no other place has.

    Example:
        >>> file_name({"layer": 3, "head": None, "sample": 0}, 16, "0123456789abcdef0123")
        'layer3-n16-sample0-0123456789abcdef.safetensors'
    """
    numbers = {"layer": at.get("layer"), "head": at.get("head"), "n": n, "sample": at.get("sample")}
    parts = [prefix, *(f"{name}{number}" for name, number in numbers.items() if number is not None), key[:16]]
    return "-".join(part for part in parts if part) + ".safetensors"
