"""Fields without a softmax: sigmoid and linear attention, mean pooling, and maps of each token by itself."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from howsmooth.attention.fields.field import BilinearField, Field, check_matrices
from howsmooth.attention.fields.softmax import attend_one_head
from howsmooth.errors import InputError

# Pairs (x_i, y_j) of one block of an integral.
BLOCK_PAIRS = 1 << 21


@dataclass(frozen=True, eq=False)
class SigmoidField(BilinearField):
    """Sigmoid attention, `Γ_μ(x) = ∫ σ(⟨Ax, y⟩ + bias) V y dμ(y)`.

    Computed in blocks of pairs; reverse mode stores tensors for all pairs.

    Attributes:
        A: matrix of the scores, (d, d).
        V: matrix of the values, (d_out, d).
        bias: number added to the scores.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> SigmoidField(0 * eye, eye).on_tokens(torch.ones(3, 2, dtype=torch.float64))[0]
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    bias: float = 0.0

    name: ClassVar[str] = "sigmoid"

    def velocity(
        self, x: Tensor, points: Tensor, log_weights: Tensor | None, times: Tensor | None, source_times: Tensor | None
    ) -> Tensor:
        """Compute the field, see `Field.velocity`."""
        A, V = self.A.to(x), self.V.to(x)

        def kernel(rows: Tensor, y: Tensor) -> Tensor:
            return torch.sigmoid(rows @ A.mT @ y.mT + self.bias)

        return integrate(kernel, x, points, _or_uniform(log_weights, points), points @ V.mT, times, source_times)


@dataclass(frozen=True, eq=False)
class LinearField(BilinearField):
    """Linear attention, `Γ_μ(x) = ∫ ⟨Ax, y⟩ V y dμ(y)`.

    Computed from the second moment of μ, in O(n d²); with times, in blocks of pairs.

    Attributes:
        A: matrix of the scores, (d, d).
        V: matrix of the values, (d_out, d).

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> LinearField(eye, eye).on_tokens(torch.ones(3, 2, dtype=torch.float64))[0]
        tensor([2., 2.], dtype=torch.float64)
    """

    name: ClassVar[str] = "linear"

    def velocity(
        self, x: Tensor, points: Tensor, log_weights: Tensor | None, times: Tensor | None, source_times: Tensor | None
    ) -> Tensor:
        """Compute the field, see `Field.velocity`."""
        A, V, log_weights = self.A.to(x), self.V.to(x), _or_uniform(log_weights, points)
        if times is None:
            moment = (torch.softmax(log_weights, -1).unsqueeze(-1) * points).mT @ points
            return x @ A.mT @ moment @ V.mT
        return integrate(lambda rows, y: rows @ A.mT @ y.mT, x, points, log_weights, points @ V.mT, times, source_times)


@dataclass(frozen=True, eq=False)
class MeanPooling(Field):
    """Mean pooling, `Γ_μ(x) = ∫ V y dμ(y)`: the same at every x, or with times the running mean.

    Attributes:
        V: matrix of the values, (d_out, d).

    Example:
        >>> x = torch.tensor([[0.0], [2.0]], dtype=torch.float64)
        >>> MeanPooling(torch.eye(1, dtype=torch.float64)).on_tokens(x).flatten().tolist()
        [1.0, 1.0]
    """

    V: Tensor

    name: ClassVar[str] = "mean"

    def __post_init__(self) -> None:
        """Refuse arguments that do not fit each other."""
        check_matrices(self.name, V=self.V)

    @property
    def d(self) -> int:
        """Width of points."""
        return self.V.shape[1]

    @property
    def d_out(self) -> int:
        """Width of values."""
        return self.V.shape[0]

    def velocity(
        self, x: Tensor, points: Tensor, log_weights: Tensor | None, times: Tensor | None, source_times: Tensor | None
    ) -> Tensor:
        """Compute the field, see `Field.velocity`."""
        log_weights, values = _or_uniform(log_weights, points), points @ self.V.to(x).mT
        if times is None:
            mean = torch.softmax(log_weights, -1).unsqueeze(-2) @ values
            return mean.expand(*x.shape[:-1], self.d_out)
        # Softmax attention with scores log a_j, which do not depend on x.
        return attend_one_head(
            x[..., :0], points[..., :0], torch.log_softmax(log_weights, -1).unsqueeze(-1), values, times, source_times
        )


