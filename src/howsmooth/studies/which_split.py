"""Which maps split at all: a table, each row a map with the measure that splits it, or with why none does.

Measures were found by `experiments/splitting_search.py`, or are written down in docs/splitting.md; their ratios are
computed here and now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from howsmooth.attention.fields import (
    Field,
    L2Field,
    LinearField,
    MeanPooling,
    Pointwise,
    SigmoidField,
    SinkhornField,
    SoftmaxField,
)
from howsmooth.lipschitz.criterion import criterion

ONE, PLANE = torch.ones(1, 1, dtype=torch.float64), torch.eye(2, dtype=torch.float64)
TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)
STRETCH = torch.diag(torch.tensor([1.0, 1e-3], dtype=torch.float64))

_TIED = torch.tensor([[-0.2624535355, 0.3061571579], [-0.4499762933, 3.2008975634]], dtype=torch.float64)
_VALUES = torch.tensor([[-1.2031648218, -4.1193098544], [2.0535030956, 3.0593035023]], dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Case:
    """A map, a measure, and what is known about its kind.

    `limit` is the largest ratio that there can be; `never` says that no such measure splits.
    """

    kind: str
    where: str
    field: Field | Callable
    points: list[list[float]]
    masses: list[float]
    limit: str
    never: bool = False


CASES = (
    Case("softmax", "A = −1, equal masses", SoftmaxField.of(-ONE, ONE), [[5.5981], [0.4677]], [1, 1], "1.485 found"),
    Case("softmax", "A = −1, 1 : y² − 1 at distance y", SoftmaxField.of(-ONE, ONE), [[0], [30]], [899, 1], "unbounded"),
    Case(
        "softmax",
        "A = +1",
        SoftmaxField.of(ONE, ONE),
        [[13.1091068], [0.2197482]],
        [0.2547114, 0.7452886],
        "1.0051 found",
    ),
    Case(
        "softmax",
        "A ≻ 0 with condition number 1000, d = 2",
        SoftmaxField.of(STRETCH, PLANE),
        [[-6.5243095649, -187.2353020304], [-13.0649961982, 68.7697831316]],
        [1, 12192.03],
        "14.44 found",
    ),
    Case(
        "L2, K = −Q",
        "light atom at −1.65, heavy at 1.48",
        L2Field(ONE, -ONE, ONE),
        [[-1.6485616219741726], [1.4847033925688446]],
        [4.086539081799703e-06, 0.9999959134609181],
        "246.5 found",
    ),
    Case(
        "L2, tied K = Q",
        "d = 2, V ≠ I, two atoms",
        L2Field(_TIED, _TIED, _VALUES),
        [[-1.2033681198, 0.5774883113], [0.4920128319, 0.2973140538]],
        [25.12, 1],
        "2 proved",
    ),
    Case(
        "L2, tied K = Q", "V = I, QᵀQ = cI: never", L2Field(ONE, ONE, ONE), [[0], [3]], [1, 4], "1 proved", never=True
    ),
    Case("Sinkhorn", "A = −1, masses 1 : 2", SinkhornField(-ONE, ONE), [[0], [6]], [1, 2], "unbounded"),
    Case("Sinkhorn", "A = +1, two atoms", SinkhornField(ONE, ONE), [[0], [2]], [1, 2], "1 proved", never=True),
    Case("sigmoid", "A = −1, one atom", SigmoidField(-ONE, ONE), [[0.8595]], [1], "unbounded"),
    Case("sigmoid", "V = I, A = cI ≻ 0", SigmoidField(ONE, ONE), [[1], [3]], [1, 1], "1 proved", never=True),
    Case("linear", "A a quarter turn, one atom", LinearField(TURN, PLANE), [[1, 2]], [1], "unbounded"),
    Case(
        "linear",
        "linearly dependent atoms (n > d)",
        LinearField(TURN, PLANE),
        [[1, 2], [0, 1], [2, -1]],
        [1, 2, 3],
        "1 proved",
        never=True,
    ),
    Case("mean pooling", "always", MeanPooling(PLANE), [[1, 2], [0, 1]], [1, 2], "0 proved", never=True),
    Case("pointwise network", "always", Pointwise(torch.tanh, 1), [[1], [0.2]], [1, 2], "1 proved", never=True),
)


def which_split() -> Iterator[dict[str, Any]]:
    """One record per case: both norms, their ratio, and the norm of the measure with every atom cut in two."""
    for case in CASES:
        points = torch.tensor(case.points, dtype=torch.float64)
        masses = torch.tensor(case.masses, dtype=torch.float64)
        found = criterion(case.field, points, masses.log())
        pieces = torch.stack([0.3 * masses, 0.7 * masses], -1).flatten()
        cut = criterion(case.field, points.repeat_interleave(2, 0), pieces.log())
        yield {
            "kind": case.kind,
            "where": case.where,
            **found.as_record(),
            "after": cut.norm,
            "limit": case.limit,
            "never": case.never,
            "splits": found.ratio > 1 + 1e-12,
            "status": "converged",
        }
