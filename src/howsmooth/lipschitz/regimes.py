"""The whole curve of Lip against n on two places: √n, √n·log n, and the plateau where length no longer matters.

In d = 1 with V = 1 only the sign of A matters, tokens being counted in units of 1/√|A|: they fill [−√a, √a], a = |A|R².
The curve is the largest constant of a sequence of n tokens at two places y and z of that interval, k of them at y,
over y, z and k: exact for such sequences (see `two_atoms`), so a lower bound on the constant of all sequences in B_R^n,
and for every layer that has A's eigenvector and V = I. Lengths are given by their logarithms.

One isolated token, k = 1, is best while the crowd is smaller than it wants to be. That is up to n*: what one isolated
token among n* reaches is the supremum over all measures on two places. Beyond, k ≈ n/n* isolated tokens reach it again,
and nothing more is to be had: the plateau. (Where R is large and n small, two halves may be better than either.)

The maximum is taken over Δ = ⟨Az, y − z⟩ in place of z: at the top Δ and the log ratio L of the two crowds differ by
something of order 1, however large they are; in z it would be a needle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from numbers import Real

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.lipschitz.two_atoms import apart_norm, sequence_norm, two_atom_norm

SCORES = ("negative", "positive")
WHOLE = math.log(2.0**53)  # beyond, the number of isolated tokens may be any number
LARGEST_A, LARGEST_LOG_N = 1e6, 1e7
KEPT, ZOOMS, SHRINK = 6, 50, 0.7  # the best of a first look, looked at closer and closer
ONE = torch.ones(1, 1, dtype=torch.float64)
BRANCHES = torch.tensor([-1.0, 1.0], dtype=torch.float64)


@dataclass(frozen=True)
class RegimePoint:
    """The largest constant of n tokens at two places, and where it is reached. y and z are in units of 1/√|A|."""

    log_n: float
    log_value: float
    y: float
    z: float
    log_isolated: float  # of the number of tokens at y
    apart: bool  # whether it is tokens of one place that move apart, or the two places
    log_at_radius: float  # of the same sequence with the published places, (R, −R, …) or (R, R/2, …)

    def as_record(self) -> dict:
        return asdict(self)


@dataclass(frozen=True)
class Plateau:
    """The supremum over all measures on two places, and n*, the least length at which a sequence reaches it."""

    a: float
    scores: str
    gamma_r2: float
    log_value: float
    log_crossover: float  # log n*
    y: float
    z: float

    @property
    def log_isolated_mass(self) -> float:
        """Log of the isolated place's mass, 1/n*."""
        return -self.log_crossover

    def as_record(self) -> dict:
        return asdict(self) | {"log_isolated_mass": self.log_isolated_mass}


def a_of(gamma_r2: float, scores: str = "negative") -> float:
    """A = |A|R² for γR²: γ is |A| where A is negative, |A|/8 where it is positive.

    >>> a_of(2.0), a_of(2.0, "positive")
    (2.0, 16.0)
    """
    _refuse_wrong(gamma_r2, scores)
    return gamma_r2 if scores == "negative" else 8 * gamma_r2


def plateau(gamma_r2: float, scores: str = "negative") -> Plateau:
    """The mean-field supremum over two places, with the masses that reach it.

    >>> found = plateau(4.0)
    >>> round(found.log_value - 4, 3), round(found.log_crossover - 8, 3)  # Lip ≈ 3.04 e^{γR²}, n* ≈ 2.7 e^{2γR²}
    (1.111, 0.995)
    """
    a = a_of(gamma_r2, scores)
    ends = torch.tensor(_deltas(a, scores), dtype=torch.float64)
    best = _maximise(a, scores, ends[:1] - 20, ends[1:] + 20)
    y, z = _named(best.y, best.z, best.L < 0)
    # Where nothing is better than equal tokens, one token alone reaches the supremum.
    crossover = 0.0 if float(y) == float(z) else float(best.L.abs() + torch.log1p(torch.exp(-best.L.abs())))
    return Plateau(a, scores, float(gamma_r2), float(best.log_value), crossover, float(y), float(z))


