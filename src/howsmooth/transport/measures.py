"""Probability measures on tokens, with or without times in [0, 1], and attention as a map of measures.

Weights are stored by their logarithms, so that 10⁻⁴⁰ and 1 − 10⁻⁴⁰ are both exact: a measure with two atoms can stand
for exponentially many tokens. Attention maps a measure μ to `F(μ) = (Γ_μ)♯μ`, and atoms (s, x) with times to
`(s, Γ_μ(s, x))`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

import torch
from torch import Tensor

from howsmooth.attention.fields.field import Field
from howsmooth.attention.fields.softmax import SoftmaxField
from howsmooth.attention.heads import SelfAttention
from howsmooth.errors import InputError

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = Tensor | npt.NDArray[Any] | Sequence[Any]  # numbers, or lists of numbers
    Sample = Array | tuple[Array, Array]  # points, or times and points


@dataclass(frozen=True, eq=False, init=False)
class TokenMeasure:
    """A probability measure μ = Σ a_i δ_{x_i}.

    Args:
        points: atoms x_i, (n, d).
        weights: a_i > 0, (n,); equal weights by default.
        log_weights: log a_i, (n,), instead of `weights`, where weights are too small for a float64.
        normalise: whether to divide the weights by their sum; otherwise the sum must be 1 up to rounding.

    Attributes:
        points: atoms x_i, (n, d), in the dtype given.
        log_weights: log a_i, (n,), in float64.

    Raises:
        InputError: if points or weights are not finite, not of these shapes, or weights are not positive.

    Example:
        >>> mu = TokenMeasure(torch.tensor([[0.0], [1.0], [1.0]]), [0.5, 0.25, 0.25])
        >>> mu.merged().weights
        tensor([0.5000, 0.5000], dtype=torch.float64)
    """

    points: Tensor
    log_weights: Tensor

    def __init__(
        self, points: Array, weights: Array | None = None, *, log_weights: Array | None = None, normalise: bool = False
    ):
        """Copy and check the atoms and weights."""
        atoms = _checked_points(points)
        object.__setattr__(self, "points", atoms)
        logs = _checked_log_weights(len(atoms), weights, log_weights, normalise, atoms.device)
        object.__setattr__(self, "log_weights", logs)

    @classmethod
    def from_sampler(
        cls, sampler: Callable[[int, torch.Generator], Sample], n: int, generator: torch.Generator
    ) -> Self:
        """Return the empirical measure of n samples.

        Args:
            sampler: function (n, generator) → points (n, d); for a timed measure → times (n,) and points (n, d).
            n: number of atoms.
            generator: source of randomness.

        Raises:
            InputError: if the sampler returns something else.

        Example:
            >>> draw = lambda n, generator: torch.randn(n, 2, generator=generator)
            >>> TokenMeasure.from_sampler(draw, 5, torch.Generator().manual_seed(0))
            TokenMeasure(n=5, d=2, equal)
        """
        if not callable(sampler) or not isinstance(generator, torch.Generator):
            raise InputError(
                "expected a sampler (n, generator) → atoms and a torch.Generator, got "
                f"{type(sampler).__name__} and {type(generator).__name__}"
            )
        drawn = sampler(n, generator)
        if not issubclass(cls, TimedMeasure):
            measure = cls(drawn)
        elif isinstance(drawn, tuple | list) and len(drawn) == 2:
            measure = cls(drawn[0], drawn[1])
        else:
            raise InputError(f"expected times (n) and points (n, d) from the sampler, got {type(drawn).__name__}")
        if measure.n != n:
            raise InputError(f"expected {n} atoms from the sampler, got {measure.n}")
        return measure

    @classmethod
    def from_histogram(cls, counts: Array, *edges: Array, normalise: bool = False) -> Self:
        """Return the measure on the centres of the bins of a histogram, with the counts as weights.

        Args:
            counts: counts of the bins, (bins,) or (bins, bins), as `numpy.histogram` and `histogram2d` return them;
                empty bins are left out. For a timed measure the first of two axes is the time.
            edges: edges of the bins of each axis, (bins + 1,).
            normalise: whether to divide the counts by their sum.

        Raises:
            InputError: if counts and edges do not fit together.

        Example:
            >>> TokenMeasure.from_histogram([1, 0, 3], [0.0, 1.0, 2.0, 3.0], normalise=True).points.flatten()
            tensor([0.5000, 2.5000], dtype=torch.float64)
        """
        heights = _tensor(counts, "counts").double()
        axes = [_tensor(e, "edges").double() for e in edges]
        if heights.dim() not in (1, 2) or tuple(len(e) - 1 for e in axes if e.dim() == 1) != tuple(heights.shape):
            raise InputError(
                "expected counts of one or two axes and for each axis one edge more than bins, got counts "
                f"{tuple(heights.shape)} and edges {[tuple(e.shape) for e in axes]}"
            )
        if any(not (e.diff() > 0).all() for e in axes):
            raise InputError("expected edges that increase, got some that do not")
        centres = torch.stack(torch.meshgrid(*((e[1:] + e[:-1]) / 2 for e in axes), indexing="ij"), -1)
        _check_weights(heights.flatten(), allow_zero=True)
        occupied = heights > 0
        atoms, weights = centres[occupied], heights[occupied]
        if not issubclass(cls, TimedMeasure):
            return cls(atoms, weights, normalise=normalise)
        if heights.dim() == 1:
            raise InputError("expected counts of two axes for a timed measure, time and position, got one")
        return cls(atoms[:, 0], atoms[:, 1:], weights, normalise=normalise)

    @property
    def weights(self) -> Tensor:
        """Weights (n,) in float64; those below 10⁻³⁰⁸ are 0 here and exact in `log_weights`."""
        return self.log_weights.exp()

    @property
    def n(self) -> int:
        """Number of atoms."""
        return self.points.shape[0]

    @property
    def d(self) -> int:
        """Dimension of the points."""
        return self.points.shape[1]

    @property
    def equal(self) -> bool:
        """Whether all weights are equal."""
        return bool((self.log_weights == self.log_weights[0]).all())

    def with_points(self, points: Array) -> Self:
        """Return the measure with the same weights at other points, its image under a map of the atoms."""
        return type(self)(points=points, log_weights=self.log_weights, **self._times())

    def cpu(self) -> Self:
        """Return the same measure in CPU memory, where distances are computed."""
        return self.with_points(self.points.cpu())

    def moved(self, direction: Tensor, eta: float) -> Self:
        """Return the measure with atoms x_i + η u_i, for a direction u (n, d)."""
        if not isinstance(direction, Tensor) or direction.shape != self.points.shape:
            got = tuple(direction.shape) if isinstance(direction, Tensor) else type(direction).__name__
            raise InputError(f"expected a direction of shape {tuple(self.points.shape)}, got {got}")
        return self.with_points(self.points + eta * direction.to(self.points))

    def merged(self) -> Self:
        """Return the same measure with equal atoms merged, sorted by their coordinates."""
        return self._merge()[0]

    def repeated(self, k: int) -> Self:
        """Return the same measure with each atom repeated k times, with 1/k of its weight."""
        if isinstance(k, bool) or not isinstance(k, int) or k < 1:
            raise InputError(f"expected a whole number of copies k ≥ 1, got {k!r}")
        index = torch.arange(self.n).repeat_interleave(k)
        return self._select(index, self.log_weights[index] - torch.log(torch.tensor(float(k), dtype=torch.float64)))

    def permuted(self, order: Array) -> Self:
        """Return the same measure with its atoms in another order, a permutation of 0 … n − 1."""
        order = torch.as_tensor(order)
        if order.shape != (self.n,) or not torch.equal(order.sort().values, torch.arange(self.n)):
            raise InputError(f"expected a permutation of 0 … {self.n - 1}, got {order.tolist()}")
        return self._select(order, self.log_weights[order])

    def _merge(self) -> tuple[Self, Tensor]:
        """Return `merged()`, and the index of the merged atom of each atom, (n,)."""
        rows, group = torch.unique(self._rows(), dim=0, return_inverse=True)
        own = torch.arange(self.n, device=group.device)
        if len(rows) == self.n:
            return self, own
        first = own.new_full((len(rows),), self.n).scatter_reduce(0, group, own, "amin")
        return self._select(first, _log_sums(self.log_weights, group, len(rows))), group

    def _rows(self) -> Tensor:
        """Return the coordinates by which atoms are equal, (n, ·)."""
        return self.points.double()

    def _times(self, index: Tensor | None = None) -> dict[str, Any]:
        """Return the further arguments of the constructor, of all atoms or of those with an index."""
        return {}

    def _select(self, index: Tensor, log_weights: Tensor) -> Self:
        """Return the measure of the atoms with these indices, with other weights."""
        return type(self)(points=self.points[index], log_weights=log_weights, **self._times(index))

    def __repr__(self) -> str:
        """Return the class, n, d, and whether weights are equal."""
        return f"{type(self).__name__}(n={self.n}, d={self.d}{', equal' if self.equal else ''})"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class TimedMeasure(TokenMeasure):
    """A probability measure μ̄ = Σ a_i δ_{(τ_i, x_i)} with times, on which masked attention acts.

    Args:
        times: τ_i in [0, 1], (n,); several atoms may have the same time.
        points: atoms x_i, (n, d).
        weights: a_i > 0, (n,); equal weights by default.
        log_weights: log a_i, (n,), instead of `weights`.
        normalise: whether to divide the weights by their sum.

    Attributes:
        times: τ_i, (n,), in float64.

    Raises:
        InputError: as for `TokenMeasure`, and if times are outside [0, 1].

    Example:
        >>> TimedMeasure.from_sequence(torch.eye(2)).times
        tensor([0.5000, 1.0000], dtype=torch.float64)
    """

    times: Tensor

    def __init__(
        self,
        times: Array,
        points: Array,
        weights: Array | None = None,
        *,
        log_weights: Array | None = None,
        normalise: bool = False,
    ):
        """Copy and check the times, atoms and weights."""
        super().__init__(points, weights, log_weights=log_weights, normalise=normalise)
        times = _tensor(times, "times").to(self.points.device, torch.float64)
        if times.shape != (self.n,):
            raise InputError(f"expected a time for each of {self.n} atoms, got times of shape {tuple(times.shape)}")
        if not ((times >= 0) & (times <= 1)).all():
            wrong = times[~((times >= 0) & (times <= 1))][0]
            raise InputError(f"expected times in [0, 1], got {float(wrong)}; rescale them")
        object.__setattr__(self, "times", times)

    @classmethod
    def from_sequence(
        cls, points: Array, weights: Array | None = None, *, log_weights: Array | None = None, normalise: bool = False
    ) -> TimedMeasure:
        """Return the measure of a sequence (n, d): one atom per time, x_i at time i/n for i = 1 … n."""
        atoms = _checked_points(points)
        times = torch.arange(1, len(atoms) + 1, dtype=torch.float64) / len(atoms)
        return cls(times, atoms, weights, log_weights=log_weights, normalise=normalise)

    def slices(self) -> tuple[Tensor, list[Tensor]]:
        """Return the distinct times in increasing order, and the indices of the atoms at each."""
        times, group = torch.unique(self.times, return_inverse=True)
        order = torch.argsort(group, stable=True)
        return times, list(torch.split(order, torch.bincount(group).tolist()))

    def log_marginal(self) -> Tensor:
        """Return the log weight of each time of `slices`: the marginal θ in time."""
        times, group = torch.unique(self.times, return_inverse=True)
        return _log_sums(self.log_weights, group, len(times))

    def _rows(self) -> Tensor:
        return torch.cat([self.times.unsqueeze(1), self.points.double()], 1)

    def _times(self, index: Tensor | None = None) -> dict[str, Any]:
        return {"times": self.times if index is None else self.times[index]}


def _log_sums(logs: Tensor, group: Tensor, count: int) -> Tensor:
    """Return log Σ exp(logs) over the members of each group 0 … count − 1, (count,)."""
    top = logs.new_full((count,), -torch.inf).scatter_reduce(0, group, logs, "amax")
    return top + torch.zeros_like(top).index_add(0, group, (logs - top[group]).exp()).log()


def _tensor(values: Any, what: str) -> Tensor:
    """Return a copy of real numbers as a tensor, so that a measure does not change with its source."""
    try:
        if isinstance(values, Tensor):
            t = values.detach().clone()
        elif isinstance(values, Sequence):  # Python numbers are doubles
            t = torch.tensor(values, dtype=torch.float64)
        else:
            t = torch.as_tensor(values).clone()
    except (TypeError, ValueError, RuntimeError):
        raise InputError(
            f"expected {what} as a tensor, an array or lists of numbers, got {type(values).__name__}"
        ) from None
    if t.dtype.is_complex or t.dtype == torch.bool:
        raise InputError(f"expected {what} as real numbers, got {t.dtype}")
    return t


def _checked_points(values: Any) -> Tensor:
    """Return points (n, d) as a floating tensor."""
    points = _tensor(values, "points")
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


def _checked_log_weights(n: int, weights: Any, log_weights: Any, normalise: bool, device: torch.device) -> Tensor:
    """Return the log weights (n,) in float64, of sum 1."""
    if weights is not None and log_weights is not None:
        raise InputError("expected weights or log_weights, got both")
    if weights is None and log_weights is None:
        return -torch.full((n,), float(n), dtype=torch.float64, device=device).log()
    given = _tensor(weights if log_weights is None else log_weights, "weights")
    if given.shape != (n,):
        raise InputError(f"expected a weight for each of {n} atoms, got weights of shape {tuple(given.shape)}")
    precise = given.dtype == torch.float64 or not given.dtype.is_floating_point
    rounding = 1e-9 if precise else min(1e-9 + float(n) ** 0.5 * torch.finfo(given.dtype).eps, 1e-3)
    logs = given.to(device=device, dtype=torch.float64)
    if log_weights is None:
        _check_weights(logs)
        logs = logs.log()
    elif not torch.isfinite(logs).all():
        raise InputError(
            f"expected finite log weights, got {float(logs[~torch.isfinite(logs)][0])}; leave out atoms without mass"
        )
    total = torch.logsumexp(logs, 0)
    if not normalise and abs(float(torch.expm1(total))) > rounding:
        raise InputError(
            f"expected weights that sum to 1, got a sum of {float(total.exp()):.10g}; pass normalise=True "
            "to divide by it"
        )
    return logs - total if normalise or not precise else logs


def _check_weights(weights: Tensor, allow_zero: bool = False) -> None:
    """Raise an InputError unless weights are finite and positive."""
    wrong = ~torch.isfinite(weights) | (weights < 0) | ((weights == 0) & (not allow_zero))
    if wrong.any():
        i, hint = int(torch.nonzero(wrong)[0]), "; leave out atoms without mass" if (weights[wrong] == 0).all() else ""
        raise InputError(f"expected finite positive weights, got {float(weights[i])} at atom {i}{hint}")


Measure = TypeVar("Measure", bound=TokenMeasure)


def push_forward(field: Field, measure: Measure) -> Measure:
    """Return the image (Γ_μ)♯μ of a measure under attention: each atom x moves to Γ_μ(x) and keeps its weight.

    An atom of a timed measure attends to atoms at times up to its own.

    Args:
        field: Γ, such as `SoftmaxField(layer)`.
        measure: μ, in the dimension of the field; a `TimedMeasure` for causal layers.

    Returns:
        A measure of the same type, with the same weights and times.

    Raises:
        InputError: if the dimensions differ, or a causal layer gets a measure without times.

    Example:
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
    # Softmax cancels equal weights: without them the image is bitwise that of the layer.
    logs = None if measure.equal else measure.log_weights.to(x)
    if isinstance(measure, TimedMeasure):
        return measure.with_points(field(x, x, logs, times=measure.times, source_times=measure.times).detach())
    refuse_without_order(field.layer if isinstance(field, SoftmaxField) else None, measure)
    return measure.with_points(field(x, x, logs).detach())


def refuse_without_order(layer: SelfAttention | None, measure: TokenMeasure) -> None:
    """Raise an InputError for a causal layer and a measure without times, whose atoms have no order."""
    if layer is not None and layer.causal and not isinstance(measure, TimedMeasure):
        raise InputError(
            "expected a TimedMeasure for a causal layer, got a TokenMeasure, whose atoms have no order; "
            "use TimedMeasure.from_sequence(x), or a file with times"
        )
