"""Names of the solvers of flows and checks of their settings, without torch."""

from __future__ import annotations

import math

from howsmooth.errors import InputError

SCIPY = ("rk45", "dop853", "lsoda", "radau")
FIXED_STEPS = ("residual", "rk4")  # keys of howsmooth.dynamics.fixed_steps.SCHEMES
SOLVERS = (*SCIPY, "torchdiffeq", *FIXED_STEPS)
MAX_DEPTH = 1e12


def check_settings(
    solver: str, until: float, rtol: float, atol: float, steps: int | None, max_steps: int, noise: float
) -> None:
    """Raise InputError if these arguments of `howsmooth.dynamics.integrate` are not valid together.

    Example:
        >>> check_settings("rk4", 1.0, 1e-6, 1e-9, None, 100, 0.0)
        Traceback (most recent call last):
        howsmooth.errors.InputError: expected a number of steps for the solver rk4, got none; set steps
    """
    if solver not in SOLVERS:
        raise InputError(f"expected a solver among {', '.join(SOLVERS)}, got {solver!r}")
    for name, value, least, most in (
        ("until", until, 0.0, MAX_DEPTH),
        ("rtol", rtol, 0.0, 1.0),
        ("atol", atol, 0.0, math.inf),
    ):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not least < value <= most:
            raise InputError(f"expected {name} as a positive number up to {most:g}, got {value!r}")
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise InputError(f"expected max_steps as a positive whole number, got {max_steps!r}")
    if steps is None and solver in FIXED_STEPS:
        raise InputError(f"expected a number of steps for the solver {solver}, got none; set steps")
    if steps is not None and solver not in FIXED_STEPS:
        raise InputError(
            f"expected a number of steps only with the solvers {' and '.join(FIXED_STEPS)}, got {steps} with {solver}, "
            "which chooses its own; leave it out"
        )
    if not isinstance(noise, (int, float)) or not 0 <= noise < math.inf:
        raise InputError(f"expected noise as a number ≥ 0, got {noise!r}")
    if noise and solver != "residual":
        raise InputError(
            f"expected the solver residual with noise (Euler–Maruyama), got {solver}; noise would reduce the order of "
            "the other solvers"
        )
