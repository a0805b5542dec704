"""Fixed steps: the residual layer X + hΓ(X), Runge–Kutta's method of order 4, and Euler–Maruyama where there is noise.

A step is a map of tokens that can be differentiated; `run_fixed` follows tokens through them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.dynamics.trajectory import BLEW_UP, Run, first_velocity, out_of_bounds
from howsmooth.dynamics.velocity import Layer, Piece, Velocity, as_velocity, tangent
from howsmooth.errors import InputError
from howsmooth.spectral.products import solver_generator


@dataclass(frozen=True)
class Step:
    """One step from depth t to t + h, a map of tokens that every transform of PyTorch can differentiate."""

    t: float
    h: float
    piece: Piece
    scheme: Callable[[Piece, float, float, Tensor], Tensor]

    def __call__(self, x: Tensor) -> Tensor:
        moved = self.scheme(self.piece, self.t, self.h, x)
        if not self.piece.velocity.sphere:
            return moved
        return moved * (_norm(x) / _norm(moved))  # layer normalisation: back to the sphere of its own norm


def residual(f: Piece, t: float, h: float, x: Tensor) -> Tensor:
    """X + h f(t, x): a residual attention layer, and Euler's method."""
    return x + h * f(t, x)


def rk4(f: Piece, t: float, h: float, x: Tensor) -> Tensor:
    """Four evaluations, order 4."""
    a = f(t, x)
    b = f(t + h / 2, x + h / 2 * a)
    c = f(t + h / 2, x + h / 2 * b)
    d = f(t + h, x + h * c)
    return x + h / 6 * (a + 2 * b + 2 * c + d)


SCHEMES = {"residual": residual, "rk4": rk4}
STAGES = {"residual": 1, "rk4": 4}


def steps_of(velocity: Velocity | Layer, until: float, steps: int, scheme: str = "residual") -> list[Step]:
    """`steps` equal steps over [0, until]; none of them crosses from one layer of a list to the next.

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
    return [Step((i * each + k) * h, h, piece, SCHEMES[scheme]) for i, piece in enumerate(pieces) for k in range(each)]


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
) -> Run:
    """Take the steps, keep the states at the depths nearest to `times`."""
    chain = steps_of(velocity, until, steps, scheme)
    generator, seed = solver_generator(seed) if noise else (None, None)
    kept = {round(t / until * steps) for t in times}
    found = Run(seed=seed)
    with torch.no_grad(), found.kept_when_interrupted():
        first_velocity(chain[0].piece, 0.0, x)
        if 0 in kept:
            found.save(0.0, x)
        for k, step in enumerate(chain):
            moved = step(x)
            if noise:
                moved = _disturb(moved, noise * step.h**0.5, velocity.sphere, generator)
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
        raise InputError(
            f"expected depths to save that some of the {steps} steps come near, got {times}; take more steps"
        )
    return found


def _disturb(x: Tensor, size: float, sphere: bool, generator: torch.Generator) -> Tensor:
    """Brownian motion; on spheres along the tangent space and then back, which is right to the order of the step."""
    kick = size * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    if not sphere:
        return x + kick
    moved = x + tangent(x, kick)
    return moved * (
        torch.linalg.vector_norm(x, dim=-1, keepdim=True) / torch.linalg.vector_norm(moved, dim=-1, keepdim=True)
    )
