"""What an integrator hands back: the tokens along depth, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

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
        names = ("status", "until", "reached", "token", "solver", "steps", "evaluations", "rtol", "atol", "noise",
                 "seed", "seconds")
        n, d = self.tokens.shape[1:]
        return {"n": n, "d": d, **{name: getattr(self, name) for name in names},
                "dtype": str(self.dtype).removeprefix("torch.")}


class Interrupted(KeyboardInterrupt):
    """Ctrl-C on the way: `partial` is the trajectory until then."""

    def __init__(self, partial: Trajectory):
        super().__init__()
        self.partial = partial
