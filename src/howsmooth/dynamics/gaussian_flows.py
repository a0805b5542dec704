"""Gaussian flows: N(α, S) under x' = Γ_μ(x), an ordinary differential equation for its mean and covariance.

Γ_μ is affine on a Gaussian, Γ_μ(x) = g + B(x − α), so that tokens move by an affine map and Gaussians stay Gaussian:

    α' = g        Φ' = BΦ, Φ(0) = I        S = Φ S₀ Φᵀ        a token that starts at x is at α + Φ(x − α₀)

The integrated variable is Φ, not S: ΦS₀Φᵀ is positive semidefinite whatever the error of the integrator, so no
projection onto the cone of covariances is needed, and S has the rank of S₀ at every time. A lower rank can only be
reached in the limit; `limiting_rank` estimates it.

`compare_particles` integrates tokens drawn from the start and compares them with the flow.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.integrate import DOP853, LSODA, RK45, Radau
from torch import Tensor

from howsmooth.attention.fields.field import Field
from howsmooth.dynamics.gaussian import Array, Closure, GaussianState, closure
from howsmooth.dynamics.integration import integrate
from howsmooth.errors import InputError

SOLVERS = {"lsoda": LSODA, "dop853": DOP853, "rk45": RK45, "radau": Radau}
_BLOW_UP_FACTOR = 8.0  # a flow blows up when its size grows by this factor …
_BLOW_UP_WINDOW = 1e-4  # … within this fraction of the elapsed time
_MAX_DEVIATION = 1e120  # standard deviation whose square is still finite
# Eigenvalues above this fraction of the largest blow up with it; the others are about 1e6 times smaller.
BLOW_UP_RATIO = 1e-3

GAUSSIAN_FLOW_REMEDIES = {
    "finished": "nothing to do: the flow was followed to its end",
    "blew up": "the covariance is infinite at this time; stop before it",
    "overflow": "it grows at least exponentially and leaves the range of float64; stop earlier",
    "step limit": "raise max_steps or rtol, or stop earlier",
    "step too small": "the solver cannot meet this tolerance; raise rtol, take another solver, or stop earlier",
}
_COMPARED_FRACTION = 0.9  # of the time to a blow-up; later, the sampled tail decides when particles blow up


@dataclass(frozen=True, eq=False)
class BlowUp:
    """A blow-up in finite time: when, and along which directions.

    It is detected by growth: the size (tr S + |α|²)^½ of the Gaussian exceeds eight times its maximum up to a
    ten-thousandth of the elapsed time before. An exponential would overflow before it grew as fast. The time is
    extrapolated from the pole of order one that S has there.

    Attributes:
        time: The blow-up time t*.
        directions: (d, r), one direction in each column, the fastest first.
        uncertainty: Of the time: at most a ten-thousandth of the elapsed time.
    """

    time: float
    directions: Tensor
    uncertainty: float

    @property
    def direction(self) -> Tensor:
        """The fastest direction, (d,)."""
        return self.directions[:, 0]

    def as_record(self) -> dict[str, Any]:
        """Return the blow-up as plain values, each direction as a row."""
        return {"time": self.time, "directions": self.directions.mT.tolist(), "uncertainty": self.uncertainty}


@dataclass(frozen=True, eq=False)
class GaussianFlow:
    """A Gaussian along time; if it blows up, everything up to then.

    Attributes:
        field: Name of the attention field.
        start: The Gaussian at time 0.
        times: The saved times, (T,).
        means: The means α, (T, d).
        maps: The maps Φ, (T, d, d).
        slope: B at the end, (d, d).
        status: "finished", "blew up" (see `blow_up`), "overflow" (too large to square, but no blow-up in finite
            time), "step limit" or "step too small"; `remedy` suggests what to do.
        until: The time that was requested.
        blow_up: Time and directions of a blow-up, or None.
        steps: Number of steps of the integrator.
        rtol: Its relative tolerance.
        seconds: Wall-clock time.
    """

    field: str
    start: GaussianState
    times: Tensor
    means: Tensor
    maps: Tensor
    slope: Tensor
    status: str
    until: float
    blow_up: BlowUp | None
    steps: int
    rtol: float
    seconds: float

    @property
    def remedy(self) -> str:
        """What to do about the status."""
        return GAUSSIAN_FLOW_REMEDIES[self.status]

    @property
    def ending(self) -> str:
        """One line with the status and the time, and the directions of a blow-up."""
        if self.blow_up is None:
            return f"{self.status} at t = {float(self.times[-1]):.6g}"
        along = "; ".join(", ".join(f"{x:.3g}" for x in column) for column in self.blow_up.directions.mT.tolist())
        return f"blew up at t = {self.blow_up.time:.6g} along ({along})"

    @property
    def covariances(self) -> Tensor:
        """The covariances S (T, d, d), positive semidefinite by construction."""
        factors = self.maps @ self.start.root
        return factors @ factors.mT

    @property
    def last(self) -> GaussianState:
        """The Gaussian at the last saved time."""
        return self.state(-1)

    def state(self, index: int) -> GaussianState:
        """Return N(α, S) at times[index]."""
        return GaussianState(self.means[index], self.covariances[index])

    def push(self, x: Tensor, index: int = -1) -> Tensor:
        """Return where tokens x (n, d) at time 0 are at times[index], in the limit of infinitely many tokens."""
        return self.means[index] + (x.double() - self.start.mean) @ self.maps[index].mT

    def as_record(self) -> dict[str, Any]:
        """Return the flow as plain values."""
        return {
            "field": self.field,
            "d": self.start.d,
            "status": self.status,
            "until": self.until,
            "start": self.start.as_record(),
            "blow_up": None if self.blow_up is None else self.blow_up.as_record(),
            "times": self.times.tolist(),
            "means": self.means.tolist(),
            "covariances": self.covariances.tolist(),
            "steps": self.steps,
            "rtol": self.rtol,
            "dtype": "float64",
            "seconds": self.seconds,
        }


def gaussian_flow(
    field: Field,
    start: GaussianState,
    until: float,
    *,
    frames: int = 101,
    solver: str = "lsoda",
    rtol: float = 1e-9,
    max_steps: int = 20_000,
    progress: Callable[[float, int], None] | None = None,
) -> GaussianFlow:
    """Integrate N(α, S) under x' = Γ_μ(x) up to time `until`, with adaptive steps.

    A flow that blows up or needs more than `max_steps` steps is returned up to that time; its status tells so. A
    covariance that collapses in one direction while it grows in another makes the equation stiff; "lsoda" switches to
    an implicit method then.

    Args:
        field: Attention as a field on R^d: softmax, L2, Sinkhorn, linear, or mean pooling.
        start: The Gaussian at time 0.
        until: The time to reach.
        frames: Number of saved times, evenly spaced.
        solver: "lsoda", "dop853", "rk45" or "radau", all from SciPy.
        rtol: Relative tolerance of the solver.
        max_steps: Maximal number of steps.
        progress: Called with the time and the number of steps after each step. A flow that ends early takes its steps
            twice, to spread the frames.

    Returns:
        Means and covariances at the saved times, with a status, and the time and directions of a blow-up.

    Raises:
        InputError: If the field does not keep Gaussians Gaussian, or a setting is not valid.

    Example:
        >>> from howsmooth.attention.fields import SoftmaxField
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> flow = gaussian_flow(SoftmaxField.of(eye, eye), GaussianState.standard(2), until=1.0)
        >>> flow.status, round(flow.blow_up.time, 4)     # V = I: 1 / λ_max(S₀^½ (A + Aᵀ) S₀^½)
        ('blew up', 0.5)
    """
    _check(field, start, until, frames, solver, rtol, max_steps)
    began = time.perf_counter()
    rates = closure(field)

    def integrate_to(last: float) -> tuple[list[tuple[float, Array]], str, BlowUp | None, int]:
        return _integrate(rates, start, until, np.linspace(0, last, frames), SOLVERS[solver], rtol, max_steps, progress)

    kept, status, blow_up, steps = integrate_to(until)
    if status != "finished":  # take the same steps again, to spread the frames over the time that was reached
        kept, status, blow_up, steps = integrate_to(kept[-1][0])
    d = start.d
    means, maps = np.stack([y[:d] for _, y in kept]), np.stack([y[d:].reshape(d, d) for _, y in kept])
    _, slope = rates(means[-1], maps[-1] @ start.root.numpy())
    return GaussianFlow(
        field.name,
        start,
        torch.tensor([t for t, _ in kept], dtype=torch.float64),
        torch.from_numpy(means),
        torch.from_numpy(maps),
        torch.from_numpy(slope),
        status,
        float(until),
        blow_up,
        steps,
        rtol,
        time.perf_counter() - began,
    )


def _integrate(
    rates: Closure,
    start: GaussianState,
    until: float,
    frames: Array,
    method: type,
    rtol: float,
    max_steps: int,
    progress: Callable[[float, int], None] | None,
) -> tuple[list[tuple[float, Array]], str, BlowUp | None, int]:
    """Return (t, (α, Φ)) at the frames reached and at the end, the status, the blow-up and the number of steps."""
    d, root = start.d, start.root.numpy()
    size = max(float(start.mean.norm()), float(np.linalg.norm(root)), 1e-150)
    atol = 1e-3 * rtol * np.concatenate([np.full(d, size), np.ones(d * d)])

    def velocity(t: float, y: Array) -> Array:
        mean, spread = y[:d], y[d:].reshape(d, d)
        g, slope = rates(mean, spread @ root)
        return np.concatenate([g, (slope @ spread).ravel()])

    y = np.concatenate([start.mean.numpy(), np.eye(d).ravel()])
    kept, wanted, status, blow_up, steps = [(0.0, y)], list(frames[1:]), "finished", None, 0
    largest = [(0.0, size)]  # the times at which the size reached a new maximum
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # trial steps past the blow-up overflow and are rejected
        solver = method(velocity, 0.0, y, until, rtol=rtol, atol=atol)
        while solver.status == "running" and status == "finished":
            if steps >= max_steps:
                status = "step limit"
                break
            solver.step()
            if solver.status == "failed" or not np.isfinite(solver.y).all():  # steps have shrunk below rounding
                status = "step too small"
                break
            steps += 1
            if progress is not None:
                progress(float(solver.t), steps)
            while wanted and wanted[0] <= solver.t:
                moment = wanted.pop(0)
                kept.append((moment, solver.y if moment == solver.t else solver.dense_output()(moment)))
            factor = solver.y[d:].reshape(d, d) @ root
            size = math.hypot(np.linalg.norm(factor), np.linalg.norm(solver.y[:d]))
            if size > largest[-1][1]:
                largest.append((solver.t, size))
                since = solver.t - next(
                    t for t, before in reversed(largest) if before <= size / _BLOW_UP_FACTOR or t == 0
                )
                if since <= _BLOW_UP_WINDOW * solver.t:
                    status = "blew up"
                    left = since / (_BLOW_UP_FACTOR**2 - 1)  # size² has a pole of order one
                    blow_up = BlowUp(solver.t + left, _blow_up_directions(solver.y[:d], factor), since)
                elif size > _MAX_DEVIATION:
                    status = "overflow"
    if kept[-1][0] < solver.t and np.isfinite(solver.y).all():
        kept.append((solver.t, solver.y))
    return kept, status, blow_up, steps


def _blow_up_directions(mean: Array, factor: Array) -> Tensor:
    """Return the eigenvectors of S + ααᵀ whose eigenvalues are of the size of the largest, with a sign convention.

    The entry of largest modulus is positive.
    """
    vectors, sizes, _ = np.linalg.svd(np.column_stack([factor, mean]), full_matrices=False)
    vectors = vectors[:, sizes**2 >= BLOW_UP_RATIO * sizes[0] ** 2]
    return torch.from_numpy(vectors * np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0)))


def _check(
    field: Field, start: GaussianState, until: float, frames: int, solver: str, rtol: float, max_steps: int
) -> None:
    if not isinstance(start, GaussianState):
        raise InputError(f"expected a GaussianState to start from, got {type(start).__name__}; GaussianState.of(α, S)")
    if isinstance(field, Field) and field.d != start.d:
        raise InputError(f"expected a Gaussian on R^{field.d}, the domain of the field, got one on R^{start.d}")
    if not 0 < until < math.inf:
        raise InputError(f"expected a positive finite time until, got {until}")
    if solver not in SOLVERS:
        raise InputError(f"expected a solver among {', '.join(SOLVERS)}, got {solver!r}")
    if not 0 < rtol < 1:
        raise InputError(f"expected rtol between 0 and 1, got {rtol}; the default 1e-9 is cheap")
    for name, value, least in (("frames", frames, 2), ("max_steps", max_steps, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"expected {name} as a whole number of at least {least}, got {value!r}")


@dataclass(frozen=True, eq=False)
class ParticleComparison:
    """Particles integrated from the start of a Gaussian flow, and their distances to the flow.

    Attributes:
        times: Times of the flow at which particles and flow are compared, (T,).
        tokens: The particles there, (T, n, d).
        coupled: Root mean square distance between each particle and the image of its start under the flow, (T,).
        moments: W₂ between the Gaussian of the flow and the one with the particles' mean and covariance, (T,).
        seed: Seed of the draw.
        status: How the integration of the particles ended.
    """

    times: Tensor
    tokens: Tensor
    coupled: Tensor
    moments: Tensor
    seed: int
    status: str

    def as_record(self) -> dict[str, Any]:
        """Return the distances as plain values, without the tokens."""
        return {
            "n": self.tokens.shape[1],
            "seed": self.seed,
            "status": self.status,
            "times": self.times.tolist(),
            "coupled": self.coupled.tolist(),
            "moments": self.moments.tolist(),
        }


def compare_particles(
    flow: GaussianFlow, field: Field, n: int, *, seed: int = 0, rtol: float = 1e-6
) -> ParticleComparison:
    """Integrate n particles drawn from the start of a flow, and compare them with it.

    They are compared up to the end of the flow, or up to nine tenths of its blow-up time.

    Args:
        flow: The Gaussian flow.
        field: The field that it was computed with.
        n: Number of particles.
        seed: Seed of the draw.
        rtol: Relative tolerance for the particles.

    Returns:
        The particles at the times of the flow, and two distances.

    Raises:
        InputError: If the flow has no frame before nine tenths of its blow-up time.

    Example:
        >>> import torch
        >>> from howsmooth.attention.fields import LinearField
        >>> from howsmooth.dynamics import gaussian_flow
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> field = LinearField(-eye, eye)
        >>> comparison = compare_particles(gaussian_flow(field, GaussianState.standard(2), 1.0), field, 2000)
        >>> bool(comparison.coupled[-1] < 0.1)
        True
    """
    end = float(flow.times[-1]) if flow.blow_up is None else _COMPARED_FRACTION * flow.blow_up.time
    times = [t for t in flow.times.tolist() if t <= end]
    if len(times) < 2:
        raise InputError(
            f"expected a frame of the flow between its start and {end:.4g}, nine tenths of the blow-up time, "
            "got none; take more frames"
        )
    x = flow.start.sample(n, torch.Generator().manual_seed(seed))
    found = integrate(field, x, times[-1], frames=times, rtol=rtol, atol=1e-3 * rtol)
    reached = range(len(found.tokens))
    coupled = [(y - flow.push(x, k)).square().sum(-1).mean().sqrt() for k, y in enumerate(found.tokens)]
    moments = [GaussianState.fitted(found.tokens[k]).distance(flow.state(k)) for k in reached]
    return ParticleComparison(
        found.times, found.tokens, torch.stack(coupled), torch.tensor(moments, dtype=torch.float64), seed, found.status
    )