@dataclass(frozen=True, eq=False, init=False)
class Pointwise(Field):
    """A map of each token by itself, `Γ_μ(x) = fn(x)` for every μ.

    Attributes:
        fn: the map, (…, m, d) → (…, m, d_out).
        d: width of tokens.
        d_out: width of outputs, d by default.

    Example:
        >>> Pointwise(torch.tanh, 2).on_tokens(torch.zeros(3, 2)).shape
        torch.Size([3, 2])
    """

    fn: Callable[[Tensor], Tensor]
    d: int
    d_out: int

    name: ClassVar[str] = "pointwise"

    def __init__(self, fn: Callable[[Tensor], Tensor], d: int, d_out: int | None = None) -> None:
        """Check the arguments."""
        d_out = d if d_out is None else d_out
        if not callable(fn) or d < 1 or d_out < 1:
            raise InputError(
                f"pointwise field: expected a callable and widths ≥ 1, got {type(fn).__name__}, {d} and {d_out}"
            )
        for name, value in (("fn", fn), ("d", d), ("d_out", d_out)):
            object.__setattr__(self, name, value)

    def velocity(
        self, x: Tensor, points: Tensor, log_weights: Tensor | None, times: Tensor | None, source_times: Tensor | None
    ) -> Tensor:
        """Compute fn(x)."""
        y = self.fn(x)
        if y.shape != (*x.shape[:-1], self.d_out):
            raise InputError(
                f"pointwise field: expected fn to return {(*x.shape[:-1], self.d_out)} for "
                f"{tuple(x.shape)}, got {tuple(y.shape)}"
            )
        return y


def _or_uniform(log_weights: Tensor | None, points: Tensor) -> Tensor:
    """Return the log weights, or those of equal weights if there are none."""
    return points.new_zeros(points.shape[:-1]) if log_weights is None else log_weights


def integrate(
    kernel: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    points: Tensor,
    log_weights: Tensor,
    values: Tensor,
    times: Tensor | None,
    source_times: Tensor | None,
) -> Tensor:
    """Compute ∫ k(x, y) v(y) dμ(y), or with times dμ(y | τ ≤ s), in blocks of rows of x.

    Args:
        kernel: k, from rows (…, r, d) of x and points (…, n, d) to (…, r, n).
        x: where to evaluate, (…, m, d).
        points: support of μ, (…, n, d).
        log_weights: logarithms of the weights, (…, n), up to a constant.
        values: v at the points, (…, n, d_out).
        times: times of x, (…, m).
        source_times: times of the points, (…, n).

    Returns:
        The integrals, (…, m, d_out).
    """
    pairs = points.shape[-2] * max(1, math.prod(x.shape[:-2]))
    rows = max(1, BLOCK_PAIRS // pairs)
    pieces = []
    for first in range(0, x.shape[-2], rows):
        block = kernel(x[..., first : first + rows, :], points)
        weights = torch.log_softmax(log_weights, -1).unsqueeze(-2).exp()
        if times is not None and source_times is not None:
            # In logarithms, since the visible weights may be smaller than the smallest double.
            visible = source_times.unsqueeze(-2) <= times[..., first : first + rows].unsqueeze(-1)
            empty = ~visible.any(-1, keepdim=True)
            weights = torch.softmax(log_weights.unsqueeze(-2).masked_fill(~visible & ~empty, -torch.inf), -1)
            weights = weights.masked_fill(empty, 0.0)
        pieces.append((block * weights) @ values)
    return torch.cat(pieces, -2)
