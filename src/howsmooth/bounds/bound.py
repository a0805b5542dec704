"""The result of a bound, and the error that it raises where its conditions fail."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from howsmooth.bounds.titles import title_of
from howsmooth.display import Displayed
from howsmooth.errors import InputError

SIDES = ("lower", "upper")
LARGEST_LOG = math.log(1.7976931348623157e308)  # of a float64


@dataclass(frozen=True)
class Bound(Displayed):
    """A bound on a Lipschitz constant of attention, with the set it is valid on and its source.

    Attributes:
        name: module and function, such as `this_project.upper`.
        log_value: natural logarithm of the bound; −∞ for a bound of zero.
        side: "lower" or "upper".
        holds: the set over which the constant is bounded: "on B_R^n", "for all n", "sup over n", "at X", …
        conditions: the conditions on the layer that were checked.
        reference: bib key and statement, or the proof of this project.
        norm: the norm or distance in which the constant is measured.

    Example:
        >>> Bound("two", math.log(2), "upper", "at X", (), "an example").value
        2.0
    """

    name: str
    log_value: float
    side: str
    holds: str
    conditions: tuple[str, ...]
    reference: str
    norm: str = "2"

    def __post_init__(self) -> None:
        """Raise an InputError unless the side is valid and `log_value` is below ∞."""
        if self.side not in SIDES or math.isnan(self.log_value) or self.log_value == math.inf:
            raise InputError(
                f"expected a side of {' or '.join(SIDES)} and a log_value below ∞, got {self.side!r} and "
                f"{self.log_value} for {self.name}; look for NaN or ∞ in weights, radius and tokens, or "
                "for sizes whose products leave float64"
            )

    @property
    def title(self) -> str:
        """The name that tables and figures show."""
        return title_of(self.name)

    @property
    def value(self) -> float | None:
        """The bound itself; None where only its logarithm fits into a float."""
        return None if (value := exp(self.log_value)) == math.inf else value

    def as_record(self) -> dict[str, Any]:
        """Return the fields as plain Python values, under the names of the record schema."""
        names = ("name", "title", "value", "log_value", "side", "holds", "norm", "reference")
        return {name: getattr(self, name) for name in names} | {"conditions": list(self.conditions)}


class Refused(InputError):
    """A condition of a bound does not hold for this layer.

    Attributes:
        bound: name of the bound.
        condition: what the bound requires.
        got: what the layer has instead.
        remedy: what to use instead.
    """

    def __init__(self, bound: str, condition: str, got: str, remedy: str):
        """Compose the message from the four attributes."""
        super().__init__(f"{bound}: expected {condition}, got {got}; {remedy}")
        self.bound, self.condition, self.got, self.remedy = bound, condition, got, remedy

    @property
    def title(self) -> str:
        """The name of the bound that tables show."""
        return title_of(self.bound)


class Bounds(list["Bound | Refused"], Displayed):
    """The bounds of a layer in the order of docs/bounds.md; one that does not apply is its refusal.

    Example:
        >>> two = Bound("two", math.log(2), "upper", "at X", (), "an example")
        >>> found = Bounds([two, Refused("three", "a mask", "none", "give one")])
        >>> found.applicable == [two], [refusal.bound for refusal in found.refused]
        (True, ['three'])
    """

    @property
    def applicable(self) -> list[Bound]:
        """The bounds that apply."""
        return [bound for bound in self if isinstance(bound, Bound)]

    @property
    def refused(self) -> list[Refused]:
        """The refusals of the bounds that do not apply."""
        return [bound for bound in self if isinstance(bound, Refused)]


def log(x: float) -> float:
    """Return the natural logarithm of x ≥ 0, −∞ at zero."""
    return -math.inf if x == 0 else math.log(x)


def exp(x: float) -> float:
    """Return eˣ, ∞ where it does not fit into a float."""
    return math.exp(x) if x <= LARGEST_LOG else math.inf


def log_sum(*logs: float) -> float:
    """Return log Σ exp(l) for terms that may each be too large for a float.

    Example:
        >>> round(log_sum(1000.0, 1000.0) - 1000.0, 6)
        0.693147
    """
    top = max(logs)
    return top if math.isinf(top) else top + math.log(sum(math.exp(term - top) for term in logs))
