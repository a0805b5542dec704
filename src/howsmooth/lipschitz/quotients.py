"""Lipschitz quotients of a map of measures along a direction, and the slope that they tend to.

ν = μ with its atoms moved by η u. As η → 0 the quotient W_p(F(μ), F(ν)) / W_p(μ, ν) tends to ‖DF·u‖ / ‖u‖ in L^p(μ):
close enough, no atom is better off with another's place. Along the worst direction that is the local constant. For
timed measures, that is for masked attention, the same with the conditional distance d_p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention import Field
from howsmooth.errors import InputError
from howsmooth.transport import TimedMeasure, TokenMeasure, conditional_distance, push_forward, wasserstein
from howsmooth.transport.plans import check_exponent, power_mean

ETAS = tuple(10.0**-k for k in range(8))


@dataclass(frozen=True)
class Quotients:
    """Quotients `values` at each η, from distances `before` and `after`; `slope` is their limit, from the derivative.

    `distance` is "W" or, for timed measures, "d".
    """

    etas: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    values: tuple[float, ...]
    slope: float
    p: float
    distance: str
    dtype: str

    @property
    def errors(self) -> tuple[float, ...]:
        """How far each quotient is from the slope, relative to it."""
        return tuple(abs(value - self.slope) / self.slope if self.slope > 0 else value for value in self.values)

    def as_record(self) -> dict[str, Any]:
        return {"etas": list(self.etas), "before": list(self.before), "after": list(self.after),
                "values": list(self.values), "slope": self.slope, "p": "inf" if math.isinf(self.p) else self.p,
                "distance": self.distance, "dtype": self.dtype}


def lipschitz_quotients(field: Field, measure: TokenMeasure, direction: Tensor, etas: Sequence[float] = ETAS,
                        p: float = 2.0) -> Quotients:
    """W_p(F(μ), F(ν)) / W_p(μ, ν), or with d_p for a timed measure, where ν is μ moved by η along a direction (n, d).

    The direction is a displacement of atoms; it is brought to norm 1 in L^p(μ), so that W_p(μ, ν) = η for small η. From
    a singular vector v of `WeightedAttention.jacobian`, which lives in the norm Σ a_i |ε_i|², it is v_i / √a_i.

    >>> from howsmooth.attention import MeanPooling
    >>> mu = TokenMeasure(torch.tensor([[0.0], [4.0]], dtype=torch.float64))
    >>> found = lipschitz_quotients(MeanPooling(torch.eye(1).double()), mu, torch.ones(2, 1).double(), [0.1])
    >>> round(found.values[0], 12), found.slope
    (1.0, 1.0)
    """
    p = check_exponent(p)
    image = push_forward(field, measure)
    norm = _norm(measure.moved(direction, 0.0), direction, p)
    if not 0 < norm < math.inf:
        raise InputError(f"expected a direction that moves something, finite, got one of norm {norm}")
    if not etas or not all(isinstance(eta, int | float) and 0 < eta < math.inf for eta in etas):
        raise InputError(f"expected steps η > 0, got {list(etas)}")
    unit = direction.to(measure.points) / norm
    timed = isinstance(measure, TimedMeasure)
    distance = conditional_distance if timed else wasserstein
    moved = [measure.moved(unit, eta) for eta in etas]
    before = tuple(distance(measure, nu, p).value for nu in moved)
    after = tuple(distance(image, push_forward(field, nu), p).value for nu in moved)
    if not all(before):
        raise InputError(f"expected steps that move atoms in {measure.points.dtype}, got η = "
                         f"{etas[before.index(0.0)]:g}; use larger steps")
    values = tuple(there / here for here, there in zip(before, after, strict=True))
    return Quotients(tuple(map(float, etas)), before, after, values, _slope(field, measure, unit, p), p,
                     "d" if timed else "W", str(measure.points.dtype).removeprefix("torch."))


def _slope(field: Field, measure: TokenMeasure, unit: Tensor, p: float) -> float:
    x = measure.points
    logs = None if measure.equal else measure.log_weights.to(x)
    times = measure.times if isinstance(measure, TimedMeasure) else None
    _, tangent = torch.func.jvp(lambda y: field(y, y, logs, times=times, source_times=times), (x,), (unit,))
    return _norm(measure, tangent, p)


def _norm(measure: TokenMeasure, vectors: Tensor, p: float) -> float:
    """(Σ a_i |v_i|^p)^{1/p}."""
    lengths = vectors.double().norm(dim=1)
    return power_mean(lengths.cpu().numpy(), measure.log_weights.cpu().numpy(), p)
