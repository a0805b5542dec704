"""The largest constant of n tokens at two points, as a function of n: √n, √n·log n, and a plateau.

In d = 1 with V = 1 only the sign of A matters if tokens are measured in units of 1/√|A|. They then lie in [−√a, √a],
with a = |A|R². The curve is the largest constant of a sequence of n tokens at two points y and z of that interval, k of
them at y, maximised over y, z and k. It is exact for such sequences (see `two_atoms`), so it is a lower bound on the
constant of all sequences in B_R^n, and on that of every layer with an eigenvector of A and V = I. Lengths are given as
logarithms.

One isolated token at y (k = 1) is optimal up to a length n*, where its constant reaches the supremum over all measures
on two points. For longer sequences k ≈ n/n* isolated tokens reach the same supremum: the plateau. (If R is large and n
is small, two equal halves may be better.)

The maximum is taken over Δ = ⟨Az, y − z⟩ instead of z. At the maximum Δ differs from the log ratio L of the two numbers
of tokens by O(1), however large both are; as a function of z the maximum would be extremely narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.errors import InputError
from howsmooth.lipschitz.two_atoms import sequence_norm, two_atom_norm, zero_sum_norm

SCORES = ("negative", "positive")
LARGEST_A, LARGEST_LOG_N = 1e6, 1e7
_LOG_MAX_INTEGER = math.log(2.0**53)  # for longer sequences, the number of isolated tokens need not be an integer
# The maximisation refines a grid around its best points.
_CANDIDATES, _REFINEMENTS, _STEP_FACTOR = 6, 50, 0.7
_ONE = torch.ones(1, 1, dtype=torch.float64)
_BRANCHES = torch.tensor([-1.0, 1.0], dtype=torch.float64)  # signs of the two root_weights z of ⟨Az, y − z⟩ = Δ
SCORE_MATRICES = {
    "negative": -_ONE,
    "positive": _ONE,
    "rotation": torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64),
}


@dataclass(frozen=True)
class RegimePoint:
    """The largest constant of n tokens at two points, and the sequence that attains it.

    Attributes:
        log_n: Logarithm of the number of tokens.
        log_value: Logarithm of the constant.
        y: The point with fewer tokens, in units of 1/√|A|.
        z: The point with more tokens, in the same units.
        log_isolated: Logarithm of the number of tokens at y.
        apart: Whether the worst perturbation has sum zero at one point, rather than moving all its tokens alike.
        log_at_radius: Logarithm of the constant of the published sequence, (R, −R, …, −R) or (R, R/2, …, R/2).
    """

    log_n: float
    log_value: float
    y: float
    z: float
    log_isolated: float
    apart: bool
    log_at_radius: float

    def as_record(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self)


@dataclass(frozen=True)
class Plateau:
    """The supremum over all measures on two points, and n*, the smallest length at which a sequence attains it.

    Attributes:
        a: `|A|R²`.
        scores: Sign of A, "negative" or "positive".
        gamma_r2: `γR²`.
        log_value: Logarithm of the supremum.
        log_crossover: `log n*`.
        y: The point of smaller mass, in units of 1/√|A|.
        z: The point of larger mass, in the same units.
    """

    a: float
    scores: str
    gamma_r2: float
    log_value: float
    log_crossover: float
    y: float
    z: float

    @property
    def log_isolated_mass(self) -> float:
        """The logarithm of the smaller mass, 1/n*."""
        return -self.log_crossover

    def as_record(self) -> dict[str, Any]:
        """Return the fields as a dictionary."""
        return asdict(self) | {"log_isolated_mass": self.log_isolated_mass}


def unit_layer(scores: str, size: float = 1.0, causal: bool = False) -> SelfAttention:
    """Return one head with V = I and A = size times a matrix of `SCORE_MATRICES`: ∓1, or a quarter turn in d = 2.

    Example:
        >>> unit_layer("rotation", 3.0).d
        2
    """
    if scores not in SCORE_MATRICES:
        raise InputError(f"expected scores to be one of {', '.join(SCORE_MATRICES)}, got {scores!r}")
    A = SCORE_MATRICES[scores]
    eye = torch.eye(len(A), dtype=torch.float64)
    return SelfAttention(size * A, eye, eye, scale=1.0, causal=causal)


def lengths_up_to(power: float, points: int) -> list[float]:
    """Return log n for lengths n from 2 to 10^power, evenly spaced in log n; n is an integer up to 2⁵³.

    Args:
        power: Exponent of the longest length.
        points: Number of lengths.

    Example:
        >>> [round(math.exp(log_n), 6) for log_n in lengths_up_to(2, 4)]
        [2.0, 7.0, 27.0, 100.0]
    """
    first, last = math.log(2), power * math.log(10)
    logs = [first + (last - first) * index / (points - 1) for index in range(points)]
    return list(dict.fromkeys(math.log(round(math.exp(log))) if log < 53 * first else log for log in logs))


def a_from_gamma(gamma_r2: float, scores: str = "negative") -> float:
    """Return a = |A|R² for γR², where γ is |A| for negative A, and |A|/8 for positive A.

    Example:
        >>> a_from_gamma(2.0), a_from_gamma(2.0, "positive")
        (2.0, 16.0)
    """
    _check_arguments(gamma_r2, scores)
    return gamma_r2 if scores == "negative" else 8 * gamma_r2


def plateau(gamma_r2: float, scores: str = "negative") -> Plateau:
    """Compute the mean-field supremum over measures on two points, and the measure that attains it.

    Args:
        gamma_r2: `γR²`.
        scores: Sign of A, "negative" or "positive".

    Returns:
        The supremum and its measure.

    Raises:
        InputError: If `gamma_r2` or `scores` is out of range.

    Example:
        >>> found = plateau(4.0)
        >>> round(found.log_value - 4, 3), round(found.log_crossover - 8, 3)  # Lip ≈ 3.04 e^{γR²}, n* ≈ 2.7 e^{2γR²}
        (1.111, 0.995)
    """
    a = a_from_gamma(gamma_r2, scores)
    ends = torch.tensor(_delta_range(a, scores), dtype=torch.float64)
    best = _maximise(a, scores, ends[:1] - 20, ends[1:] + 20)
    y, z = _order_points(best.y, best.z, best.L < 0)
    # If equal tokens are optimal, a single token attains the supremum.
    crossover = 0.0 if float(y) == float(z) else float(best.L.abs() + torch.log1p(torch.exp(-best.L.abs())))
    return Plateau(a, scores, float(gamma_r2), float(best.log_value), crossover, float(y), float(z))


def regime_curve(gamma_r2: float, log_lengths: Sequence[float], scores: str = "negative") -> list[RegimePoint]:
    """Compute the largest constant of n tokens at two points of the ball, for each length.

    Args:
        gamma_r2: `γR²`.
        log_lengths: Logarithms of the lengths, each at least log 2.
        scores: Sign of A, "negative" or "positive".

    Returns:
        One point per length.

    Raises:
        InputError: If an argument is out of range.

    Example:
        >>> points = regime_curve(50.0, [math.log(10) * exponent for exponent in (2, 40)])
        >>> [round(point.log_value / math.log(10), 2) for point in points]
        [1.37, 21.37]
    """
    a = a_from_gamma(gamma_r2, scores)
    log_n = torch.tensor([_check_length(length) for length in log_lengths], dtype=torch.float64)
    max_ratio = _log_difference(log_n, torch.zeros_like(log_n))
    # First the best real number of tokens at the point that has fewer, then the two integers around it, and 1.
    relaxed = _maximise(a, scores, -max_ratio, max_ratio)
    log_k = (log_n - torch.nn.functional.softplus(relaxed.L.abs(), threshold=700.0)).clamp(min=0)
    found = [_best_points(a, scores, log_n, torch.zeros_like(log_n), sign) for sign in (1, -1)]
    for rounded in (torch.floor, torch.ceil):
        k = torch.minimum(rounded(log_k.exp()).clamp(min=1.0), (log_n.exp() / 2).round().clamp(min=1.0))
        integer_log_k = torch.where(log_n > _LOG_MAX_INTEGER, log_k, k.log())
        found.append(_best_points(a, scores, log_n, integer_log_k, relaxed.L.sign()))
    return [max(points, key=lambda point: point.log_value) for points in zip(*found, strict=True)]


def _best_points(a: float, scores: str, log_n: Tensor, log_k: Tensor, sign: Tensor | int) -> list[RegimePoint]:
    """Maximise over y and z for n tokens, k of them at y (sign = 1) or at z (sign = −1)."""
    log_rest, at_least_two = _log_difference(log_n, log_k), math.log(1.5)  # the threshold between one token and two
    sign = torch.as_tensor(sign, dtype=torch.float64).expand_as(log_n)
    sign = torch.where(sign == 0, 1.0, sign)
    several_at_z, several_at_y = (
        torch.where(sign > 0, *pair) > at_least_two for pair in ((log_rest, log_k), (log_k, log_rest))
    )
    L = sign * (log_rest - log_k)
    best = _maximise(a, scores, L, L, several_at_z, several_at_y)
    y, z = _order_points(best.y, best.z, sign < 0)
    columns = (log_n, best.log_value, y, z, log_k, best.zero_sum, _published_norm(a, scores, log_n))
    return [RegimePoint(*row) for row in zip(*(t.tolist() for t in columns), strict=True)]


def _order_points(y: Tensor, z: Tensor, swapped: Tensor) -> tuple[Tensor, Tensor]:
    """Return the point with fewer tokens first, reflected to the positive side, which has the same constant."""
    y, z = torch.where(swapped, z, y), torch.where(swapped, y, z)
    side = torch.where(y < 0, -1.0, 1.0).to(y)
    return side * y, side * z


@dataclass(frozen=True, eq=False)
class _Maximum:
    """The maxima for b ranges of the log ratio L, (b,) each."""

    log_value: Tensor
    y: Tensor
    z: Tensor
    L: Tensor
    zero_sum: Tensor  # whether the worst perturbation has sum zero at one point


def _maximise(
    a: float,
    scores: str,
    low: Tensor,
    high: Tensor,
    several_at_z: Tensor | None = None,
    several_at_y: Tensor | None = None,
) -> _Maximum:
    """Maximise over y, z and low ≤ L ≤ high, (b,): on a grid, then on finer grids around its best points.

    `several_at_z` and `several_at_y` state whether there are at least two tokens at a point, so that perturbations of
    sum zero exist; always by default.
    """
    R, A = math.sqrt(a), -_ONE if scores == "negative" else _ONE
    low, high = low.unsqueeze(1), high.unsqueeze(1)

    def evaluate(y: Tensor, delta: Tensor, L: Tensor, branch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = _solve_for_z(scores, y, delta, branch)
        outside = ~(z.abs() <= R * (1 + 1e-14))  # also NaN, where there is no such z
        points = y.unsqueeze(-1), torch.where(outside, 0.0, z).clamp(-R, R).unsqueeze(-1)
        common = two_atom_norm(A, _ONE, *points, L)
        zero_sum = torch.full_like(common, -torch.inf)
        for several, at in ((several_at_z, "z"), (several_at_y, "y")):
            norm = zero_sum_norm(A, _ONE, *points, L, at=at)
            norm = norm if several is None else norm.masked_fill(~several.unsqueeze(1), -torch.inf)
            zero_sum = torch.maximum(zero_sum, norm)
        log_value = torch.maximum(common, zero_sum).masked_fill(outside, -torch.inf)
        return log_value, points[1].squeeze(-1), zero_sum > common

    y, delta, lead, branch = _initial_grid(a, scores, low, high)  # lead = Δ − L
    L = torch.minimum(torch.maximum(delta - lead, low), high)
    candidates = evaluate(y, delta, L, branch)[0].topk(_CANDIDATES, dim=1).indices
    y, delta, lead, branch = (t.gather(1, candidates) for t in (y, delta, lead, branch))

    offsets = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    fixed = bool((low == high).all())
    stencil = torch.cartesian_prod(offsets, offsets, torch.zeros(1).double() if fixed else offsets)  # of y, Δ and lead
    steps = torch.tensor([R / 10, 1.0 if fixed else max(1.0, 2.25 * a / 60), 1.0], dtype=torch.float64)

    def neighbours(t: Tensor, axis: int, step: Tensor) -> Tensor:
        return (t.unsqueeze(-1) + step * stencil[:, axis]).flatten(1)

    branches = branch.repeat_interleave(len(stencil), 1)
    for _ in range(_REFINEMENTS):
        new_y = neighbours(y, 0, steps[0]).clamp(0, R)
        # Δ is cut off at its boundary, |z| = R: the maximum is often there, and moves along it with y.
        new_delta = torch.minimum(neighbours(delta, 1, steps[1]), _largest_delta(scores, R, new_y, branches))
        new_lead = neighbours(lead, 2, steps[2])
        new_L = torch.minimum(torch.maximum(new_delta - new_lead, low), high)
        values = evaluate(new_y, new_delta, new_L, branches)[0].unflatten(1, (_CANDIDATES, -1))
        best = values.argmax(-1, keepdim=True)
        y, delta, lead, L = (
            t.unflatten(1, (_CANDIDATES, -1)).gather(-1, best).squeeze(-1)
            for t in (new_y, new_delta, new_delta - new_L, new_L)
        )
        steps = _STEP_FACTOR * steps
    values, z, zero_sum = evaluate(y, delta, L, branch)
    best = values.argmax(1, keepdim=True)
    return _Maximum(*(t.gather(1, best).squeeze(1) for t in (values, y, z, L, zero_sum)))


def _initial_grid(a: float, scores: str, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
    """Return y, Δ, Δ − L and the branch of z on a grid, (b, points) each; L is at the ends of its range, or inside."""
    R, (min_delta, max_delta) = math.sqrt(a), _delta_range(a, scores)

    def grid(*axes: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.flatten().expand(len(low), -1) for t in torch.meshgrid(*axes, _BRANCHES, indexing="ij"))

    large_leads = torch.logspace(1, math.log10(max(max_delta, 11.0)), 20, dtype=torch.float64)
    y, lead, branch = grid(_linspace(0, R, 21), torch.cat([_linspace(-10, 10, 81), large_leads]))
    fixed = bool((low == high).all())
    parts = [(y, end + lead, lead, branch) for end in ((low,) if fixed else (low, high))]
    y, zero, branch = grid(_linspace(0, R, 21), torch.zeros(1, dtype=torch.float64))  # Δ = 0 includes equal tokens
    parts.append((y, zero, zero - low, branch))
    if not fixed:
        y, delta, lead, branch = grid(_linspace(0, R, 11), _linspace(min_delta, max_delta, 61), _linspace(-6, 6, 13))
        parts.append((y, delta, lead, branch))
    return tuple(torch.cat(columns, 1) for columns in zip(*parts, strict=True))


def _linspace(first: float, last: float, count: int) -> Tensor:
    return torch.linspace(first, last, count, dtype=torch.float64)


def _delta_range(a: float, scores: str) -> tuple[float, float]:
    """Return the smallest and the largest Δ for y and z in the interval."""
    return (-a / 4, 2 * a) if scores == "negative" else (-2 * a, a / 4)


def _solve_for_z(scores: str, y: Tensor, delta: Tensor, branch: Tensor) -> Tensor:
    """Return one of the two z with ⟨Az, y − z⟩ = Δ for A = ∓1; NaN if there is none."""
    return (y + branch * (y * y + (4 if scores == "negative" else -4) * delta).sqrt()) / 2


def _largest_delta(scores: str, R: float, y: Tensor, branch: Tensor) -> Tensor:
    """Return the Δ at which z reaches the end of the interval or, for A = 1, at which both root_weights z coincide."""
    if scores == "positive":
        return y * y / 4
    return R * R - branch * R * y


def _published_norm(a: float, scores: str, log_n: Tensor) -> Tensor:
    """Return the log constants of (R, −R, …, −R) or (R, R/2, …, R/2)."""
    R = torch.tensor([math.sqrt(a)], dtype=torch.float64)
    z, A = (-R, -_ONE) if scores == "negative" else (R / 2, _ONE)
    return sequence_norm(A, _ONE, R, z, _log_difference(log_n, torch.zeros_like(log_n)))


def _log_difference(log_n: Tensor, log_k: Tensor) -> Tensor:
    """Return log(n − k) from log n and log k."""
    return log_n + torch.log(-torch.expm1(log_k - log_n))


def _check_length(log_n: float) -> float:
    if isinstance(log_n, bool) or not isinstance(log_n, Real) or not math.log(2) - 1e-12 <= log_n <= LARGEST_LOG_N:
        raise InputError(f"expected log n from log 2 to {LARGEST_LOG_N:g}, got {log_n!r}; give math.log(n)")
    return float(log_n)


def _check_arguments(gamma_r2: float, scores: str) -> None:
    if scores not in SCORES:
        raise InputError(f"expected scores to be one of {', '.join(SCORES)} (the sign of A), got {scores!r}")
    if isinstance(gamma_r2, bool) or not isinstance(gamma_r2, Real) or not 0 <= gamma_r2 <= LARGEST_A / 8:
        raise InputError(f"expected γR² from 0 to {LARGEST_A / 8:g}, got {gamma_r2!r}; give γ·R² as a number")
