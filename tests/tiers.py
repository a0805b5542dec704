"""Two tiers of tests: `make test` leaves out those with the marker `slow`, `make test-all` runs all of them.

A test of many cases keeps its first ones in the quick tier; what the others add is said where they are listed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def rest_is_slow(cases: Iterable[Any], keep: int = 1) -> list[Any]:
    """Return the values of one parameter for `pytest.mark.parametrize`, all but the first `keep` marked slow."""
    found = list(cases)
    return [*found[:keep], *(pytest.param(case, marks=pytest.mark.slow) for case in found[keep:])]
