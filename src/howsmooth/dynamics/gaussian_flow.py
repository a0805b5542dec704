"""Gaussian flows: N(α, S) under x' = Γ_μ(x), an ordinary differential equation for its mean and covariance.

Γ_μ is affine on a Gaussian, Γ_μ(x) = g + B(x − α), so that tokens move by an affine map and Gaussians stay Gaussian:

    α' = g        Φ' = BΦ, Φ(0) = I        S = Φ S₀ Φᵀ        a token that starts at x is at α + Φ(x − α₀)

What is integrated is Φ, not S: ΦS₀Φᵀ is symmetric without negative eigenvalues whatever the error of the integrator,
so nothing has to be projected back to the cone of covariances, and the rank of S is that of S₀ at every time. Collapse
to a lower rank is a limit; `limiting_rank` reads it off.

`particles_beside` follows tokens drawn from the start beside the flow.
"""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.integrate import DOP853, LSODA, RK45, Radau
from torch import Tensor

from howsmooth.attention.fields import Field
from howsmooth.dynamics.gaussian import Array, Closure, GaussianState, closure
from howsmooth.dynamics.integration import integrate
from howsmooth.errors import InputError

SOLVERS = {"lsoda": LSODA, "dop853": DOP853, "rk45": RK45, "radau": Radau}
_TIMES, _SHARE = 8.0, 1e-4  # a flow is at its blow-up when its size has grown so many times in this share of the time
_LARGEST = 1e120  # of a standard deviation: its square is a number still
BLOWS_UP = 1e-3  # eigenvalues above this share of the largest blow up with it; others are about 1e6 times smaller

REMEDY = {
    "finished": "nothing to do: the flow was followed to its end",
    "blew up": "the covariance is infinite at this time; stop before it",
    "overflow": "it grows exponentially, or close to it: nothing is left to see, stop earlier",
    "step limit": "raise max_steps or rtol, or stop earlier",
    "step too small": "the solver gets no further at this tolerance; raise rtol, take another solver, or stop earlier",
}
_BEFORE = 0.9  # how much of the time to a blow-up is compared: past it, sampling decides when tokens blow up


@dataclass(frozen=True, eq=False)
class BlowUp:
    """When a flow ends in finite time, and along which directions (d, r): the columns, the fastest first.

    Seen by growth: the size of the Gaussian, (tr S + |α|²)^½, exceeds eight times all that it was a ten-thousandth of
    the elapsed time ago. An exponential would have left the range of numbers before it did that. t* is extrapolated by
    the pole of order one that S has there; `uncertainty` is that ten-thousandth or less.
    """

    time: float
    directions: Tensor
    uncertainty: float

    @property
    def direction(self) -> Tensor:
        return self.directions[:, 0]

    def as_record(self) -> dict[str, Any]:
        return {"time": self.time, "directions": self.directions.mT.tolist(), "uncertainty": self.uncertainty}


