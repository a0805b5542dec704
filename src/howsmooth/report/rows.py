"""What a table shows of the records: one row per map and length, and numbers as people read them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from howsmooth.lipschitz import Growth

FINE = ("converged", "residual", "fine")  # statuses that are what was asked for


@dataclass(frozen=True)
class Row:
    """The samples of one map at one length; `worst` is the record with the largest value."""

    model: str
    layer: int
    head: int | None
    n: int
    values: tuple[float, ...]
    worst: dict[str, Any]
    unfinished: tuple[str, ...]  # statuses of the samples that did not reach the tolerance

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def doubt(self) -> str:
        """How many samples did not reach the tolerance, and why; empty when all did."""
        if not self.unfinished:
            return ""
        return f"{len(self.unfinished)} of {len(self.values)}: {', '.join(sorted(set(self.unfinished)))}"


def rows_of(records: Iterable[dict[str, Any]]) -> list[Row]:
    """Group records by map and length, ordered by model as met, then layer, head and length."""
    groups: dict[tuple, list[dict[str, Any]]] = {}
    models: dict[str, int] = {}
    for record in records:
        models.setdefault(record["model"], len(models))
        groups.setdefault((record["model"], record["layer"], record["head"], record["n"]), []).append(record)
    order = sorted(groups, key=lambda key: (models[key[0]], key[1], -1 if key[2] is None else key[2], key[3]))
    return [
        Row(
            *key,
            values=tuple(record["value"] for record in groups[key]),
            worst=max(groups[key], key=lambda record: record["value"]),
            unfinished=tuple(record["status"] for record in groups[key] if record["status"] not in FINE),
        )
        for key in order
    ]


def number(value: float | None, digits: int = 4) -> str:
    """A number with so many significant digits, trailing zeros kept so that columns line up.

    >>> number(12.5), number(0.0031416), number(123456.0)
    ('12.50', '0.003142', '1.235e+05')
    """
    if value is None or not math.isfinite(value):
        return "none" if value is None else str(value).replace("inf", "∞")
    text = f"{value:#.{digits}g}"
    return text.rstrip(".")


def interval(lower: float, upper: float | None, digits: int = 5) -> str:
    """Both ends rounded outwards, so that what is printed contains what was computed.

    >>> interval(10.931279, 10.938021)
    '10.931 – 10.939'
    """
    return f"{_outward(lower, digits, math.floor)} – {_outward(upper, digits, math.ceil)}"


def _outward(value: float | None, digits: int, rounding: Any) -> str:
    if value is None or not math.isfinite(value) or value <= 0:
        return "∞" if value is None or value == math.inf else number(value, digits)
    unit = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    # A decimal that is exact already must not be pushed one unit further by the division's rounding.
    nearest = round(value / unit)
    count = nearest if math.isclose(nearest * unit, value, rel_tol=1e-14) else rounding(value / unit)
    return number(count * unit, digits)


def exponent(growth: Growth) -> str:
    """The fitted exponent with its standard error, where there is one.

    >>> from types import SimpleNamespace
    >>> exponent(SimpleNamespace(exponent=0.2512, exponent_error=0.013))
    '0.25 ± 0.01'
    """
    error = growth.exponent_error
    known = error is not None and math.isfinite(error)
    return f"{growth.exponent:.2f} ± {error:.2f}" if known else f"{growth.exponent:.2f}"


def law(growth: Growth) -> str:
    """The fitted law in words of mathematics."""
    return f"{number(growth.constant, 3)} n^{growth.exponent:.2f}"


def token(word: str, limit: int = 14) -> str:
    """A token as it may be printed: white space and control characters made visible, long ones cut.

    >>> token(" the"), token("\\n"), token(" ")
    ('the', '⏎', '␣')
    """
    text = word.strip(" ") or "␣"
    text = "".join(char if char.isprintable() else {"\n": "⏎", "\t": "⇥"}.get(char, "�") for char in text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def places(record: dict[str, Any], count: int = 2, least: float = 0.05) -> list[tuple[str, int, float]]:
    """Where the worst direction sits: (token, position, share), the largest first, small shares left out."""
    top = record["top_tokens"][:count]
    return [
        (token(entry["token"]), entry["position"], entry["share"])
        for index, entry in enumerate(top)
        if index == 0 or entry["share"] >= least
    ]


def model_name(name: str) -> str:
    """A model as headings name it: a path on this machine is cut to its last part.

    >>> model_name("/models/tiny-gpt2/"), model_name("openai-community/gpt2")
    ('tiny-gpt2', 'openai-community/gpt2')
    """
    path = Path(name).expanduser()
    return path.name if path.is_absolute() or name.startswith(".") else name


def map_name(layer: int, head: int | None) -> str:
    return f"layer {layer}" if head is None else f"layer {layer} head {head}"
