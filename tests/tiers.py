"""Two tiers of tests: `make test` leaves out those with the marker `slow`, `make test-all` runs all of them.

A test of many cases keeps some of them in the quick tier; what the others add is said where they are listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def rest_is_slow(cases: Iterable[Any], keep: int = 1) -> list[Any]:
    """Return the values of one parameter for `pytest.mark.parametrize`, all but the first `keep` marked slow."""
    found = list(cases)
    return [*found[:keep], *(pytest.param(case, marks=pytest.mark.slow) for case in found[keep:])]


def other_pairs_are_slow(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Return all pairs of values of two parameters, marked slow but for the longer list beside the shorter, repeated.

    So each value of both is in the quick tier, and in `make test-all` each beside each.
    """
    rows, columns = list(first), list(second)
    shorter = min(len(rows), len(columns))
    return [
        pytest.param(row, column, marks=() if i % shorter == j % shorter else pytest.mark.slow, id=f"{row}-{column}")
        for i, row in enumerate(rows)
        for j, column in enumerate(columns)
    ]
