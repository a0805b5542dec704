"""What a bound hands back, and how it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from howsmooth.errors import InputError

SIDES = ("lower", "upper")
LARGEST_LOG = math.log(1.7976931348623157e308)


@dataclass(frozen=True)
class Bound:
    """A bound on a Lipschitz constant of attention, with what it holds for and where it comes from.

    `log_value` is always there; `value` is None where the number itself would overflow.
    """

    name: str
    log_value: float  # −∞ for a bound of zero
    side: str  # "lower" or "upper"
    holds: str  # "on B_R^n", "for all n", "sup over n", "at X", …: the set over which the constant is bounded
    conditions: tuple[str, ...]  # what it asked of the layer, and found
    reference: str  # bib key and statement, or this project's proof
    norm: str = "2"

    def __post_init__(self):
        if self.side not in SIDES or math.isnan(self.log_value) or self.log_value == math.inf:
            raise InputError(
                f"expected a side of {' or '.join(SIDES)} and a log_value below ∞, got {self.side!r} and "
                f"{self.log_value} for {self.name}; look for NaN or ∞ in weights, radius and tokens, or "
                "for sizes whose products leave float64"
            )

    @property
    def value(self) -> float | None:
        """The bound itself; None where only its logarithm fits into a float."""
        return None if (value := exp(self.log_value)) == math.inf else value

    def as_record(self) -> dict:
        """The fields as plain Python values, under the names used everywhere."""
        names = ("name", "value", "log_value", "side", "holds", "norm", "reference")
        return {name: getattr(self, name) for name in names} | {"conditions": list(self.conditions)}


class Refused(InputError):
    """A bound's condition does not hold for this layer: `bound` and `condition`, what it `got`, and the `remedy`."""

    def __init__(self, bound: str, condition: str, got: str, remedy: str):
        super().__init__(f"{bound}: expected {condition}, got {got}; {remedy}")
        self.bound, self.condition, self.got, self.remedy = bound, condition, got, remedy


def log(x: float) -> float:
    """The natural logarithm of x ≥ 0, −∞ at zero."""
    return -math.inf if x == 0 else math.log(x)


def exp(x: float) -> float:
    """eˣ, ∞ where it does not fit into a float."""
    return math.exp(x) if x <= LARGEST_LOG else math.inf


def log_sum(*logs: float) -> float:
    """Log Σ exp(l), for terms that may each be too large for a float.

    >>> round(log_sum(1000.0, 1000.0) - 1000.0, 6)
    0.693147
    """
    top = max(logs)
    return top if math.isinf(top) else top + math.log(sum(math.exp(term - top) for term in logs))
