"""`integrate`: solve x' = Γ_t(x) for tokens, with adaptive or fixed steps.

The adaptive solvers are SciPy's, on the CPU, and torchdiffeq's, on any device; fixed steps are in `fixed_steps`.
When a flow blows up, the trajectory up to that depth is returned, with the depth and the reason.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from howsmooth.dynamics.declaration import check_settings
from howsmooth.dynamics.fixed_steps import SCHEMES, run_fixed
from howsmooth.dynamics.trajectory import (
    INTERRUPTED,
    STEP_LIMIT,
    Interrupted,
    Trajectory,
    TrajectoryRecorder,
    check_first_velocity,
    diagnose,
    out_of_bounds,
)
from howsmooth.dynamics.velocity import Layer, Piece, Velocity, as_velocity
from howsmooth.errors import InputError
from howsmooth.extras import require

MAX_IMPLICIT_COORDINATES = 1000  # implicit solvers need n·d evaluations and a dense solve for each Jacobian
MIN_STEP_ULPS = 16  # steps shorter than this many units in the last place of t make no progress


def integrate(
    velocity: Velocity | Layer,
    x: Tensor,
    until: float,
    *,
    solver: str = "rk45",
    rtol: float = 1e-6,
    atol: float = 1e-9,
    steps: int | None = None,
    frames: int | Sequence[float] = 101,
    max_steps: int = 100_000,
    noise: float = 0.0,
    seed: int | torch.Generator = 0,
    progress: Callable[[float], None] | None = None,
) -> Trajectory:
    """Integrate tokens x (n, d) from depth 0 to `until`.

    A flow that blows up raises no exception: the trajectory up to that depth is returned, and its status, `times` and
    `token` show when and where it ended.

    Args:
        velocity: A `Velocity`, or anything that it accepts: a field, a list of layers, a function of depth.
        x: The tokens at depth 0, (n, d); SciPy's solvers require float64 on the CPU.
        until: The depth to reach.
        solver: "rk45", "dop853", "lsoda" and "radau" are SciPy's adaptive solvers, on the CPU; "torchdiffeq" is the
            method of Dormand and Prince on any device; "rk4" and "residual" take `steps` equal steps. "residual" is
            Euler's method X + (until/steps) Γ(X): the residual layers of a Transformer themselves.
        rtol: Relative tolerance of the adaptive solvers, for each coordinate.
        atol: Absolute tolerance of the adaptive solvers.
        steps: Number of fixed steps; with a list of layers a multiple of their number.
        frames: Number of depths to save, evenly spaced, or the depths themselves. Fixed steps save the depths of
            their own that are nearest to these.
        max_steps: Maximal number of adaptive steps; beyond it the status is "step limit".
        noise: Standard deviation of a Brownian motion per unit of √depth; requires solver="residual"
            (Euler–Maruyama).
        seed: Seed or generator of the noise.
        progress: Called with the depth after every step.

    Returns:
        The tokens at the saved depths, with a status.

    Raises:
        InputError: If the tokens or the settings are not valid, or the velocity at the start is not finite.
        Interrupted: On Ctrl-C; its `partial` is the trajectory up to then. It is a KeyboardInterrupt.

    Example:
        >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
        >>> found = integrate([lambda x: -x], x, 1.0, rtol=1e-9)
        >>> found.status, round(found.last[0, 0].item(), 6)
        ('finished', 0.367879)
    """
    began = time.perf_counter()
    velocity = as_velocity(velocity)
    _check_tokens(velocity, x)
    check_settings(solver, until, rtol, atol, steps, max_steps, noise)
    times = _depths(frames, until)
    if steps is not None:  # a fixed-step scheme, by the check above
        run = run_fixed(velocity, x, until, times, solver, steps, noise, seed, progress)
    else:
        run = run_adaptive(velocity, x, until, times, solver, rtol, atol, max_steps, progress)
    trajectory = Trajectory(
        times=torch.tensor(run.times, dtype=torch.float64),
        tokens=torch.stack(run.tokens),
        status=run.status,
        until=float(until),
        token=run.token,
        solver=solver,
        steps=run.steps,
        evaluations=run.evaluations,
        rtol=None if solver in SCHEMES else rtol,
        atol=None if solver in SCHEMES else atol,
        noise=float(noise),
        seed=run.seed,
        seconds=time.perf_counter() - began,
    )
    if run.status == INTERRUPTED:
        raise Interrupted(trajectory)
    return trajectory


def _depths(frames: int | Sequence[float], until: float) -> list[float]:
    if isinstance(frames, bool):
        raise InputError(f"expected frames as a number of depths, or the depths, got {frames!r}")
    if isinstance(frames, int):
        if frames < 2:
            raise InputError(f"expected at least 2 frames (the first and the last depth), got {frames}")
        return [until * k / (frames - 1) for k in range(frames)]
    try:
        times = [float(t) for t in frames]
    except (TypeError, ValueError):
        raise InputError(f"expected frames as a number of depths, or the depths, got {frames!r}") from None
    if not times or any(not 0 <= t <= until for t in times) or any(b <= a for a, b in itertools.pairwise(times)):
        some = f"{times[:4]} …" if len(times) > 4 else times
        raise InputError(f"expected frames as increasing depths between 0 and {until:g}, got {some}")
    return times


def _check_tokens(velocity: Velocity, x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.dtype.is_floating_point or 0 in x.shape:
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected tokens as a floating tensor (n, d), got {got}")
    if not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x)).any(-1).nonzero()[0])
        raise InputError(f"expected finite tokens, got NaN or ∞ in token {bad}; leave it out")
    if velocity.sphere and bool((x == 0).all(-1).any()):
        zero = int((x == 0).all(-1).nonzero()[0])
        raise InputError(f"expected tokens other than 0 on a sphere, got 0 as token {zero}; it has no direction")


def run_adaptive(
    velocity: Velocity,
    x: Tensor,
    until: float,
    times: list[float],
    solver: str,
    rtol: float,
    atol: float,
    max_steps: int,
    progress: Callable[[float], None] | None,
) -> TrajectoryRecorder:
    """Integrate piece by piece and save the states at exactly `times`."""
    found = TrajectoryRecorder()
    if times[0] == 0:
        found.save(0.0, x)
    integrate_piece = _with_torchdiffeq if solver == "torchdiffeq" else _with_scipy
    with torch.no_grad(), found.kept_when_interrupted():
        for piece in velocity.pieces(until):
            inside = [t for t in times if piece.start < t <= piece.end]
            end = integrate_piece(found, piece, x, inside, solver, rtol, atol, max_steps, progress)
            if end is None:
                break
            x = end
    return found


def _with_scipy(
    found: TrajectoryRecorder,
    piece: Piece,
    x: Tensor,
    times: list[float],
    solver: str,
    rtol: float,
    atol: float,
    max_steps: int,
    progress: Callable[[float], None] | None,
) -> Tensor | None:
    """Return the tokens at the end of the piece, or None if it was not reached; one step of SciPy at a time."""
    from scipy.integrate import DOP853, LSODA, RK45, Radau

    if x.device.type != "cpu" or x.dtype != torch.float64:
        raise InputError(
            f"expected tokens in float64 on the CPU for SciPy's {solver}, got {x.dtype} on {x.device}; "
            "use solver='torchdiffeq', 'rk4' or 'residual', or .to()"
        )
    if solver in ("radau", "lsoda") and x.numel() > MAX_IMPLICIT_COORDINATES:
        raise InputError(
            f"expected at most {MAX_IMPLICIT_COORDINATES} coordinates (n·d) for the implicit {solver}, got "
            f"{x.numel()}; use rk45 or dop853"
        )
    shape = x.shape
    check_first_velocity(piece, piece.start, x)

    def f(t: float, y: NDArray[np.float64]) -> NDArray[np.float64]:
        found.evaluations += 1
        return piece(t, torch.from_numpy(y).view(shape)).reshape(-1).numpy()

    method = {"rk45": RK45, "dop853": DOP853, "lsoda": LSODA, "radau": Radau}
    stepper = method[solver](f, piece.start, x.reshape(-1).numpy(), piece.end, rtol=rtol, atol=atol)
    times = list(times)
    while stepper.status == "running":
        t, y = stepper.t, torch.from_numpy(stepper.y.copy()).view(shape)
        if found.steps >= max_steps:
            _end_early(found, STEP_LIMIT, piece, t, y)
            return None
        stepper.step()
        moved = torch.from_numpy(stepper.y).view(shape)
        too_small = stepper.status == "running" and stepper.t - t < MIN_STEP_ULPS * math.ulp(t)  # how LSODA fails
        if stepper.status == "failed" or too_small or out_of_bounds(moved) is not None:
            _end_early(found, None, piece, t, y)
            return None
        found.steps += 1
        if times and times[0] <= stepper.t:
            between = stepper.dense_output()
            while times and times[0] <= stepper.t:
                at = times.pop(0)
                state = stepper.y if at == stepper.t else between(at)
                found.save(at, torch.from_numpy(state.copy()).view(shape))
        if progress is not None:
            progress(stepper.t)
    return torch.from_numpy(stepper.y.copy()).view(shape)


class _TooManySteps(Exception):
    """The velocity was evaluated more often than `max_steps` steps need."""


def _with_torchdiffeq(
    found: TrajectoryRecorder,
    piece: Piece,
    x: Tensor,
    times: list[float],
    solver: str,
    rtol: float,
    atol: float,
    max_steps: int,
    progress: Callable[[float], None] | None,
) -> Tensor | None:
    """Return the tokens at the end of the piece, or None; from frame to frame, on the tokens' device."""
    require("torchdiffeq", purpose="for solver='torchdiffeq'")
    from torchdiffeq import odeint

    check_first_velocity(piece, piece.start, x)
    t, budget = piece.start, 7 * max_steps  # evaluations; a step of Dormand and Prince takes up to seven
    last = (t, x)  # the state after the last accepted step

    def f(depth: Tensor, y: Tensor) -> Tensor:
        found.evaluations += 1
        if found.evaluations > budget:
            raise _TooManySteps
        return piece(float(depth), y)

    class Counted(torch.nn.Module):
        """The velocity, with the callback that torchdiffeq calls after each accepted step."""

        forward = staticmethod(f)

        def callback_accept_step(self, depth: Tensor, y: Tensor, h: Tensor) -> None:
            nonlocal last
            found.steps += 1
            last = (float(depth), y)
            if progress is not None:
                progress(float(depth))

    for at in [*times, *([piece.end] if not times or times[-1] < piece.end else [])]:
        try:
            depths = torch.tensor([t, at], dtype=torch.float64, device=x.device)
            y = odeint(Counted(), x, depths, rtol=rtol, atol=atol, method="dopri5")[-1]
        except _TooManySteps:
            _end_early(found, STEP_LIMIT, piece, *last)
            return None
        except AssertionError:  # torchdiffeq's error for an underflowing step size and for NaN
            _end_early(found, None, piece, *last)
            return None
        if out_of_bounds(y) is not None:
            _end_early(found, None, piece, *last)
            return None
        t, x = at, y
        if at in times:
            found.save(at, x)
    return x


def _end_early(found: TrajectoryRecorder, status: str | None, piece: Piece, t: float, x: Tensor) -> None:
    """Record that the flow ends at (t, x), for the reason given or, with None, the one that `diagnose` finds."""
    why, token = diagnose(t, x, piece(t, x))
    if not found.times:
        found.save(t, x)
    found.end_early(status or why, t, x, token)
