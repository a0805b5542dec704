"""What both kinds of integrator keep while they run, and how they tell a blow-up from a stall."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from howsmooth.dynamics.trajectory import BLEW_UP, FINISHED, INTERRUPTED, STALLED
from howsmooth.errors import InputError

LARGEST = 1e150  # of a coordinate: its square is a number still
FAST = 1e-6  # a token that doubles within this share of the depth so far has blown up


@dataclass
class Run:
    """The states saved so far, and how it ended."""

    times: list[float] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    status: str = FINISHED
    token: int | None = None
    steps: int = 0
    evaluations: int = 0
    seed: int | None = None

    def save(self, t: float, x: Tensor) -> None:
        self.times.append(t)
        self.tokens.append(x.detach().clone())

    @contextmanager
    def kept_when_interrupted(self) -> Iterator[None]:
        """Ctrl-C ends the run with what is saved, if anything is."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.times:
                raise
            self.status = INTERRUPTED

    def end_early(self, status: str, t: float, x: Tensor, token: int | None) -> None:
        """Keep the last good state (t, x), unless it is the last that was saved."""
        self.status, self.token = status, token
        if t > self.times[-1]:
            self.save(t, x)


def diagnose(t: float, x: Tensor, v: Tensor) -> tuple[str, int]:
    """Why a step from (t, x) with velocity v failed, and the token that moves fastest for its size."""
    speed, size = (torch.linalg.vector_norm(a.detach().double(), dim=-1) for a in (v, x))
    rate = torch.nan_to_num(speed / size.clamp(min=torch.finfo(torch.float64).tiny), nan=torch.inf)
    token = int(rate.argmax())
    fast = float(rate[token]) * max(t, torch.finfo(torch.float64).tiny) * FAST > 1
    return (BLEW_UP if fast or not torch.isfinite(v).all() or float(size.max()) > LARGEST else STALLED), token


def out_of_bounds(x: Tensor) -> int | None:
    """The first token with a coordinate that is no number or too large to square, None where there is none."""
    wrong = ~(x.abs() <= largest(x.dtype)).all(-1)  # NaN is not ≤ either
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None


def largest(dtype: torch.dtype) -> float:
    return min(LARGEST, float(torch.finfo(dtype).max) ** 0.5)


def first_velocity(f, t: float, x: Tensor) -> Tensor:
    """The velocity at the start, refused when it is not finite."""
    v = f(t, x)
    if v.dtype != x.dtype:
        raise InputError(f"expected a velocity in the tokens' dtype {x.dtype}, got {v.dtype}; use .to() on one of them")
    if not torch.isfinite(v).all():
        token = int((~torch.isfinite(v)).any(-1).nonzero()[0])
        raise InputError(f"expected a finite velocity at the first tokens, got NaN or ∞ at token {token}; scores or "
                         "weights may be too large for the dtype")
    return v
