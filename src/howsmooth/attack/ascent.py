"""Gradient ascent on the local Lipschitz constant: how rough can attention be on a set of inputs?

At a simple σ₁ with singular vectors u, v its slope is dσ₁ = uᵀ (D²f[dX]) v, which `gradient` gives exactly for about
two products. Where σ₁ = σ₂ any pair (u, v) that attains it still points uphill: a maximum of smooth functions
has no kinks downwards. So what an ascent needs of σ₁ is an attained value and its vectors, and a few Golub–Kahan steps
from the last vectors give both.

The slope of softmax is nothing almost everywhere and steep in between, by many orders of magnitude from one token to
the next. So every token moves by the same share of its radius along its own gradient; with momentum, and a step for
each restart that grows with success. When that step is down to nothing the plain gradient takes over, and the other way
round; a restart for which both have failed has arrived. After a step that failed a little noise is added, against
saddles: symmetric inputs have symmetric gradients.

Where softmax is saturated for all tokens the slope is rounding and says nothing, and shorter steps are as blind as long
ones. There a restart leaps: towards the centre, where scores are smaller, and aside, each by a random amount. That need
not help: flat ground may be higher than all that a leap finds, and then only other starts do.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from howsmooth.attack.constraints import (
    Constraint,
    another_seed,
    check_count,
    check_masses,
    check_seed,
    described,
    length,
)
from howsmooth.attention import SelfAttention
from howsmooth.attention.atoms import WeightedAttention, roots
from howsmooth.errors import InputError
from howsmooth.lipschitz import Estimate, local_lipschitz
from howsmooth.lipschitz.local import single_at_least
from howsmooth.spectral import LinearOperator, singular_values, warm_triplet

MOVES = ("positions", "masses", "both")
WARM_STEPS = 3  # Golub–Kahan steps for each σ₁ on the way
FRESH = 1e-2  # share of a random vector in the start of a solve, for singular values that cross
FIRST_STEP, SMALLEST_STEP, LARGEST_STEP = 0.1, 1e-7, 4.0  # in radii
GROWTH, DECAY, MOMENTUM, NOISE = 1.3, 0.3, 0.9, 0.1  # of those tried on GPT-2 and on small layers, the best
FLAT = 1e-10  # of σ₁ per radius: a slope that is rounding
LEAPS, SMALLEST_LEAP = 60, 1e-2  # tried in a row from flat ground; in radii
LOG_MASS_STEP = 4.0  # of a log mass, where a token moves by one radius
LEAST_LOG_MASS = -200.0
# The draws that steered an ascent must not certify where it led. (Only the low 32 bits of a seed count on the CPU.)
CERTIFICATES, FRESH_SEED = 3, 1_000_003


@dataclass(frozen=True, eq=False)
class Ascent:
    """The roughest input found, its certified constant, and how it was come by.

    `estimate` is the certificate at `x`, in float64, from draws that the ascent has not seen. `value` is the largest
    ‖J v‖ attained at `x`, whether by the certificate's own v or by the one that the ascent has followed: it may exceed
    `estimate.value` by a little (within its tolerance, or the certificate is drawn again), never the true norm. It is
    no less than the best start. With masses, both are in the norm Σ a_i|ε_i|². `path` holds what each restart had
    attained after each step.
    """

    x: Tensor = field(repr=False)  # (n, d), float64
    masses: Tensor | None = field(repr=False)  # (n,), adding up to 1
    estimate: Estimate = field(repr=False)
    value: float
    start: Tensor = field(repr=False)  # (b,): σ₁ where the restarts began
    path: Tensor = field(repr=False)  # (steps + 1, b)
    ends: Tensor = field(repr=False)  # (b, n, d): where the restarts ended
    steps: int
    gradients: int
    seconds: float
    constraint: Constraint

    @property
    def values(self) -> Tensor:
        """What each restart attained in the end, (b,)."""
        return self.path[-1]


def ascend(
    f: SelfAttention,
    x: Tensor,
    constraint: Constraint,
    *,
    steps: int = 200,
    move: str = "positions",
    masses: Tensor | None = None,
    seed: int = 0,
    tol: float = 1e-3,
    progress: Callable[[int, Tensor], None] | None = None,
) -> Ascent:
    """Climb from x (n, d), or from the b restarts of (b, n, d) side by side, to where ‖D_X f‖₂ is large.

    Starts outside the constraint are brought to its nearest point first. No restart ever moves to where less is
    attained. The best of them is certified by `local_lipschitz` to the width `tol`.

    Args:
        move: "positions", "masses" or "both". The latter two take x as atoms Σ a_i δ_{x_i} (see `WeightedAttention`).
        masses: (n) or (b, n), positive; equal ones unless given. With move="positions" they stay as they are.
        progress: called with the step and what each restart has attained by then.

    >>> from howsmooth.attack import Ball
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> f = SelfAttention(one, one, one, scale=1.0)
    >>> found = ascend(f, torch.tensor([[3.0], [0.2], [-0.1], [0.0]], dtype=torch.float64), Ball(3.0), steps=50)
    >>> found.value > found.start.max(), found.estimate.status
    (tensor(True), 'converged')
    """
    began = time.perf_counter()
    _refuse_wrong_arguments(f, x, constraint, steps, move, masses, seed, progress)
    f, x = single_at_least(f, x)
    batch = x if x.dim() == 3 else x.unsqueeze(0)
    climb = _Climb(f, constraint, move, seed, batch, _log_masses(masses, move, batch))
    start = climb.begin(tol)
    path = [start]
    while len(path) <= steps and climb.alive.any():
        climb.step()
        path.append(climb.value.clone())
        if progress is not None:
            progress(len(path) - 1, path[-1])
    return climb.result(start, torch.stack(path), tol, began)


class _Climb:
    """The restarts (b, n, d) of one ascent, in the constraint's coordinates y, with log masses where there are any."""

    def __init__(self, f: SelfAttention, constraint: Constraint, move: str, seed: int, x: Tensor, logs: Tensor | None):
        self.f, self.constraint, self.seed = f, constraint, seed
        self.weighted = None if logs is None else WeightedAttention(f)
        self.moves_tokens, self.moves_masses = move != "masses", move != "positions"
        self.generator = torch.Generator().manual_seed(seed)
        self.y, self.logs = constraint.project(constraint.encode(x)), logs
        self.pace = x.new_full((len(x),), FIRST_STEP)
        self.equal_shares = torch.ones(len(x), dtype=torch.bool, device=x.device)  # or plain gradients
        self.failures = torch.zeros(len(x), dtype=torch.int64, device=x.device)  # of the two, in a row
        self.leaps = torch.zeros_like(self.failures)  # that failed, in a row
        self.momentum = self.log_momentum = 0.0
        self.noise = torch.zeros_like(self.pace)
        self.gradients = 0

    @property
    def alive(self) -> Tensor:
        return (self.failures < 2) & (self.leaps < LEAPS)

    @property
    def flat(self) -> Tensor:
        """Which restarts have no slope to follow, (b,)."""
        steepest = length(self.slope).amax((-2, -1)) * self.constraint.radius
        return (steepest <= FLAT * self.value) & self.moves_tokens

    def operator(self, y: Tensor, logs: Tensor | None) -> LinearOperator:
        x = self.constraint.decode(y)
        return self.f.jacobian(x) if logs is None else self.weighted.jacobian(x, logs)

    def begin(self, tol: float) -> Tensor:
        """σ₁ of every start, to the width tol, and the first gradient."""
        J = self.operator(self.y, self.logs)
        found = singular_values(J, tol=tol, seed=self.seed, strict=False)
        self.value, self.v = found.value[:, 0].to(J.device), found.v[:, 0]
        self.slope, self.log_slope = self.gradient(J, found.u[:, 0], self.v)
        return self.value.clone()

    def gradient(self, J: LinearOperator, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None]:
        """∇σ₁ in coordinates, (b, n, d), and in the log masses, (b, n)."""
        self.gradients += 1
        found = J.gradient(u, v)
        in_x, in_logs = (found, None) if self.logs is None else found
        return self.constraint.pull(in_x), in_logs

    def step(self) -> None:
        """One trial for every restart; those that gain by it move."""
        leaping = self.flat
        (y, travel), (logs, log_travel) = self._try_tokens(), self._try_masses()
        y, travel = _where(leaping, self._leap(), y), _where(leaping, torch.zeros_like(travel), travel)
        J = self.operator(y, logs)
        sigma, u, v = warm_triplet(J, self.v + FRESH * self._normal(self.v.shape) / self.v.shape[1] ** 0.5, WARM_STEPS)
        better = (sigma > self.value) & self.alive
        if better.any():
            slope, log_slope = self.gradient(J, u, v)
            self.y, self.slope = _where(better, y, self.y), _where(better, slope, self.slope)
            self.v, self.value = _where(better, v, self.v), _where(better, sigma, self.value)
            if logs is not None:
                self.logs, self.log_slope = _where(better, logs, self.logs), _where(better, log_slope, self.log_slope)
        self.momentum = _where(better, travel, torch.zeros_like(travel))
        self.log_momentum = _where(better, log_travel, torch.zeros_like(log_travel))
        self.noise = torch.where(better, 0.0, NOISE).to(self.pace)
        self._adapt(better, leaping)

    def _leap(self) -> Tensor:
        """Towards the centre by one random factor, and aside by another number of radii; both of any order of size."""
        size = SMALLEST_LEAP ** torch.rand(2, len(self.y), 1, 1, generator=self.generator, dtype=torch.float64)
        shrink, aside = size[0].to(self.y), size[1].square().to(self.y)  # a shape that is good only wants to be smaller
        noise = self.constraint.within(self._normal(self.y.shape))
        return self.constraint.project(shrink * self.y + aside * self.constraint.radius * noise / length(noise))

    def _adapt(self, better: Tensor, leaping: Tensor) -> None:
        """Longer steps after success, shorter ones after failure; the other kind of step where they end in nothing."""
        self.leaps = torch.where(better, 0, self.leaps + leaping.long())
        factor = torch.where(leaping, 1.0, torch.where(better, GROWTH, DECAY)).to(self.pace)
        self.pace = (self.pace * factor).clamp(max=LARGEST_STEP)
        self.failures = torch.where(better, 0, self.failures)
        ended = self.pace < SMALLEST_STEP
        self.failures = self.failures + ended.long()
        self.equal_shares = self.equal_shares ^ ended
        self.pace = torch.where(ended, FIRST_STEP, self.pace)

    def _try_tokens(self) -> tuple[Tensor, Tensor]:
        """Where the tokens would go, and the way in units of the step."""
        if not self.moves_tokens:
            return self.y, torch.zeros_like(self.y)
        size = length(self.slope)
        largest = size.amax(-2, keepdim=True)
        share = torch.where(self.equal_shares[:, None, None], size, largest)
        direction = self.slope / torch.where(share > 0, share, 1)
        away = self._normal(self.y.shape)
        direction = direction + self.noise[:, None, None] * away / length(away)
        pace = (self.pace * self.constraint.radius)[:, None, None]
        y = self.constraint.project(self.y + pace * (direction + MOMENTUM * self.momentum))
        return y, (y - self.y) / pace

    def _try_masses(self) -> tuple[Tensor | None, Tensor]:
        """The log masses that would be tried, and the way in units of the step."""
        if not self.moves_masses:
            return self.logs, self.pace
        largest = self.log_slope.abs().amax(-1, keepdim=True)
        direction = self.log_slope / torch.where(largest > 0, largest, 1)
        direction = direction + self.noise[:, None] * self._normal(self.logs.shape)
        pace = (self.pace * LOG_MASS_STEP)[:, None]
        logs = torch.log_softmax(self.logs + pace * (direction + MOMENTUM * self.log_momentum), -1)
        logs = logs.clamp(min=LEAST_LOG_MASS)
        return logs, (logs - self.logs) / pace

    def _normal(self, shape: torch.Size) -> Tensor:
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.y)

    def result(self, start: Tensor, path: Tensor, tol: float, began: float) -> Ascent:
        best = int(self.value.argmax())
        f, c = self.f.to(torch.float64), self.constraint
        x = c.decode(c.project(self.y[best].double()))  # what float32 has lost of the constraint
        v = self.v[best].double()
        if self.logs is None:
            masses, map_, at = None, f, x
            attained = float(warm_triplet(f.jacobian(x), v, 1)[0])
        else:
            logs, weighted = self.logs[best].double(), WeightedAttention(f)
            masses, map_, at = torch.softmax(logs, -1), weighted.weighted(logs), roots(logs) * x
            attained = float(warm_triplet(weighted.jacobian(x, logs), v, 1)[0])
        estimate = unrefuted(
            lambda seed: local_lipschitz(map_, at, tol=tol, seed=seed, strict=False), attained, self.seed
        )
        if masses is not None:
            size = torch.linalg.vector_norm(x, dim=-1)
            estimate = replace(estimate, radius=float(size.max()), mean_radius=float((masses * size**2).sum().sqrt()))
        return Ascent(
            x=x,
            masses=masses,
            estimate=estimate,
            value=max(estimate.value, attained),
            start=start,
            path=path,
            ends=c.decode(self.y),
            steps=len(path) - 1,
            gradients=self.gradients,
            seconds=time.perf_counter() - began,
            constraint=c,
        )


