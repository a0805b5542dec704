"""Equal steps: the residual layer, Runge–Kutta, and Euler–Maruyama where there is noise."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from howsmooth.dynamics.progressing import Run, first_velocity, out_of_bounds
from howsmooth.dynamics.schemes import STAGES, steps_of
from howsmooth.dynamics.trajectory import BLEW_UP
from howsmooth.dynamics.velocity import Velocity, tangent
from howsmooth.errors import InputError
from howsmooth.spectral.draws import own_generator


def run(velocity: Velocity, x: Tensor, until: float, times: list[float], scheme: str, steps: int, noise: float,
        seed: int | torch.Generator, progress: Callable[[float], None] | None) -> Run:
    """Take the steps, keep the states at the depths nearest to `times`."""
    chain = steps_of(velocity, until, steps, scheme)
    generator, seed = own_generator(seed) if noise else (None, None)
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
        raise InputError(f"expected depths to save that some of the {steps} steps come near, got {times}; take "
                         "more steps")
    return found


def _disturb(x: Tensor, size: float, sphere: bool, generator: torch.Generator) -> Tensor:
    """Brownian motion; on spheres along the tangent space and then back, which is right to the order of the step."""
    kick = size * torch.randn(x.shape, generator=generator, dtype=x.dtype).to(x.device)
    if not sphere:
        return x + kick
    moved = x + tangent(x, kick)
    return moved * (torch.linalg.vector_norm(x, dim=-1, keepdim=True)
                    / torch.linalg.vector_norm(moved, dim=-1, keepdim=True))
