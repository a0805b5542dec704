"""The rank that the covariance of a Gaussian flow tends to, of flows that blow up, too.

At each finite time S has the rank of S₀, so a rank that is lost is lost in the limit, and a threshold on eigenvalues
alone would depend on when one looks. What is read off is how each eigenvalue λ moves in the last fifth of the time, by

    p = Δ log λ / Δ log t

which tends to 0 for an eigenvalue with a positive limit, to −1 for one that vanishes like 1/t, to −∞ for one that
vanishes exponentially, and stays positive for one that grows without bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.dynamics.gaussian_flow import BLOWS_UP, GaussianFlow
from howsmooth.errors import InputError

_STILL, _MOVING = 0.1, 0.5  # |p| of an eigenvalue that has come to rest, and of one that never will
_GONE = 1e-18  # of the largest eigenvalue: below what the integration can tell from 0


@dataclass(frozen=True, eq=False)
class LimitingRank:
    """How many eigenvalues of S do not vanish (`rank`), and how many do not vanish beside the largest (`shape_rank`).

    `shape_rank` is the rank of lim S/‖S‖: the number of directions that blow up, where the flow blows up. `fates` has a
    word for each eigenvalue, the largest first: "blows up", "grows", "stays", "vanishes". `settled` is False where an
    eigenvalue is neither at rest nor in a steady rise or fall, or did otherwise in the fifth of the time before: then
    follow the flow for longer.
    """

    status: str
    rank: int
    shape_rank: int
    fates: tuple[str, ...]
    eigenvalues: tuple[float, ...]
    exponents: tuple[float, ...]
    settled: bool
    time: float

    def as_record(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def limiting_rank(flow: GaussianFlow) -> LimitingRank:
    """What becomes of each eigenvalue of S, from the end of a trajectory.

    >>> from howsmooth.attention.fields import SoftmaxField
    >>> from howsmooth.dynamics import GaussianState, gaussian_flow
    >>> a = torch.diag(torch.tensor([1.0, -1.0], dtype=torch.float64))
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> found = limiting_rank(gaussian_flow(SoftmaxField.of(a, eye), GaussianState.standard(2), until=3.0))
    >>> found.status, found.fates, found.shape_rank
    ('blew up', ('blows up', 'stays'), 1)
    """
    if len(flow.times) < 11:
        raise InputError(f"expected a flow with at least 11 frames, got {len(flow.times)}; 101 is the default")
    factors = flow.maps @ flow.start.root
    eigenvalues = torch.linalg.svdvals(factors).square()
    eigenvalues[:, flow.start.rank :] = 0.0
    last = eigenvalues[-1]
    if flow.blow_up is not None:
        # There is a finite time in which to move, so that those that do not blow up neither vanish nor diverge.
        fates = ["blows up" if value > BLOWS_UP * last[0] else "stays" if value > 0 else "vanishes" for value in last]
        shape, settled, exponents = fates.count("blows up"), True, torch.full_like(last, torch.nan)
    else:
        exponents, earlier = (_exponents(flow.times, eigenvalues, *window) for window in ((0.8, 1.0), (0.6, 0.8)))
        fates, before = (_fates(p, last) for p in (exponents, earlier))
        # An eigenvalue keeps its share of the largest if it moves as that one does.
        shape = int(((last > _GONE * last[0]) & (exponents >= exponents[0] - _MOVING)).sum())
        moving = (exponents.abs() > _STILL) & (exponents.abs() < _MOVING)
        settled = flow.status == "finished" and fates == before and not bool(moving.any())
    return LimitingRank(
        flow.status,
        sum(fate != "vanishes" for fate in fates),
        shape,
        tuple(fates),
        tuple(last.tolist()),
        tuple(exponents.tolist()),
        settled,
        float(flow.times[-1]),
    )


def _exponents(times: Tensor, eigenvalues: Tensor, begin: float, end: float) -> Tensor:
    """Δ log λ / Δ log t over this part of the time; −∞ for what is 0."""
    first, last = (int(torch.searchsorted(times, share * times[-1] * (1 - 1e-12))) for share in (begin, end))
    change = eigenvalues[last].log() - eigenvalues[first].log()
    return torch.where(eigenvalues[last] > 0, change / (times[last] / times[first]).log(), -torch.inf)


def _fates(exponents: Tensor, eigenvalues: Tensor) -> list[str]:
    words = []
    for p, value in zip(exponents.tolist(), eigenvalues.tolist(), strict=True):
        if value <= _GONE * float(eigenvalues[0]) or p < -_STILL:
            words.append("vanishes")
        else:
            words.append("stays" if p <= _STILL else "grows")
    return words