def unrefuted(certify: Callable[[int], Estimate], attained: float, seed: int) -> Estimate:
    """A certificate that a value attained otherwise does not prove wrong.

    One in 1/(1 − confidence) starts misses. To draw again only where that is proved leaves the confidence as it is.
    """
    for attempt in range(1, CERTIFICATES + 1):
        estimate = certify(another_seed(seed, attempt * FRESH_SEED))
        if estimate.upper is None or attained <= estimate.upper * (1 + 1e-12):
            break
    return estimate


def _where(better: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(better.view(-1, *[1] * (new.dim() - 1)), new, old)


def _log_masses(masses: Tensor | None, move: str, x: Tensor) -> Tensor | None:
    """(b, n) for a map of atoms, None for the plain map."""
    if masses is None:
        return None if move == "positions" else x.new_zeros(x.shape[:-1])
    return torch.log_softmax(masses.double().log(), -1).to(x).expand(x.shape[:-1])


def _refuse_wrong_arguments(f, x, constraint, steps, move, masses, seed, progress) -> None:
    if not isinstance(f, SelfAttention):
        raise InputError(f"ascend: expected a SelfAttention, got {type(f).__name__}; its curvature is needed, too")
    if not isinstance(constraint, Constraint):
        raise InputError(
            f"ascend: expected a constraint (Ball, Sphere, Ellipsoid or Near), got {type(constraint).__name__}"
        )
    if not isinstance(x, Tensor):
        raise InputError(f"ascend: expected tokens x as a tensor (n, {f.d}) or (b, n, {f.d}), got {described(x)}")
    f.check_tokens(x, None)
    constraint.check(*x.shape[-2:])
    if len(x) == 0:
        raise InputError(f"ascend: expected at least one restart, got x of shape {tuple(x.shape)}")
    if not torch.isfinite(x).all():
        raise InputError("ascend: expected finite tokens, got NaN or ∞ in x")
    check_count("ascend", "steps", steps, least=0)
    check_seed("ascend", seed)
    if move not in MOVES:
        raise InputError(f"ascend: expected move as one of {', '.join(MOVES)}, got {move!r}")
    if progress is not None and not callable(progress):
        raise InputError(f"ascend: expected progress as a function of (step, values), got {described(progress)}")
    if masses is not None:
        check_masses("ascend", masses, x)
