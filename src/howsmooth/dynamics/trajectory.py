"""The result of an integration: tokens along depth and a status; and the recorder that collects them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

TRAJECTORY_REMEDIES = {
    FINISHED: "nothing to do: the flow was followed to its end",
    BLEW_UP: "the tokens are unbounded near this depth; stop before it, or renormalise (layer normalisation: sphere)",
    STALLED: "the velocity jumps or oscillates too fast for the tolerance; raise rtol, or pass the layers before and "
    "after a jump as a list",
    STEP_LIMIT: "raise max_steps or rtol, or stop earlier",
    INTERRUPTED: "the trajectory up to this depth is kept; run again for the rest",
}
MAX_COORDINATE = 1e150  # its square is still finite
BLOW_UP_FRACTION = 1e-6  # a token that doubles within this fraction of the depth so far has blown up


@dataclass(frozen=True, eq=False)
class Trajectory:
    """Tokens at the saved depths, with the settings and the status of the integration.

    When the integration stops before `until`, the last entries of `times` and `tokens` are the last known state, and
    `remedy` suggests what to do.

    Attributes:
        times: The saved depths (T,), in float64.
        tokens: The tokens there, (T, n, d).
        status: "finished", "blew up", "step too small", "step limit" or "interrupted".
        until: The depth that was requested.
        token: Where the flow ended early, the token that moved fastest relative to its norm; else None.
        solver: Name of the solver.
        steps: Number of accepted steps.
        evaluations: Number of evaluations of the velocity.
        rtol: Relative tolerance; None with fixed steps.
        atol: Absolute tolerance; None with fixed steps.
        noise: Standard deviation of the Brownian motion per unit of √depth.
        seed: Seed of the noise; None without noise.
        seconds: Wall-clock time.
    """

    times: Tensor = field(repr=False)
    tokens: Tensor = field(repr=False)
    status: str
    until: float
    token: int | None
    solver: str
    steps: int
    evaluations: int
    rtol: float | None
    atol: float | None
    noise: float
    seed: int | None
    seconds: float

    @property
    def reached(self) -> float:
        """The last saved depth."""
        return float(self.times[-1])

    @property
    def last(self) -> Tensor:
        """The tokens at the last saved depth, (n, d)."""
        return self.tokens[-1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tokens."""
        return self.tokens.dtype

    @property
    def remedy(self) -> str:
        """What to do about the status."""
        return TRAJECTORY_REMEDIES[self.status]

    @property
    def ending(self) -> str:
        """One line with the status, the depth and the token where the flow ended.

        Example:
            >>> import torch
            >>> from howsmooth.dynamics import integrate
            >>> integrate([lambda x: x**3], torch.ones(1, 1, dtype=torch.float64), 1.0).ending
            'blew up at depth 0.5, token 0'
        """
        if self.token is None:
            return f"{self.status} at depth {self.reached:g}"
        return f"{self.status} at depth {self.reached:.6g}, token {self.token}"

    def as_record(self) -> dict[str, Any]:
        """Return settings and status as plain values, without the tokens."""
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
    """Ctrl-C during an integration; `partial` is the trajectory up to then."""

    def __init__(self, partial: Trajectory) -> None:
        """Store the partial trajectory."""
        super().__init__()
        self.partial = partial


@dataclass
class TrajectoryRecorder:
    """The states saved so far, and how the integration ended."""

    times: list[float] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    status: str = FINISHED
    token: int | None = None
    steps: int = 0
    evaluations: int = 0
    seed: int | None = None

    def save(self, t: float, x: Tensor) -> None:
        """Append a copy of the tokens x at depth t."""
        self.times.append(t)
        self.tokens.append(x.detach().clone())

    @contextmanager
    def kept_when_interrupted(self) -> Iterator[None]:
        """Turn Ctrl-C into the status "interrupted" once a state has been saved."""
        try:
            yield
        except KeyboardInterrupt:
            if not self.times:
                raise
            self.status = INTERRUPTED

    def end_early(self, status: str, t: float, x: Tensor, token: int | None) -> None:
        """Set the status and save the last good state (t, x), unless it is saved already."""
        self.status, self.token = status, token
        if t > self.times[-1]:
            self.save(t, x)


def diagnose(t: float, x: Tensor, v: Tensor) -> tuple[str, int]:
    """Return why a step from (t, x) with velocity v failed, and the token with the largest relative speed."""
    speed, size = (torch.linalg.vector_norm(a.detach().double(), dim=-1) for a in (v, x))
    rate = torch.nan_to_num(speed / size.clamp(min=torch.finfo(torch.float64).tiny), nan=torch.inf)
    token = int(rate.argmax())
    fast = float(rate[token]) * max(t, torch.finfo(torch.float64).tiny) * BLOW_UP_FRACTION > 1
    return (BLEW_UP if fast or not torch.isfinite(v).all() or float(size.max()) > MAX_COORDINATE else STALLED), token


def out_of_bounds(x: Tensor) -> int | None:
    """Return the first token with a coordinate that is NaN or too large to square, or None."""
    wrong = ~(x.abs() <= max_coordinate(x.dtype)).all(-1)  # written so that NaN counts as wrong
    return int(wrong.nonzero()[0]) if bool(wrong.any()) else None


def max_coordinate(dtype: torch.dtype) -> float:
    """Return the largest coordinate whose square is finite in the dtype."""
    return min(MAX_COORDINATE, float(torch.finfo(dtype).max) ** 0.5)


def check_first_velocity(f: Callable[[float, Tensor], Tensor], t: float, x: Tensor) -> None:
    """Raise `InputError` unless the velocity at the start is finite and has the dtype of the tokens."""
    v = f(t, x)
    if v.dtype != x.dtype:
        raise InputError(f"expected a velocity in the tokens' dtype {x.dtype}, got {v.dtype}; use .to() on one of them")
    if not torch.isfinite(v).all():
        token = int((~torch.isfinite(v)).any(-1).nonzero()[0])
        raise InputError(
            f"expected a finite velocity at the first tokens, got NaN or ∞ at token {token}; scores or "
            "weights may be too large for the dtype"
        )
