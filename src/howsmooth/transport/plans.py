"""What transport gives back: a distance with its certificate, the plan, and what a plan makes of its measures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.transport.measures import TokenMeasure


@dataclass(frozen=True, eq=False)
class Plan:
    """A coupling by its entries that are not zero: mass e^{log_mass} goes from atom `rows` to atom `cols`."""

    rows: Tensor
    cols: Tensor
    log_mass: Tensor

    @property
    def mass(self) -> Tensor:
        return self.log_mass.exp()

    def dense(self, n: int, m: int) -> Tensor:
        """The coupling as a matrix (n, m)."""
        return torch.zeros(n, m, dtype=torch.float64).index_put((self.rows, self.cols), self.mass, accumulate=True)

    def refined(self, mu: TokenMeasure, nu: TokenMeasure) -> tuple[TokenMeasure, TokenMeasure]:
        """μ and ν with atoms split so that the plan is a map: one atom of each per entry, in the same order.

        The masses of both are those of the plan; `mu.moved(y − x, t)` of the two is the straight path between them.
        """
        x, y = mu._chosen(self.rows, self.log_mass), nu._chosen(self.cols, self.log_mass)
        return x, y

    def barycentric(self, mu: TokenMeasure, nu: TokenMeasure) -> Tensor:
        """T(x_i) = Σ_j π_ij y_j / a_i, (n, d): where the mass of each atom goes on average.

        It is the transport map where no atom is split. Elsewhere its push-forward is not ν but ν's contraction: use
        `refined` to keep what is lost.
        """
        mu, nu = mu.cpu(), nu.cpu()
        share = (self.log_mass - mu.log_weights[self.rows]).exp().unsqueeze(1)
        y = nu.points.double()[self.cols]
        return torch.zeros(mu.n, nu.d, dtype=torch.float64).index_add(0, self.rows, share * y).to(nu.points.dtype)


@dataclass(frozen=True)
class Transport:
    """A distance W_p and how it was found.

    `gap` certifies it: value^p is within `gap` of the dual value, relative to it, so that no plan can be better by more
    (p = ∞: the mass that the plan could not keep within the value; 0 where none is left). `plan` on request.
    """

    value: float
    p: float
    method: str
    gap: float
    n: int
    m: int
    plan: Plan | None = None

    def as_record(self) -> dict[str, Any]:
        return {"value": self.value, "p": "inf" if math.isinf(self.p) else self.p, "method": self.method,
                "gap": self.gap, "n": self.n, "m": self.m}


def power_mean(distances: np.ndarray, log_mass: np.ndarray, p: float) -> float:
    """(Σ mass · distance^p)^{1/p}, in logarithms: nothing overflows, however small a mass or large a p."""
    if math.isinf(p):
        return float(distances.max(initial=0.0))
    moved = distances > 0
    if not moved.any():
        return 0.0
    logs = log_mass[moved] + p * np.log(distances[moved])
    top = logs.max()
    return float(np.exp((top + np.log(np.exp(logs - top).sum())) / p))


def check_exponent(p: float) -> float:
    if isinstance(p, bool) or not isinstance(p, int | float) or not p >= 1:
        raise InputError(f"expected an exponent p ≥ 1 (math.inf for W_∞), got {p!r}")
    return float(p)
