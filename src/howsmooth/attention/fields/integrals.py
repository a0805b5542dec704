"""Fields that are plain integrals: sigmoid and linear attention, mean pooling; and maps without interaction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from howsmooth.attention.fields.field import BilinearField, Field, check_matrices
from howsmooth.attention.fields.softmax import one_head
from howsmooth.errors import InputError

# Pairs (place, point) held at once by an integral in blocks.
BLOCK_PAIRS = 1 << 21


@dataclass(frozen=True, eq=False)
class SigmoidField(BilinearField):
    """Γ_μ(x) = ∫ σ(⟨Ax, y⟩ + bias) V y dμ(y), in blocks; reverse mode keeps what it needs of all pairs."""

    bias: float = 0.0

    name: ClassVar[str] = "sigmoid"

    def velocity(self, x, points, log_weights, times, source_times):
        A, V = self.A.to(x), self.V.to(x)

        def kernel(rows: Tensor, y: Tensor) -> Tensor:
            return torch.sigmoid(rows @ A.mT @ y.mT + self.bias)

        return integrate(kernel, x, points, _or_equal(log_weights, points), points @ V.mT, times, source_times)


@dataclass(frozen=True, eq=False)
class LinearField(BilinearField):
    """Γ_μ(x) = ∫ ⟨Ax, y⟩ V y dμ(y), through the second moment of μ: O(n d²). With times in blocks of pairs."""

    name: ClassVar[str] = "linear"

    def velocity(self, x, points, log_weights, times, source_times):
        A, V, log_weights = self.A.to(x), self.V.to(x), _or_equal(log_weights, points)
        if times is None:
            moment = (torch.softmax(log_weights, -1).unsqueeze(-1) * points).mT @ points
            return x @ A.mT @ moment @ V.mT
        return integrate(lambda rows, y: rows @ A.mT @ y.mT, x, points, log_weights, points @ V.mT, times, source_times)


@dataclass(frozen=True, eq=False)
class MeanPooling(Field):
    """Γ_μ(x) = ∫ V y dμ(y), the same at every x; with times the running mean."""

    V: Tensor

    name: ClassVar[str] = "mean"

    def __post_init__(self):
        check_matrices(self.name, V=self.V)

    @property
    def d(self) -> int:
        return self.V.shape[1]

    @property
    def d_out(self) -> int:
        return self.V.shape[0]

    def velocity(self, x, points, log_weights, times, source_times):
        log_weights, values = _or_equal(log_weights, points), points @ self.V.to(x).mT
        if times is None:
            mean = torch.softmax(log_weights, -1).unsqueeze(-2) @ values
            return mean.expand(*x.shape[:-1], self.d_out)
        nothing = x[..., :0]  # scores that know no x: softmax attention with masses alone
        return one_head(
            nothing, points[..., :0], torch.log_softmax(log_weights, -1).unsqueeze(-1), values, times, source_times
        )


@dataclass(frozen=True, eq=False)
class Pointwise(Field):
    """Γ_μ(x) = fn(x), whatever μ: a network on each token by itself; fn takes (…, m, d) to (…, m, d_out)."""

    fn: Callable[[Tensor], Tensor]
    d: int
    d_out: int | None = None  # d unless given

    name: ClassVar[str] = "pointwise"

    def __post_init__(self):
        object.__setattr__(self, "d_out", self.d if self.d_out is None else self.d_out)
        if not callable(self.fn) or self.d < 1 or self.d_out < 1:
            raise InputError(
                f"pointwise field: expected a callable and widths ≥ 1, got {type(self.fn).__name__}, "
                f"{self.d} and {self.d_out}"
            )

    def velocity(self, x, points, log_weights, times, source_times):
        y = self.fn(x)
        if y.shape != (*x.shape[:-1], self.d_out):
            raise InputError(
                f"pointwise field: expected fn to give {(*x.shape[:-1], self.d_out)} for "
                f"{tuple(x.shape)}, got {tuple(y.shape)}"
            )
        return y


def _or_equal(log_weights: Tensor | None, points: Tensor) -> Tensor:
    return points.new_zeros(points.shape[:-1]) if log_weights is None else log_weights


def integrate(
    kernel,
    x: Tensor,
    points: Tensor,
    log_weights: Tensor,
    values: Tensor,
    times: Tensor | None,
    source_times: Tensor | None,
) -> Tensor:
    """∫ k(x, y) v(y) dμ(y), or with times dμ(y | τ ≤ s), a block of places at a time; kernel: rows, points → pairs."""
    pairs = points.shape[-2] * max(1, x.shape[:-2].numel())
    rows = max(1, BLOCK_PAIRS // pairs)
    pieces = []
    for first in range(0, x.shape[-2], rows):
        block = kernel(x[..., first : first + rows, :], points)
        weights = torch.log_softmax(log_weights, -1).unsqueeze(-2).exp()
        if times is not None:
            # In logarithms, since what is seen at first may weigh less than the smallest double.
            seen = source_times.unsqueeze(-2) <= times[..., first : first + rows].unsqueeze(-1)
            nothing = ~seen.any(-1, keepdim=True)
            weights = torch.softmax(log_weights.unsqueeze(-2).masked_fill(~seen & ~nothing, -torch.inf), -1)
            weights = weights.masked_fill(nothing, 0.0)
        pieces.append((block * weights) @ values)
    return torch.cat(pieces, -2)
