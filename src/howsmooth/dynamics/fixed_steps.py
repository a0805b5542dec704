"""Fixed steps: residual layers X + hΓ(X), the classical Runge–Kutta method, and Euler–Maruyama with noise.

A step is a differentiable map of tokens; `run_fixed` applies the steps one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.dynamics.trajectory import BLEW_UP, TrajectoryRecorder, check_first_velocity, out_of_bounds
from howsmooth.dynamics.velocity import Layer, Piece, Velocity, as_velocity, tangent
from howsmooth.errors import InputError
from howsmooth.spectral.products import solver_generator


@dataclass(frozen=True)
class FixedStep:
    """One step from depth t to t + h, a map of tokens that all transforms of `torch.func` can differentiate.

    Attributes:
        t: Depth before the step.
        h: Step size.
        piece: The velocity around t.
        scheme: `euler_step` or `rk4_step`.
    """

    t: float
    h: float
    piece: Piece
    scheme: Callable[[Piece, float, float, Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        """Return the tokens at depth t + h, (n, d)."""
        moved = self.scheme(self.piece, self.t, self.h, x)
        if not self.piece.velocity.sphere:
            return moved
        return moved * (_norm(x) / _norm(moved))  # layer normalisation: each token keeps its norm


def euler_step(f: Piece, t: float, h: float, x: Tensor) -> Tensor:
    """Return x + h·f(t, x): one residual attention layer, which is one step of Euler's method."""
    return x + h * f(t, x)


def rk4_step(f: Piece, t: float, h: float, x: Tensor) -> Tensor:
    """Return one step of the classical Runge–Kutta method: four evaluations, order 4."""
    a = f(t, x)
    b = f(t + h / 2, x + h / 2 * a)
    c = f(t + h / 2, x + h / 2 * b)
    d = f(t + h, x + h * c)
    return x + h / 6 * (a + 2 * b + 2 * c + d)


SCHEMES = {"residual": euler_step, "rk4": rk4_step}
STAGES = {"residual": 1, "rk4": 4}


def steps_of(velocity: Velocity | Layer, until: float, steps: int, scheme: str = "residual") -> list[FixedStep]:
    """Return `steps` equal steps over [0, until]; no step crosses from one layer of a list to the next.

    Args:
        velocity: A `Velocity`, or anything that it accepts.
        until: Depth of the last step's end.
        steps: Number of steps; with a list of layers a multiple of their number.
        scheme: "residual" (X + hΓ(X), Euler's method) or "rk4".

    Returns:
        The steps in order, each a map of tokens (n, d).

    Raises:
        InputError: If the scheme, the depth or the number of steps is not valid.

    Example:
        >>> import torch
        >>> [step(torch.ones(1, 1)).item() for step in steps_of([lambda x: x], 1.0, 1)]
        [2.0]
    """
    if scheme not in SCHEMES:
        raise InputError(f"expected a fixed-step scheme among {', '.join(SCHEMES)}, got {scheme!r}")
    if not 0 < until < math.inf:
        raise InputError(f"expected until as a positive number, got {until!r}")
    pieces = as_velocity(velocity).pieces(until)
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1 or steps % len(pieces):
        wanted = "a positive number of steps" if len(pieces) == 1 else f"a multiple of the {len(pieces)} layers"
        raise InputError(f"expected {wanted}, got {steps!r}")
    h, each = until / steps, steps // len(pieces)
    return [
        FixedStep((i * each + k) * h, h, piece, SCHEMES[scheme]) for i, piece in enumerate(pieces) for k in range(each)
    ]


def _norm(x: Tensor) -> Tensor:
    return x.square().sum(-1, keepdim=True).sqrt()


def run_fixed(
    velocity: Velocity,
    x: Tensor,
    until: float,
    times: list[float],
    scheme: str,
    steps: int,
    noise: float,
    seed: int | torch.Generator,
    progress: Callable[[float], None] | None,
) -> TrajectoryRecorder:
    """Take all steps and save the states whose depths are nearest to `times`."""
    chain = steps_of(velocity, until, steps, scheme)
    kept = {round(t / until * steps) for t in times}
    found = TrajectoryRecorder()
    generator = None
    if noise:
        generator, found.seed = solver_generator(seed)
    with torch.no_grad(), found.kept_when_interrupted():
        check_first_velocity(chain[0].piece, 0.0, x)
        if 0 in kept:
            found.save(0.0, x)
        for k, step in enumerate(chain):
            moved = step(x)
            if generator is not None:
                moved = _add_noise(moved, noise * step.h**0.5, velocity.sphere, generator)
            found.evaluations += STAGES[scheme]
            token = out_of_bounds(moved)
            if token is not None:
                if not found.times:
                    found.save(step.t, x)
                found.end_early(BLEW_UP, step.t, x, token)
                return found
            x, found.steps = moved, k + 1
            if k + 1 in kept:
                found.save(until if k + 1 == steps else step.t + step.h, x)
            if progress is not None:
                progress(step.t + step.h)
    if not found.times:
        raise InputError(f"expected frames near the depths of the {steps} steps, got {times}; take more steps")
    return found


def _add_noise(x: Tensor, size: float, sphere: bool, generator: torch.Generator) -> Tensor:
    """Add a Brownian increment; on spheres in the tangent space, then with a retraction (to the order of the step)."""
    increment = size * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    if not sphere:
        return x + increment
    moved = x + tangent(x, increment)
    return moved * (
        torch.linalg.vector_norm(x, dim=-1, keepdim=True) / torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
    )
