"""What an integrator hands back: the tokens along depth, and how it ended; and what it keeps while it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from howsmooth.errors import InputError

FINISHED = "finished"
BLEW_UP = "blew up"
STALLED = "step too small"
STEP_LIMIT = "step limit"
INTERRUPTED = "interrupted"

REMEDY = {
    FINISHED: "nothing to do: the flow was followed to its end",
    BLEW_UP: "the flow leaves all bounds at this depth; stop before it, or renormalise (layer normalisation: sphere)",
    STALLED: "the velocity jumps or oscillates too fast for the tolerance; raise rtol, or give the pieces of a jump as "
    "a list of layers",
    STEP_LIMIT: "raise max_steps or rtol, or stop earlier",
    INTERRUPTED: "what is known until then is kept; follow it again for the rest",
}
LARGEST = 1e150  # of a coordinate: its square is a number still
FAST = 1e-6  # a token that doubles within this share of the depth so far has blown up


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Tokens at the saved depths, with where they come from.

    When the flow could not be followed to `until`, `times` ends where it could: the last entry is the last state that
    is known, `token` is the one that moved fastest there relative to its size, and `remedy` says what to do.
    """

    times: Tensor = field(repr=False)  # (T,), float64
    tokens: Tensor = field(repr=False)  # (T, n, d)
    status: str
    until: float
    token: int | None  # where it ended early
    solver: str
    steps: int  # accepted ones
    evaluations: int  # of the velocity
    rtol: float | None  # None: steps are fixed
    atol: float | None
    noise: float
    seed: int | None  # of the noise
    seconds: float

    @property
    def reached(self) -> float:
        """The last depth that is known."""
        return float(self.times[-1])

    @property
    def last(self) -> Tensor:
        """The tokens there, (n, d)."""
        return self.tokens[-1]

    @property
    def dtype(self) -> torch.dtype:
        return self.tokens.dtype

    @property
    def remedy(self) -> str:
        """What the status asks of the reader."""
        return REMEDY[self.status]

    @property
    def ending(self) -> str:
        """How it ended, in one line.

        >>> import torch
        >>> from howsmooth.dynamics import integrate
        >>> integrate([lambda x: x**3], torch.ones(1, 1, dtype=torch.float64), 1.0).ending
        'blew up at depth 0.5, token 0'
        """
        if self.token is None:
            return f"{self.status} at depth {self.reached:g}"
        return f"{self.status} at depth {self.reached:.6g}, token {self.token}"

    def as_record(self) -> dict[str, Any]:
        """The facts of the integration as plain values; the tokens are left out."""
        names = (
            "status",
            "until",
            "reached",
            "token",
            "solver",
            "steps",
            "evaluations",
            "rtol",
            "atol",
            "noise",
            "seed",
            "seconds",
        )
        n, d = self.tokens.shape[1:]
        return {
            "n": n,
            "d": d,
            **{name: getattr(self, name) for name in names},
            "dtype": str(self.dtype).removeprefix("torch."),
        }


class Interrupted(KeyboardInterrupt):
    """Ctrl-C on the way: `partial` is the trajectory until then."""

    def __init__(self, partial: Trajectory):
        super().__init__()
        self.partial = partial


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
        raise InputError(
            f"expected a finite velocity at the first tokens, got NaN or ∞ at token {token}; scores or "
            "weights may be too large for the dtype"
        )
    return v
