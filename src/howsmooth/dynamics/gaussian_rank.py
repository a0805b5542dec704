"""The limiting rank of the covariance of a Gaussian flow, also for flows that blow up.

At every finite time S has the rank of S₀: rank is lost only in the limit, and the result of a threshold on the
eigenvalues alone would depend on the final time. Each eigenvalue λ is therefore classified by its exponent in the last
fifth of the time,

    p = Δ log λ / Δ log t

which tends to 0 if λ has a positive limit, to −1 if λ vanishes like 1/t and to −∞ if it vanishes exponentially, and
stays positive if λ grows without bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.dynamics.gaussian_flows import BLOW_UP_RATIO, GaussianFlow
from howsmooth.errors import InputError

_STATIONARY = 0.1  # largest |p| of an eigenvalue that has converged
_MOVING = 0.5  # smallest |p| of an eigenvalue that clearly grows or vanishes
_ZERO_THRESHOLD = 1e-18  # relative to the largest eigenvalue; below it the integration cannot tell λ from 0


@dataclass(frozen=True, eq=False)
class LimitingRank:
    """The rank that S and S/‖S‖ tend to, and the behaviour of each eigenvalue.

    Attributes:
        status: Status of the flow.
        rank: Number of eigenvalues of S that do not vanish.
        shape_rank: Rank of lim S/‖S‖; if the flow blows up, the number of directions that do.
        fates: For each eigenvalue, the largest first: "blows up", "grows", "stays" or "vanishes".
        eigenvalues: At the last time, the largest first.
        exponents: Δ log λ/Δ log t over the last fifth of the time; NaN if the flow blows up.
        settled: False if an eigenvalue neither converges nor clearly grows or vanishes, or was classified
            differently in the fifth before; then integrate for longer.
        time: The last time.
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
        """Return all attributes as plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def limiting_rank(flow: GaussianFlow) -> LimitingRank:
    """Estimate the limiting rank of the covariance from the end of a Gaussian flow.

    Args:
        flow: With at least 11 frames.

    Returns:
        The ranks of lim S and lim S/‖S‖, with the behaviour of each eigenvalue.

    Raises:
        InputError: If the flow has fewer than 11 frames.

    Example:
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
        # The time is finite, so the other eigenvalues neither vanish nor diverge.
        fates = [
            "blows up" if value > BLOW_UP_RATIO * last[0] else "stays" if value > 0 else "vanishes" for value in last
        ]
        shape, settled, exponents = fates.count("blows up"), True, torch.full_like(last, torch.nan)
    else:
        exponents, earlier = (_exponents(flow.times, eigenvalues, *window) for window in ((0.8, 1.0), (0.6, 0.8)))
        fates, before = (_classify(p, last) for p in (exponents, earlier))
        # λ/λ_max has a positive limit if both have the same exponent.
        shape = int(((last > _ZERO_THRESHOLD * last[0]) & (exponents >= exponents[0] - _MOVING)).sum())
        moving = (exponents.abs() > _STATIONARY) & (exponents.abs() < _MOVING)
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
    """Return Δ log λ / Δ log t from begin·T to end·T; −∞ for an eigenvalue 0."""
    first, last = (int(torch.searchsorted(times, share * times[-1] * (1 - 1e-12))) for share in (begin, end))
    change = eigenvalues[last].log() - eigenvalues[first].log()
    return torch.where(eigenvalues[last] > 0, change / (times[last] / times[first]).log(), -torch.inf)


def _classify(exponents: Tensor, eigenvalues: Tensor) -> list[str]:
    """Return "grows", "stays" or "vanishes" for each eigenvalue."""
    fates = []
    for p, value in zip(exponents.tolist(), eigenvalues.tolist(), strict=True):
        if value <= _ZERO_THRESHOLD * float(eigenvalues[0]) or p < -_STATIONARY:
            fates.append("vanishes")
        else:
            fates.append("stays" if p <= _STATIONARY else "grows")
    return fates