def regime_curve(gamma_r2: float, log_lengths: Sequence[float], scores: str = "negative") -> list[RegimePoint]:
    """The largest constant of n tokens at two places of the ball, for each log n ≥ log 2.

    >>> [round(point.log_value / math.log(10), 2) for point in regime_curve(50.0, [math.log(10) * e for e in (2, 40)])]
    [1.37, 21.37]
    """
    a = a_of(gamma_r2, scores)
    logs = torch.tensor([_checked(log_n) for log_n in log_lengths], dtype=torch.float64)
    most = _log_rest(logs, torch.zeros_like(logs))
    # How many tokens would be best at the place that has fewer, were their number not whole; then the whole numbers
    # around it, and 1.
    free = _maximise(a, scores, -most, most)
    wanted = (logs - torch.nn.functional.softplus(free.L.abs(), threshold=700.0)).clamp(min=0)
    found = [_points(a, scores, logs, torch.zeros_like(logs), sign) for sign in (1, -1)]
    for rounded in (torch.floor, torch.ceil):
        whole = torch.minimum(rounded(wanted.exp()).clamp(min=1.0), (logs.exp() / 2).round().clamp(min=1.0))
        found.append(_points(a, scores, logs, torch.where(logs > WHOLE, wanted, whole.log()), free.L.sign()))
    return [max(points, key=lambda point: point.log_value) for points in zip(*found, strict=True)]


def _points(a: float, scores: str, logs: Tensor, fewer: Tensor, sign: Tensor | int) -> list[RegimePoint]:
    """The best places for so many tokens, `fewer` of them at y (sign = 1) or at z (−1)."""
    rest, several = _log_rest(logs, fewer), math.log(1.5)  # one token alone has none to move apart from
    sign = torch.as_tensor(sign, dtype=torch.float64).expand_as(logs)
    sign = torch.where(sign == 0, 1.0, sign)
    at_z, at_y = (torch.where(sign > 0, *pair) > several for pair in ((rest, fewer), (fewer, rest)))
    best = _maximise(a, scores, sign * (rest - fewer), sign * (rest - fewer), at_z, at_y)
    columns = (logs, best.log_value, *_named(best.y, best.z, sign < 0), fewer, best.apart, _published(a, scores, logs))
    return [RegimePoint(*row[:5], bool(row[5]), row[6]) for row in zip(*(t.tolist() for t in columns), strict=True)]


def _named(y: Tensor, z: Tensor, swapped: Tensor) -> tuple[Tensor, Tensor]:
    """The isolated place, which is the one with fewer tokens, first; on the positive side, which is as good."""
    y, z = torch.where(swapped, z, y), torch.where(swapped, y, z)
    side = torch.where(y < 0, -1.0, 1.0).to(y)
    return side * y, side * z


@dataclass(frozen=True, eq=False)
class _Best:
    """The best places for each of b ranges of the log ratio L, (b,) each."""

    log_value: Tensor
    y: Tensor
    z: Tensor
    L: Tensor
    apart: Tensor


