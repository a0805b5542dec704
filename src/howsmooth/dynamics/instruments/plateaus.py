"""Metastable plateaus: stretches of depth over which the number of clusters does not change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from howsmooth.errors import InputError


@dataclass(frozen=True)
class Plateau:
    """`count` clusters at every saved depth from `start` to `end`."""

    count: int
    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


def plateaus(times: Sequence[float], counts: Sequence[int], least: float = 0.05) -> list[Plateau]:
    """The stretches of constant count that last at least the share `least` of all the depth seen, in their order.

    What happens between two saved depths is not seen.

    >>> plateaus([0, 1, 2, 3, 4], [5, 5, 2, 2, 2], least=0.4)
    [Plateau(count=2, start=2.0, end=4.0)]
    """
    if len(times) != len(counts) or not times:
        raise InputError(f"expected a count for each of the depths, got {len(counts)} for {len(times)}")
    if not 0 <= least <= 1:
        raise InputError(f"expected a share from 0 to 1, got {least!r}")
    found, first = [], 0
    for k in range(1, len(counts) + 1):
        if k == len(counts) or counts[k] != counts[first]:
            found.append(Plateau(int(counts[first]), float(times[first]), float(times[k - 1])))
            first = k
    shortest = least * (times[-1] - times[0])
    return [plateau for plateau in found if plateau.length > 0 and plateau.length >= shortest]
