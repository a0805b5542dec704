"""Fixed steps as maps of tokens: the residual layer X + hΓ(X), and the classical Runge–Kutta method of order 4."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from howsmooth.dynamics.velocity import Layer, Piece, Velocity, as_velocity
from howsmooth.errors import InputError


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
    """x + h f(t, x): a residual attention layer, and Euler's method."""
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
