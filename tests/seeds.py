"""Seeds of the tests that draw at random, which have the marker `random`.

They are fixed, so that a run can be repeated; `HOWSMOOTH_SEED` chooses others, and `make test-random` runs these tests
with a hundred of them.
"""

from __future__ import annotations

import os

SEED = int(os.environ.get("HOWSMOOTH_SEED", "0"))


def seeds(count: int, first: int = 0) -> range:
    """Return `count` seeds for generators; those of another `HOWSMOOTH_SEED` are others."""
    start = first + 1_000_000 * SEED
    return range(start, start + count)
