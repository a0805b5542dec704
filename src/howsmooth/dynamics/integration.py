"""`integrate`: follow tokens through depth by adaptive or fixed steps.

Adaptive solvers are SciPy's, on the CPU, and torchdiffeq's, where the tokens are; `fixed_steps` has the others.
A flow that blows up loses nothing: what is known until then comes back, with where and why it ended.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from howsmooth.dynamics.fixed_steps import SCHEMES, run_fixed
from howsmooth.dynamics.trajectory import (
    INTERRUPTED,
    STEP_LIMIT,
    Interrupted,
    Run,
    Trajectory,
    diagnose,
    first_velocity,
    out_of_bounds,
)
from howsmooth.dynamics.velocity import Layer, Piece, Velocity, as_velocity
from howsmooth.errors import InputError

SCIPY = ("rk45", "dop853", "lsoda", "radau")
SOLVERS = (*SCIPY, "torchdiffeq", *SCHEMES)
LARGEST_DEPTH = 1e12
MOST_UNKNOWNS = 1000  # of a method with a Jacobian: it is made by n·d evaluations and solved densely
CRAWL = 16  # units of rounding: a shorter step is none


def integrate(
    velocity: Velocity | Layer,
    x: Tensor,
    until: float,
    *,
    solver: str = "rk45",
    rtol: float = 1e-6,
    atol: float = 1e-9,
    steps: int | None = None,
    saves: int | Sequence[float] = 101,
    max_steps: int = 100_000,
    noise: float = 0.0,
    seed: int | torch.Generator = 0,
    progress: Callable[[float], None] | None = None,
) -> Trajectory:
    """Follow tokens x (n, d) from depth 0 to `until`.

    Args:
        velocity: a `Velocity`, or anything it can be made of: a field, a list of layers, a function of depth.
        solver: "rk45", "dop853", "lsoda", "radau" are SciPy's, with adaptive steps, on the CPU; "torchdiffeq" is
            Dormand and Prince's method on any device; "rk4" and "residual" take `steps` equal steps. "residual" is the
            Transformer itself, X + (until/steps) Γ(X), and Euler's method.
        rtol, atol: of the adaptive solvers, relative to a coordinate and absolute.
        steps: number of fixed steps; with a list of layers a multiple of their number.
        saves: how many depths to keep, evenly spread, or the depths themselves. Fixed steps keep their own depths
            nearest to these.
        max_steps: of an adaptive solver; then the status is "step limit".
        noise: standard deviation of a Brownian motion added per unit of √depth; needs solver="residual"
            (Euler–Maruyama), and `seed` decides what is drawn.
        progress: called with the depth after every step.

    A flow that blows up raises nothing: the trajectory until then comes back, and says when and where it ended. Ctrl-C
    raises `Interrupted`, a KeyboardInterrupt whose `partial` is the trajectory until then.

    >>> x = torch.tensor([[1.0], [2.0]], dtype=torch.float64)
    >>> found = integrate([lambda x: -x], x, 1.0, rtol=1e-9)
    >>> found.status, round(found.last[0, 0].item(), 6)
    ('finished', 0.367879)
    """
    began = time.perf_counter()
    velocity = as_velocity(velocity)
    _refuse_wrong_tokens(velocity, x)
    _refuse_wrong_numbers(solver, until, rtol, atol, steps, max_steps, noise)
    times = _depths(saves, until)
    if solver in SCHEMES:
        run = run_fixed(velocity, x, until, times, solver, steps, noise, seed, progress)
        rtol = atol = None
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
        rtol=rtol,
        atol=atol,
        noise=float(noise),
        seed=run.seed,
        seconds=time.perf_counter() - began,
    )
    if run.status == INTERRUPTED:
        raise Interrupted(trajectory)
    return trajectory


def _depths(saves: int | Sequence[float], until: float) -> list[float]:
    if isinstance(saves, int) and not isinstance(saves, bool):
        if saves < 2:
            raise InputError(f"expected at least 2 depths to save (the first and the last), got {saves}")
        return [until * k / (saves - 1) for k in range(saves)]
    try:
        times = [float(t) for t in saves]
    except (TypeError, ValueError):
        raise InputError(f"expected a number of depths to save, or the depths, got {saves!r}") from None
    if not times or any(not 0 <= t <= until for t in times) or any(b <= a for a, b in itertools.pairwise(times)):
        some = f"{times[:4]} …" if len(times) > 4 else times
        raise InputError(f"expected increasing depths between 0 and {until:g} to save, got {some}")
    return times


def _refuse_wrong_tokens(velocity: Velocity, x: Tensor) -> None:
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.dtype.is_floating_point or 0 in x.shape:
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected tokens as a floating tensor (n, d), got {got}")
    if not torch.isfinite(x).all():
        bad = int((~torch.isfinite(x)).any(-1).nonzero()[0])
        raise InputError(f"expected finite tokens, got NaN or ∞ in token {bad}; leave it out")
    if velocity.sphere and bool((x == 0).all(-1).any()):
        zero = int((x == 0).all(-1).nonzero()[0])
        raise InputError(f"expected tokens other than 0 on a sphere, got 0 as token {zero}; it has no direction")


def _refuse_wrong_numbers(solver, until, rtol, atol, steps, max_steps, noise) -> None:
    if solver not in SOLVERS:
        raise InputError(f"expected a solver among {', '.join(SOLVERS)}, got {solver!r}")
    for name, value, least, most in (
        ("until", until, 0.0, LARGEST_DEPTH),
        ("rtol", rtol, 0.0, 1.0),
        ("atol", atol, 0.0, math.inf),
    ):
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not least < value <= most:
            raise InputError(f"expected {name} as a positive number up to {most:g}, got {value!r}")
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise InputError(f"expected max_steps as a positive whole number, got {max_steps!r}")
    if (steps is None) == (solver in SCHEMES):
        raise InputError(
            f"expected steps with {' or '.join(SCHEMES)} and only there, got solver {solver!r} "
            + ("without steps" if steps is None else f"with steps={steps}; leave them out")
        )
    if not isinstance(noise, (int, float)) or not 0 <= noise < math.inf:
        raise InputError(f"expected noise as a number ≥ 0, got {noise!r}")
    if noise and solver != "residual":
        raise InputError(
            f"expected solver='residual' with noise (Euler–Maruyama), got {solver!r}; the others would "
            "lose their order to it"
        )


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
) -> Run:
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


def _with_scipy(
    found: Run,
    piece: Piece,
    x: Tensor,
    times: list[float],
    solver: str,
    rtol: float,
    atol: float,
    max_steps: int,
    progress: Callable[[float], None] | None,
) -> Tensor | None:
    """To the end of the piece; None where it could not be reached. SciPy's steppers, one step at a time."""
    from scipy.integrate import DOP853, LSODA, RK45, Radau

    if x.device.type != "cpu" or x.dtype != torch.float64:
        raise InputError(
            f"expected tokens in float64 on the CPU for SciPy's {solver}, got {x.dtype} on {x.device}; "
            "use solver='torchdiffeq', 'rk4' or 'residual', or .to()"
        )
    if solver in ("radau", "lsoda") and x.numel() > MOST_UNKNOWNS:
        raise InputError(
            f"expected at most {MOST_UNKNOWNS} coordinates (n·d) for the implicit {solver}, got "
            f"{x.numel()}; use rk45 or dop853"
        )
    shape = x.shape
    first_velocity(piece, piece.start, x)

    def f(t: float, y) -> object:
        found.evaluations += 1
        return piece(t, torch.from_numpy(y).view(shape)).reshape(-1).numpy()

    method = {"rk45": RK45, "dop853": DOP853, "lsoda": LSODA, "radau": Radau}
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


def _with_torchdiffeq(
    found: Run,
    piece: Piece,
    x: Tensor,
    times: list[float],
    solver: str,
    rtol: float,
    atol: float,
    max_steps: int,
    progress: Callable[[float], None] | None,
) -> Tensor | None:
    """From save to save by Dormand and Prince's method in PyTorch, on the tokens' device."""
    try:
        from torchdiffeq import odeint
    except ImportError:
        raise InputError(
            "expected torchdiffeq for solver='torchdiffeq', got none installed; pip install 'howsmooth[flow]'"
        ) from None
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