@dataclass(frozen=True, eq=False)
class GaussianFlow:
    """A trajectory: times (T), means (T, d) and maps Φ (T, d, d); on blow-up, everything until then.

    `status` is "finished", "blew up" (see `blow_up`), "overflow" (grown beyond any number that can be squared, but not
    in finite time), "step limit" or "step too small"; `remedy` says what to do. `slope` is B at the end.
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
        """What the status asks of the reader."""
        return REMEDY[self.status]

    @property
    def ending(self) -> str:
        """How it ended, in one line."""
        if self.blow_up is None:
            return f"{self.status} at t = {float(self.times[-1]):.6g}"
        along = "; ".join(", ".join(f"{x:.3g}" for x in column) for column in self.blow_up.directions.mT.tolist())
        return f"blew up at t = {self.blow_up.time:.6g} along ({along})"

    @property
    def covariances(self) -> Tensor:
        """(T, d, d), symmetric and positive by construction."""
        factors = self.maps @ self.start.root
        return factors @ factors.mT

    @property
    def last(self) -> GaussianState:
        return self.state(-1)

    def state(self, index: int) -> GaussianState:
        """N(α, S) at times[index]."""
        return GaussianState(self.means[index], self.covariances[index])

    def push(self, x: Tensor, index: int = -1) -> Tensor:
        """Where tokens (n, d) that start at x are at times[index], in the limit of infinitely many of them."""
        return self.means[index] + (x.double() - self.start.mean) @ self.maps[index].mT

    def as_record(self) -> dict[str, Any]:
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
) -> GaussianFlow:
    """Integrate N(α, S) under x' = Γ_μ(x) up to time `until`, with adaptive steps.

    A flow that ends before, because it blows up or needs more than `max_steps` steps, is returned until then, with a
    status that says so, and with the time and the directions of its blow-up. A covariance that collapses in one
    direction while it grows in another is stiff; "lsoda" (SciPy's, as all of them) notices and changes its method.

    >>> from howsmooth.attention.fields import SoftmaxField
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> flow = gaussian_flow(SoftmaxField.of(eye, eye), GaussianState.standard(2), until=1.0)
    >>> flow.status, round(flow.blow_up.time, 4)     # V = I: 1 / λ_max(S₀^½ (A + Aᵀ) S₀^½)
    ('blew up', 0.5)
    """
    _check(field, start, until, frames, solver, rtol, max_steps)
    began = time.perf_counter()
    rates = closure(field)

    def integrate(last: float) -> tuple[list, str, BlowUp | None, int]:
        return _integrate(rates, start, until, np.linspace(0, last, frames), SOLVERS[solver], rtol, max_steps)

    kept, status, blow_up, steps = integrate(until)
    if status != "finished":  # the same steps once more, with as many frames in the time that there was
        kept, status, blow_up, steps = integrate(kept[-1][0])
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
    rates: Closure, start: GaussianState, until: float, frames: Array, method: type, rtol: float, max_steps: int
) -> tuple[list[tuple[float, Array]], str, BlowUp | None, int]:
    """(t, (α, Φ)) at the frames that are reached and at the end, how it ended, and the number of steps."""
    d, root = start.d, start.root.numpy()
    size = max(float(start.mean.norm()), float(np.linalg.norm(root)), 1e-150)
    slack = 1e-3 * rtol * np.concatenate([np.full(d, size), np.ones(d * d)])

    def velocity(t: float, y: Array) -> Array:
        mean, spread = y[:d], y[d:].reshape(d, d)
        g, slope = rates(mean, spread @ root)
        return np.concatenate([g, (slope @ spread).ravel()])

    y = np.concatenate([start.mean.numpy(), np.eye(d).ravel()])
    kept, wanted, status, blow_up, steps = [(0.0, y)], list(frames[1:]), "finished", None, 0
    largest = [(0.0, size)]  # the size at each time at which it was larger than ever before
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a trial step past the blow-up is taken back
        solver = method(velocity, 0.0, y, until, rtol=rtol, atol=slack)
        while solver.status == "running" and status == "finished":
            if steps >= max_steps:
                status = "step limit"
                break
            solver.step()
            if solver.status == "failed" or not np.isfinite(solver.y).all():  # steps have shrunk below rounding
                status = "step too small"
                break
            steps += 1
            while wanted and wanted[0] <= solver.t:
                moment = wanted.pop(0)
                kept.append((moment, solver.y if moment == solver.t else solver.dense_output()(moment)))
            factor = solver.y[d:].reshape(d, d) @ root
            size = math.hypot(np.linalg.norm(factor), np.linalg.norm(solver.y[:d]))
            if size > largest[-1][1]:
                largest.append((solver.t, size))
                since = solver.t - next(t for t, before in reversed(largest) if before <= size / _TIMES or t == 0)
                if since <= _SHARE * solver.t:
                    status = "blew up"
                    left = since / (_TIMES**2 - 1)  # size² has a pole of order one
                    blow_up = BlowUp(solver.t + left, _fastest(solver.y[:d], factor), since)
                elif size > _LARGEST:
                    status = "overflow"
    if kept[-1][0] < solver.t and np.isfinite(solver.y).all():
        kept.append((solver.t, solver.y))
    return kept, status, blow_up, steps


def _fastest(mean: Array, factor: Array) -> Tensor:
    """The directions of second moment S + ααᵀ that are of the size of the largest, each with a positive largest entry."""
    vectors, sizes, _ = np.linalg.svd(np.column_stack([factor, mean]), full_matrices=False)
    vectors = vectors[:, sizes**2 >= BLOWS_UP * sizes[0] ** 2]
    return torch.from_numpy(vectors * np.sign(np.take_along_axis(vectors, np.abs(vectors).argmax(0)[None], 0)))


def _check(field, start, until, frames, solver, rtol, max_steps) -> None:
    if not isinstance(start, GaussianState):
        raise InputError(f"expected a GaussianState to start from, got {type(start).__name__}; GaussianState.of(α, S)")
    if isinstance(field, Field) and field.d != start.d:
        raise InputError(f"expected a Gaussian on R^{field.d}, where the field lives, got one on R^{start.d}")
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
class ParticlesBeside:
    """Tokens (T, n, d) at the flow's times, as far as they are compared.

    `coupled` (T) is the root mean square distance of each token to where the Gaussian flow takes it, `moments` (T) W₂
    between the flow's Gaussian and that of the tokens' mean and covariance.
    """

    times: Tensor
    tokens: Tensor
    coupled: Tensor
    moments: Tensor
    seed: int
    status: str

    def as_record(self) -> dict[str, Any]:
        return {
            "n": self.tokens.shape[1],
            "seed": self.seed,
            "status": self.status,
            "times": self.times.tolist(),
            "coupled": self.coupled.tolist(),
            "moments": self.moments.tolist(),
        }


def particles_beside(flow: GaussianFlow, field: Field, n: int, *, seed: int = 0, rtol: float = 1e-6) -> ParticlesBeside:
    """N tokens from the flow's start, integrated under the field up to the flow's end, or nine tenths of its blow-up.

    >>> import torch
    >>> from howsmooth.attention.fields import LinearField
    >>> from howsmooth.dynamics import gaussian_flow
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> field = LinearField(-eye, eye)
    >>> beside = particles_beside(gaussian_flow(field, GaussianState.standard(2), 1.0), field, 2000)
    >>> bool(beside.coupled[-1] < 0.1)
    True
    """
    end = float(flow.times[-1]) if flow.blow_up is None else _BEFORE * flow.blow_up.time
    times = [t for t in flow.times.tolist() if t <= end]
    if len(times) < 2:
        raise InputError(
            f"expected a time of the flow between its start and {end:.4g}, nine tenths of its blow-up, "
            "got none; take more frames"
        )
    x = flow.start.sample(n, torch.Generator().manual_seed(seed))
    found = integrate(field, x, times[-1], saves=times, rtol=rtol, atol=1e-3 * rtol)
    reached = range(len(found.tokens))
    coupled = [(y - flow.push(x, k)).square().sum(-1).mean().sqrt() for k, y in enumerate(found.tokens)]
    moments = [GaussianState.fitted(found.tokens[k]).distance(flow.state(k)) for k in reached]
    return ParticlesBeside(
        found.times, found.tokens, torch.stack(coupled), torch.tensor(moments, dtype=torch.float64), seed, found.status
    )
