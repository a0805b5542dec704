"""Adaptive steps: SciPy's solvers on the CPU, torchdiffeq's where the tokens are; a blow-up loses nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from howsmooth.dynamics.progressing import Run, diagnose, first_velocity, out_of_bounds
from howsmooth.dynamics.trajectory import STEP_LIMIT
from howsmooth.dynamics.velocity import Piece, Velocity
from howsmooth.errors import InputError

SCIPY = ("rk45", "dop853", "lsoda", "radau")
MOST_UNKNOWNS = 1000  # of a method with a Jacobian: it is made by n·d evaluations and solved densely
CRAWL = 16  # units of rounding: a shorter step is none


def run(velocity: Velocity, x: Tensor, until: float, times: list[float], solver: str, rtol: float, atol: float,
        max_steps: int, progress: Callable[[float], None] | None) -> Run:
    """Follow the tokens piece by piece, keep the states at exactly `times`."""
    found = Run()
    if times[0] == 0:
        found.save(0.0, x)
    follow = _with_torchdiffeq if solver == "torchdiffeq" else _with_scipy
    with torch.no_grad(), found.kept_when_interrupted():
        for piece in velocity.pieces(until):
            inside = [t for t in times if piece.start < t <= piece.end]
            x = follow(found, piece, x, inside, solver, rtol, atol, max_steps, progress)
            if x is None:
                break
    return found


def _with_scipy(found: Run, piece: Piece, x: Tensor, times: list[float], solver: str, rtol: float, atol: float,
                max_steps: int, progress: Callable[[float], None] | None) -> Tensor | None:
    """To the end of the piece; None where it could not be reached. SciPy's steppers, one step at a time."""
    from scipy import integrate

    if x.device.type != "cpu" or x.dtype != torch.float64:
        raise InputError(f"expected tokens in float64 on the CPU for SciPy's {solver}, got {x.dtype} on {x.device}; "
                         "use solver='torchdiffeq', 'rk4' or 'residual', or .to()")
    if solver in ("radau", "lsoda") and x.numel() > MOST_UNKNOWNS:
        raise InputError(f"expected at most {MOST_UNKNOWNS} coordinates (n·d) for the implicit {solver}, got "
                         f"{x.numel()}; use rk45 or dop853")
    shape = x.shape
    first_velocity(piece, piece.start, x)

    def f(t: float, y) -> object:
        found.evaluations += 1
        return piece(t, torch.from_numpy(y).view(shape)).reshape(-1).numpy()

    method = {"rk45": integrate.RK45, "dop853": integrate.DOP853, "lsoda": integrate.LSODA, "radau": integrate.Radau}
    stepper = method[solver](f, piece.start, x.reshape(-1).numpy(), piece.end, rtol=rtol, atol=atol)
    times = list(times)
    while stepper.status == "running":
        t, y = stepper.t, torch.from_numpy(stepper.y.copy()).view(shape)
        if found.steps >= max_steps:
            return _end(found, STEP_LIMIT, piece, t, y)
        stepper.step()
        moved = torch.from_numpy(stepper.y).view(shape)
        crawled = stepper.status == "running" and stepper.t - t < CRAWL * math.ulp(t)  # LSODA's way to fail
        if stepper.status == "failed" or crawled or out_of_bounds(moved) is not None:
            return _end(found, None, piece, t, y)
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
    pass


def _with_torchdiffeq(found: Run, piece: Piece, x: Tensor, times: list[float], solver: str, rtol: float, atol: float,
                      max_steps: int, progress: Callable[[float], None] | None) -> Tensor | None:
    """From save to save by Dormand and Prince's method in PyTorch, on the tokens' device."""
    try:
        from torchdiffeq import odeint
    except ImportError:
        raise InputError("expected torchdiffeq for solver='torchdiffeq', got none installed; "
                         "pip install 'howsmooth[flow]'") from None
    first_velocity(piece, piece.start, x)
    t, budget = piece.start, 7 * max_steps

    def f(depth: Tensor, y: Tensor) -> Tensor:
        found.evaluations += 1
        if found.evaluations > budget:
            raise _TooManySteps
        return piece(float(depth), y)

    class Counted(torch.nn.Module):
        """torchdiffeq calls `callback_accept_step` after each step: where the flow is, should it not get further."""

        forward = staticmethod(f)

        def callback_accept_step(self, depth: Tensor, y: Tensor, h: Tensor) -> None:
            nonlocal last
            found.steps += 1
            last = (float(depth), y)
            if progress is not None:
                progress(float(depth))

    last = (t, x)
    for at in [*times, *([piece.end] if not times or times[-1] < piece.end else [])]:
        try:
            depths = torch.tensor([t, at], dtype=torch.float64, device=x.device)
            y = odeint(Counted(), x, depths, rtol=rtol, atol=atol, method="dopri5")[-1]
        except _TooManySteps:
            return _end(found, STEP_LIMIT, piece, *last)
        except AssertionError:  # its word for a step that has become too small, or for a state that is no number
            return _end(found, None, piece, *last)
        if out_of_bounds(y) is not None:
            return _end(found, None, piece, *last)
        t, x = at, y
        if at in times:
            found.save(at, x)
    return x


def _end(found: Run, status: str | None, piece: Piece, t: float, x: Tensor) -> None:
    """The flow goes no further than (t, x)."""
    why, token = diagnose(t, x, piece(t, x))
    if not found.times:
        found.save(t, x)
    found.end_early(status or why, t, x, token)