def _maximise(
    a: float,
    scores: str,
    low: Tensor,
    high: Tensor,
    crowd_apart: Tensor | None = None,
    isolated_apart: Tensor | None = None,
) -> _Best:
    """The best y, z and L for each range low ≤ L ≤ high (b,): a grid, and closer looks at its best points."""
    R, A = math.sqrt(a), -ONE if scores == "negative" else ONE
    low, high = low.unsqueeze(1), high.unsqueeze(1)

    def values(y: Tensor, delta: Tensor, L: Tensor, branch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = _place(scores, y, delta, branch)
        out = ~(z.abs() <= R * (1 + 1e-14))  # NaN where there is no such place
        at = y.unsqueeze(-1), torch.where(out, 0.0, z).clamp(-R, R).unsqueeze(-1)
        together = two_atom_norm(A, ONE, *at, L)
        apart = torch.full_like(together, -torch.inf)
        for there, name in ((crowd_apart, "z"), (isolated_apart, "y")):
            found = apart_norm(A, ONE, *at, L, at=name)
            apart = torch.maximum(apart, found if there is None else found.masked_fill(~there.unsqueeze(1), -torch.inf))
        return torch.maximum(together, apart).masked_fill(out, -torch.inf), at[1].squeeze(-1), apart > together

    y, delta, lead, branch = _first_look(a, scores, low, high)
    L = torch.minimum(torch.maximum(delta - lead, low), high)
    kept = values(y, delta, L, branch)[0].topk(KEPT, dim=1).indices
    y, delta, lead, branch = (t.gather(1, kept) for t in (y, delta, lead, branch))

    offsets = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    fixed = bool((low == high).all())
    aside = torch.cartesian_prod(offsets, offsets, torch.zeros(1).double() if fixed else offsets)  # of y, Δ and Δ − L
    steps = torch.tensor([R / 10, 1.0 if fixed else max(1.0, 2.25 * a / 60), 1.0], dtype=torch.float64)

    def spread(t: Tensor, along: int, step: Tensor) -> Tensor:
        return (t.unsqueeze(-1) + step * aside[:, along]).flatten(1)

    near = branch.repeat_interleave(len(aside), 1)
    for _ in range(ZOOMS):
        tried_y = spread(y, 0, steps[0]).clamp(0, R)
        # Δ goes no further than to its edge, where |z| = R: the top is often there, and moves along it with y.
        tried = torch.minimum(spread(delta, 1, steps[1]), _largest_delta(scores, R, tried_y, near))
        tried_lead = spread(lead, 2, steps[2])
        tried_L = torch.minimum(torch.maximum(tried - tried_lead, low), high)
        found = values(tried_y, tried, tried_L, near)[0].unflatten(1, (KEPT, -1))
        best = found.argmax(-1, keepdim=True)
        y, delta, lead, L = (
            t.unflatten(1, (KEPT, -1)).gather(-1, best).squeeze(-1) for t in (tried_y, tried, tried - tried_L, tried_L)
        )
        steps = SHRINK * steps
    found, z, apart = values(y, delta, L, branch)
    best = found.argmax(1, keepdim=True)
    return _Best(*(t.gather(1, best).squeeze(1) for t in (found, y, z, L, apart)))


def _first_look(a: float, scores: str, low: Tensor, high: Tensor) -> tuple[Tensor, ...]:
    """y, Δ, Δ − L and the branch of z on a grid, (b, points) each: L at either end of its range, and in between."""
    R, (least, widest) = math.sqrt(a), _deltas(a, scores)

    def grid(*axes: Tensor) -> tuple[Tensor, ...]:
        return tuple(t.flatten().expand(len(low), -1) for t in torch.meshgrid(*axes, BRANCHES, indexing="ij"))

    far = torch.logspace(1, math.log10(max(widest, 11.0)), 20, dtype=torch.float64)
    y, lead, branch = grid(_range(0, R, 21), torch.cat([_range(-10, 10, 81), far]))
    fixed = bool((low == high).all())
    looks = [(y, end + lead, lead, branch) for end in ((low,) if fixed else (low, high))]
    y, zero, branch = grid(_range(0, R, 21), torch.zeros(1, dtype=torch.float64))  # Δ = 0: equal tokens among them
    looks.append((y, zero, zero - low, branch))
    if not fixed:
        y, delta, lead, branch = grid(_range(0, R, 11), _range(least, widest, 61), _range(-6, 6, 13))
        looks.append((y, delta, lead, branch))
    return tuple(torch.cat(parts, 1) for parts in zip(*looks, strict=True))


def _range(first: float, last: float, count: int) -> Tensor:
    return torch.linspace(first, last, count, dtype=torch.float64)


def _deltas(a: float, scores: str) -> tuple[float, float]:
    """The least and the largest Δ in the interval."""
    return (-a / 4, 2 * a) if scores == "negative" else (-2 * a, a / 4)


def _place(scores: str, y: Tensor, delta: Tensor, branch: Tensor) -> Tensor:
    """Z with ⟨Az, y − z⟩ = Δ, A = ∓1, one of the two: NaN where there is none."""
    return (y + branch * (y * y + (4 if scores == "negative" else -4) * delta).sqrt()) / 2


def _largest_delta(scores: str, R: float, y: Tensor, branch: Tensor) -> Tensor:
    """The Δ at which z has reached the end of the interval, or for A = 1 the two places of one Δ have met."""
    if scores == "positive":
        return y * y / 4
    return R * R - branch * R * y


def _published(a: float, scores: str, logs: Tensor) -> Tensor:
    """Log of the constants of (R, −R, …, −R) or (R, R/2, …, R/2)."""
    R = torch.tensor([math.sqrt(a)], dtype=torch.float64)
    z, A = (-R, -ONE) if scores == "negative" else (R / 2, ONE)
    return sequence_norm(A, ONE, R, z, _log_rest(logs, torch.zeros_like(logs)))


def _log_rest(logs: Tensor, count: Tensor) -> Tensor:
    """log(n − k) from log n and log k."""
    return logs + torch.log(-torch.expm1(count - logs))


def _checked(log_n: float) -> float:
    if isinstance(log_n, bool) or not isinstance(log_n, Real) or not math.log(2) - 1e-12 <= log_n <= LARGEST_LOG_N:
        raise InputError(f"expected log n from log 2 to {LARGEST_LOG_N:g}, got {log_n!r}; give math.log(n)")
    return float(log_n)


def _refuse_wrong(gamma_r2: float, scores: str) -> None:
    if scores not in SCORES:
        raise InputError(f"expected scores to be one of {', '.join(SCORES)} (the sign of A), got {scores!r}")
    if isinstance(gamma_r2, bool) or not isinstance(gamma_r2, Real) or not 0 <= gamma_r2 <= LARGEST_A / 8:
        raise InputError(f"expected γR² from 0 to {LARGEST_A / 8:g}, got {gamma_r2!r}; give γ·R² as a number")
