"""Kinds of maps, each at one measure, with what is known about whether maps of this kind split.

The measures were found by `experiments/splitting_search.py` or are derived in docs/splitting.md. Their ratios are
computed by `criterion`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from howsmooth.attention.fields.field import Field
from howsmooth.attention.fields.integrals import LinearField, MeanPooling, Pointwise, SigmoidField
from howsmooth.attention.fields.sinkhorn import SinkhornField
from howsmooth.attention.fields.softmax import L2Field, SoftmaxField
from howsmooth.lipschitz.criterion import Criterion, criterion

Measure = tuple[list[list[Any]], list[Any]]  # points, logarithms of the masses


@dataclass(frozen=True, eq=False)
class SplittingCase:
    """A map, a measure, and what is known about maps of this kind.

    Attributes:
        map: Kind of the map.
        where: Parameters and measure, in words.
        field: The map.
        points: Atoms of the measure, (atoms, d).
        masses: Their masses.
        limit: The largest ratio that is possible or was found, in words.
        never: Whether no measure of this form splits.
    """

    map: str
    where: str
    field: Field | Callable[..., Any]
    points: list[list[float]]
    masses: list[float]
    limit: str
    never: bool = False

    def criteria(self) -> tuple[Criterion, Criterion]:
        """Return the criterion at the measure, and after every atom is cut in two, of 0.3 and 0.7 of its mass."""
        points = torch.tensor(self.points, dtype=torch.float64)
        masses = torch.tensor(self.masses, dtype=torch.float64)
        halves = torch.stack([0.3 * masses, 0.7 * masses], -1).flatten()
        before = criterion(self.field, points, masses.log())
        return before, criterion(self.field, points.repeat_interleave(2, 0), halves.log())


# Measures on two atoms whose ratios tend to the largest known value of their kind of map. The functions are elementary,
# so that they serve any type of number: `roots` is the module that has `sqrt` and `log`, `math` or `mpmath`.
def opposite_l2_measure(distance: Any, roots: Any = math) -> Measure:
    """Return the measure for L2 attention with K = −Q = −1 in d = 1: its ratio is ½e^{t/2}(1 + o(1)), masses 1 : e^t.

    Args:
        distance: The distance δ > 1 of the two atoms.
        roots: Module with `sqrt` and `log`.

    Example:
        >>> points, log_masses = opposite_l2_measure(4.0)
        >>> [round(x, 4) for (x,) in points], round(log_masses[1], 4)
        ([-2.0635, 1.9365], 19.1107)
    """
    q = (1 - roots.sqrt(1 - 1 / distance**2)) / 2  # of the light atom in the row of the heavy one: q(1 − q)δ² = ¼
    total = -1 / (2 * (1 - q) * distance)  # x + y, for which moving the light atom does not move the heavy one's image
    x, y = (total - distance) / 2, (total + distance) / 2
    return [[x], [y]], [0 * x, 4 * y * y - total * total - roots.log(q / (1 - q))]


def ill_conditioned_measure(condition: Any, size: Any, roots: Any = math) -> Measure:
    """Return the measure for softmax attention with A = diag(1, 1/κ), V = I: its ratio tends to (1 + κ)/(2√κ).

    Args:
        condition: The condition number κ.
        size: The size s > 1, which tends to infinity.
        roots: Module with `sqrt` and `log`.

    Example:
        >>> points, log_masses = ill_conditioned_measure(10.0, 100.0)
        >>> [[round(t, 3) for t in point] for point in points], round(log_masses[1], 3)
        ([[81.793, -259.526], [181.793, 56.702]], 27.631)
    """
    root = roots.sqrt(condition)
    u = [size, size * root]  # y − x, with the smallest cosine between u and Au
    Au = [size, size / root]
    least_score = -6 * roots.log(size)  # ⟨Ax, u⟩, far enough below 0 that D_xy, of order s² e^{q/2}, vanishes
    excess = (2 * size * size - least_score) / (size * size * (1 + condition))  # ⟨Au, u⟩ = 2s², |u|² = s²(1 + κ)
    Ax = [a - excess * t for a, t in zip(Au, u, strict=True)]
    x = [Ax[0], condition * Ax[1]]
    return [x, [s + t for s, t in zip(x, u, strict=True)]], [0 * size, -least_score]


def _two_atoms(map: str, where: str, field: Field, measure: Measure, limit: str) -> SplittingCase:
    points, log_masses = measure
    return SplittingCase(map, where, field, points, [math.exp(mass) for mass in log_masses], limit)


_ONE, _IDENTITY_2D = torch.ones(1, 1, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
_QUARTER_TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
_ILL_CONDITIONED = torch.diag(torch.tensor([1.0, 1e-3], dtype=torch.float64))
# Found by search: tied queries and keys, and values, for which two atoms split.
_QUERY_KEY = torch.tensor([[-0.2624535355, 0.3061571579], [-0.4499762933, 3.2008975634]], dtype=torch.float64)
_VALUES = torch.tensor([[-1.2031648218, -4.1193098544], [2.0535030956, 3.0593035023]], dtype=torch.float64)

SPLITTING_CASES = (
    SplittingCase(
        "softmax", "A = −1, equal masses", SoftmaxField.of(-_ONE, _ONE), [[5.5981], [0.4677]], [1, 1], "1.485 found"
    ),
    SplittingCase(
        "softmax", "A = −1, 1 : y² − 1 at distance y", SoftmaxField.of(-_ONE, _ONE), [[0], [30]], [899, 1], "unbounded"
    ),
    SplittingCase(
        "softmax",
        "A = +1",
        SoftmaxField.of(_ONE, _ONE),
        [[13.1091068], [0.2197482]],
        [0.2547114, 0.7452886],
        "1.0051 found",
    ),
    _two_atoms(
        "softmax",
        "A ≻ 0 with condition number 1000, d = 2",
        SoftmaxField.of(_ILL_CONDITIONED, _IDENTITY_2D),
        ill_conditioned_measure(1000.0, 1000.0),
        "15.83 approached",
    ),
    _two_atoms(
        "L2, K = −Q",
        "light atom at −2.55, heavy at 2.45",
        L2Field(_ONE, -_ONE, _ONE),
        opposite_l2_measure(5.0),
        "unbounded",
    ),
    SplittingCase(
        "L2, tied K = Q",
        "d = 2, V ≠ I, two atoms",
        L2Field(_QUERY_KEY, _QUERY_KEY, _VALUES),
        [[-1.2033681198, 0.5774883113], [0.4920128319, 0.2973140538]],
        [25.12, 1],
        "2 proved",
    ),
    SplittingCase(
        "L2, tied K = Q",
        "V = I, QᵀQ = cI: never",
        L2Field(_ONE, _ONE, _ONE),
        [[0], [3]],
        [1, 4],
        "1 proved",
        never=True,
    ),
    SplittingCase("Sinkhorn", "A = −1, masses 1 : 2", SinkhornField(-_ONE, _ONE), [[0], [6]], [1, 2], "unbounded"),
    SplittingCase(
        "Sinkhorn", "A = +1, two atoms", SinkhornField(_ONE, _ONE), [[0], [2]], [1, 2], "1 proved", never=True
    ),
    SplittingCase("sigmoid", "A = −1, one atom", SigmoidField(-_ONE, _ONE), [[0.8595]], [1], "unbounded"),
    SplittingCase("sigmoid", "V = I, A = cI ≻ 0", SigmoidField(_ONE, _ONE), [[1], [3]], [1, 1], "1 proved", never=True),
    SplittingCase(
        "linear", "A a quarter turn, one atom", LinearField(_QUARTER_TURN, _IDENTITY_2D), [[1, 2]], [1], "unbounded"
    ),
    SplittingCase(
        "linear",
        "linearly dependent atoms (n > d)",
        LinearField(_QUARTER_TURN, _IDENTITY_2D),
        [[1, 2], [0, 1], [2, -1]],
        [1, 2, 3],
        "1 proved",
        never=True,
    ),
    SplittingCase(
        "mean pooling", "always", MeanPooling(_IDENTITY_2D), [[1, 2], [0, 1]], [1, 2], "0 proved", never=True
    ),
    SplittingCase(
        "pointwise network", "always", Pointwise(torch.tanh, 1), [[1], [0.2]], [1, 2], "1 proved", never=True
    ),
)
