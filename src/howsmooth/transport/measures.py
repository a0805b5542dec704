"""Probability measures on tokens: atoms with masses, and atoms with masses at times in [0, 1]; attention as their map.

Masses are kept by their logarithms, so that 10⁻⁴⁰ and 1 − 10⁻⁴⁰ stand side by side: two atoms are exponentially many
tokens. Attention maps a measure to F(μ) = (Γ_μ)♯μ, and where tokens have times (s, x) to (s, Γ_μ(s, x)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from howsmooth.attention import Field, SelfAttention, SoftmaxField
from howsmooth.errors import InputError


@dataclass(frozen=True, eq=False, init=False)
class TokenMeasure:
    """μ = Σ a_i δ_{x_i} with points (n, d) and masses that sum to 1; equal ones unless given.

    Args:
        weights: masses (n), positive; or `log_weights`, where masses are too small for a double.
        normalise: divide the masses by their sum; without it they are refused unless it is 1, up to rounding.

    >>> mu = TokenMeasure(torch.tensor([[0.0], [1.0], [1.0]]), [0.5, 0.25, 0.25])
    >>> mu.merged().weights
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    points: Tensor
    log_weights: Tensor

    def __init__(self, points, weights=None, *, log_weights=None, normalise: bool = False):
        points = _points(points)
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "log_weights", _logs(len(points), weights, log_weights, normalise, points.device))

    @classmethod
    def from_sampler(cls, sampler: Callable[[int, torch.Generator], Tensor], n: int, generator: torch.Generator):
        """N equal atoms drawn by sampler(n, generator); for a timed measure that gives times (n) and points (n, d)."""
        if not callable(sampler) or not isinstance(generator, torch.Generator):
            raise InputError(
                "expected a sampler (n, generator) → atoms and a torch.Generator, got "
                f"{type(sampler).__name__} and {type(generator).__name__}"
            )
        drawn = sampler(n, generator)
        if cls is not TokenMeasure and not (isinstance(drawn, tuple | list) and len(drawn) == 2):
            raise InputError(f"expected times (n) and points (n, d) from the sampler, got {type(drawn).__name__}")
        measure = cls(drawn) if cls is TokenMeasure else cls(*drawn)
        if measure.n != n:
            raise InputError(f"expected {n} atoms from the sampler, got {measure.n}")
        return measure

    @classmethod
    def from_histogram(cls, counts, *edges, normalise: bool = False):
        """Bin centres with the counts as masses, bins without any left out; d = 1 or 2, one list of edges per axis.

        As `numpy.histogram` and `histogram2d` give them. Counts do not sum to 1: say `normalise=True`. For a timed
        measure the first of two axes is the time.

        >>> TokenMeasure.from_histogram([1, 0, 3], [0.0, 1.0, 2.0, 3.0], normalise=True).points.flatten()
        tensor([0.5000, 2.5000], dtype=torch.float64)
        """
        counts = _tensor(counts, "counts").double()
        sides = [_tensor(e, "edges").double() for e in edges]
        if counts.dim() not in (1, 2) or tuple(len(e) - 1 for e in sides if e.dim() == 1) != tuple(counts.shape):
            raise InputError(
                "expected counts of one or two axes and for each axis one edge more than bins, got counts "
                f"{tuple(counts.shape)} and edges {[tuple(e.shape) for e in sides]}"
            )
        if any(not (e.diff() > 0).all() for e in sides):
            raise InputError("expected edges that increase, got some that do not")
        centres = torch.stack(torch.meshgrid(*((e[1:] + e[:-1]) / 2 for e in sides), indexing="ij"), -1)
        _refuse_bad_weights(counts.flatten(), zero=True)
        full = counts > 0
        if cls is TokenMeasure:
            return cls(centres[full], counts[full], normalise=normalise)
        if counts.dim() == 1:
            raise InputError("expected counts of two axes for a timed measure, time and place, got one")
        timed = cast(type[TimedMeasure], cls)
        return timed(centres[full][:, 0], centres[full][:, 1:], counts[full], normalise=normalise)

    @property
    def weights(self) -> Tensor:
        """Masses (n) in float64; those below 10⁻³⁰⁸ are 0 here and exact in `log_weights`."""
        return self.log_weights.exp()

    @property
    def n(self) -> int:
        return self.points.shape[0]

    @property
    def d(self) -> int:
        return self.points.shape[1]

    @property
    def equal(self) -> bool:
        """Whether all masses are the same."""
        return bool((self.log_weights == self.log_weights[0]).all())

    def with_points(self, points: Tensor):
        """The same masses at other places: the image of μ under a map of its atoms."""
        return TokenMeasure(points, log_weights=self.log_weights)

    def cpu(self):
        """The same measure in main memory, where distances are computed."""
        return self.with_points(self.points.cpu())

    def moved(self, direction: Tensor, eta: float):
        """Atoms moved to x_i + η u_i; direction (n, d)."""
        if not isinstance(direction, Tensor) or direction.shape != self.points.shape:
            got = tuple(direction.shape) if isinstance(direction, Tensor) else type(direction).__name__
            raise InputError(f"expected a direction of shape {tuple(self.points.shape)}, got {got}")
        return self.with_points(self.points + eta * direction.to(self.points))

    def merged(self):
        """Equal atoms joined, masses added, in the order of their coordinates."""
        return self._joined()[0]

    def repeated(self, k: int):
        """Each atom k times, with a k-th of its mass."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"expected a whole number of copies k ≥ 1, got {k!r}")
        index = torch.arange(self.n).repeat_interleave(k)
        return self._chosen(index, self.log_weights[index] - torch.log(torch.tensor(float(k), dtype=torch.float64)))

    def permuted(self, order):
        """Atoms in another order; the same measure."""
        order = torch.as_tensor(order)
        if order.shape != (self.n,) or not torch.equal(order.sort().values, torch.arange(self.n)):
            raise InputError(f"expected a permutation of 0 … {self.n - 1}, got {order.tolist()}")
        return self._chosen(order, self.log_weights[order])

    def _joined(self) -> tuple[TokenMeasure, Tensor]:
        """`merged`, and which of its atoms each atom became."""
        rows, place = torch.unique(self._rows(), dim=0, return_inverse=True)
        if len(rows) == self.n:
            return self, torch.arange(self.n, device=place.device)
        own = torch.arange(self.n, device=place.device)
        first = own.new_full((len(rows),), self.n).scatter_reduce(0, place, own, "amin")
        return self._chosen(first, _log_sums(self.log_weights, place, len(rows))), place

    def _rows(self) -> Tensor:
        return self.points.double()

    def _chosen(self, index: Tensor, log_weights: Tensor):
        return TokenMeasure(self.points[index], log_weights=log_weights)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, d={self.d}{', equal' if self.equal else ''})"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class TimedMeasure(TokenMeasure):
    """μ̄ = Σ a_i δ_{(τ_i, x_i)} with times in [0, 1]: what masked attention acts on. Ties are at one and the same time.

    >>> TimedMeasure.from_sequence(torch.eye(2)).times
    tensor([0.5000, 1.0000], dtype=torch.float64)
    """

    times: Tensor

    def __init__(self, times, points, weights=None, *, log_weights=None, normalise: bool = False):
        super().__init__(points, weights, log_weights=log_weights, normalise=normalise)
        times = _tensor(times, "times").to(self.points.device, torch.float64)
        if times.shape != (self.n,):
            raise InputError(f"expected a time for each of {self.n} atoms, got times of shape {tuple(times.shape)}")
        if not ((times >= 0) & (times <= 1)).all():
            wrong = times[~((times >= 0) & (times <= 1))][0]
            raise InputError(f"expected times in [0, 1], got {float(wrong)}; rescale them")
        object.__setattr__(self, "times", times)

    @classmethod
    def from_sequence(cls, points, weights=None, **masses) -> TimedMeasure:
        """One atom per time, x_i at i/n for i = 1 … n."""
        points = _points(points)
        return cls(torch.arange(1, len(points) + 1, dtype=torch.float64) / len(points), points, weights, **masses)

    def with_points(self, points: Tensor) -> TimedMeasure:
        return TimedMeasure(self.times, points, log_weights=self.log_weights)

    def slices(self) -> tuple[Tensor, list[Tensor]]:
        """The times that occur, increasing, and the indices of the atoms at each."""
        times, place = torch.unique(self.times, return_inverse=True)
        order = torch.argsort(place, stable=True)
        return times, list(order.split(torch.bincount(place).tolist()))

    def log_marginal(self) -> Tensor:
        """The logarithm of the mass at each time of `slices`: the marginal θ in time."""
        times, place = torch.unique(self.times, return_inverse=True)
        return _log_sums(self.log_weights, place, len(times))

    def _rows(self) -> Tensor:
        return torch.cat([self.times.unsqueeze(1), self.points.double()], 1)

    def _chosen(self, index: Tensor, log_weights: Tensor) -> TimedMeasure:
        return TimedMeasure(self.times[index], self.points[index], log_weights=log_weights)


def _log_sums(logs: Tensor, place: Tensor, count: int) -> Tensor:
    """The logarithm of Σ exp(logs) over the members of each place 0 … count − 1."""
    top = logs.new_full((count,), -torch.inf).scatter_reduce(0, place, logs, "amax")
    return top + torch.zeros_like(top).index_add(0, place, (logs - top[place]).exp()).log()


def _tensor(values, what: str) -> Tensor:
    try:
        # A copy: a measure does not change with what it came from.
        t = (values.detach() if isinstance(values, Tensor) else torch.as_tensor(_doubles(values))).clone()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"expected {what} as a tensor, an array or lists of numbers, got {type(values).__name__}"
        ) from None
    if t.dtype.is_complex or t.dtype == torch.bool:
        raise InputError(f"expected {what} as real numbers, got {t.dtype}")
    return t


def _doubles(values):
    """Lists of Python numbers are doubles; arrays keep their dtype."""
    return torch.tensor(values, dtype=torch.float64) if isinstance(values, Sequence) else values


def _points(points) -> Tensor:
    points = _tensor(points, "points")
    if points.dim() != 2:
        raise InputError(f"expected points of shape (n, d), got {tuple(points.shape)}; use unsqueeze for d = 1")
    if 0 in points.shape:
        raise InputError(
            f"expected at least one atom of at least one coordinate, got points {tuple(points.shape)}: "
            "a probability measure is not empty"
        )
    points = points if points.dtype.is_floating_point else points.double()
    if not torch.isfinite(points).all():
        raise InputError("expected finite points, got NaN or ∞")
    return points


def _logs(n: int, weights, log_weights, normalise: bool, device) -> Tensor:
    if weights is not None and log_weights is not None:
        raise InputError("expected weights or log_weights, got both")
    if weights is None and log_weights is None:
        return -torch.full((n,), float(n), dtype=torch.float64, device=device).log()
    given = _tensor(weights if log_weights is None else log_weights, "weights")
    if given.shape != (n,):
        raise InputError(f"expected a weight for each of {n} atoms, got weights of shape {tuple(given.shape)}")
    precise = given.dtype == torch.float64 or not given.dtype.is_floating_point
    rounding = 1e-9 if precise else min(1e-9 + n**0.5 * torch.finfo(given.dtype).eps, 1e-3)
    logs = given.to(device=device, dtype=torch.float64)
    if log_weights is None:
        _refuse_bad_weights(logs)
        logs = logs.log()
    elif not torch.isfinite(logs).all():
        raise InputError(
            f"expected finite log weights, got {float(logs[~torch.isfinite(logs)][0])}; leave out atoms without mass"
        )
    total = torch.logsumexp(logs, 0)
    if not normalise and abs(float(torch.expm1(total))) > rounding:
        raise InputError(
            f"expected weights that sum to 1, got a sum of {float(total.exp()):.10g}; say normalise=True "
            "to divide by it"
        )
    return logs - total if normalise or not precise else logs


def _refuse_bad_weights(weights: Tensor, zero: bool = False) -> None:
    wrong = ~torch.isfinite(weights) | (weights < 0) | ((weights == 0) & (not zero))
    if wrong.any():
        i, hint = int(torch.nonzero(wrong)[0]), "; leave out atoms without mass" if (weights[wrong] == 0).all() else ""
        raise InputError(f"expected finite positive weights, got {float(weights[i])} at atom {i}{hint}")


def push_forward(field: Field, measure: TokenMeasure) -> TokenMeasure:
    """(Γ_μ)♯μ: every atom moves to Γ_μ(x) with its mass; of a timed measure it sees times up to its own.

    >>> import torch
    >>> from howsmooth.attention import MeanPooling
    >>> mu = TimedMeasure.from_sequence(torch.tensor([[0.0], [4.0]], dtype=torch.float64))
    >>> push_forward(MeanPooling(torch.eye(1, dtype=torch.float64)), mu).points.flatten()
    tensor([0., 2.], dtype=torch.float64)
    """
    if not isinstance(field, Field) or not isinstance(measure, TokenMeasure):
        raise InputError(
            "expected a field (SoftmaxField, MeanPooling, …) and a TokenMeasure or TimedMeasure, got "
            f"{type(field).__name__} and {type(measure).__name__}"
        )
    if measure.d != field.d:
        raise InputError(f"expected a measure in dimension {field.d} for this {field.name} field, got {measure.d}")
    x = measure.points
    # Equal masses say nothing to a softmax: without them the map is the layer's own, to the last bit.
    logs = None if measure.equal else measure.log_weights.to(x)
    if isinstance(measure, TimedMeasure):
        return measure.with_points(field(x, x, logs, times=measure.times, source_times=measure.times).detach())
    refuse_without_order(field.layer if isinstance(field, SoftmaxField) else None, measure)
    return measure.with_points(field(x, x, logs).detach())


def refuse_without_order(layer: SelfAttention | None, measure: TokenMeasure) -> None:
    """A causal layer goes by the order of atoms, which a measure without times does not have."""
    if layer is not None and layer.causal and not isinstance(measure, TimedMeasure):
        raise InputError(
            "expected a TimedMeasure for a causal layer, got a TokenMeasure, whose atoms have no order; "
            "use TimedMeasure.from_sequence(x)"
        )
