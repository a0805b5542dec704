"""Gradient ascent on the local Lipschitz constant of attention over a set of inputs.

At a simple σ₁ with singular vectors u, v its differential is dσ₁ = uᵀ (D²f[dX]) v, which `gradient` computes exactly
at the cost of about two products: in closed form for softmax attention, by double backward for other fields. Where
σ₁ = σ₂, the gradient for any pair (u, v) that attains σ₁ is still an ascent direction, since ‖J(X)v‖ ≤ σ₁(X) for every
fixed v. The ascent therefore needs only an attained value and its vectors, and a few Golub–Kahan steps from the
previous vectors give both.

The gradient is close to zero on most of the space and large in between; it differs by orders of magnitude between
tokens. So the default step moves every token by the same fraction of its radius along its own gradient, with momentum.
Each restart has its own step size, which grows after a success and shrinks after a failure. When it has shrunk to
nothing, the step switches to the plain gradient, or back. A restart for which both have failed has converged. After a
failure a little noise is added: symmetric inputs have symmetric gradients, and without noise they stay at a saddle.

Where softmax is saturated for all tokens the gradient is rounding error, and shorter steps do not help. There a restart
takes a random step: it contracts towards the centre, where scores are smaller, and adds noise, both of a random
size. That need not succeed: a flat region may be higher than everything such steps reach, and then only other starting
points help.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from howsmooth.attack.checks import check_count, check_masses, check_seed, describe, shift_seed, single_estimate
from howsmooth.attack.constraints import Constraint, token_norms
from howsmooth.attention.fields.field import Field
from howsmooth.attention.fields.softmax import SoftmaxField
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.jacobian import AttentionJacobian
from howsmooth.attention.l2 import L2Attention
from howsmooth.attention.weighted import WeightedAttention, WeightedJacobian, root_weights
from howsmooth.display import Displayed
from howsmooth.errors import InputError
from howsmooth.lipschitz.autodiff import AutodiffJacobian
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.local import Map, local_lipschitz, promote_half
from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.power import warm_triplet

Layer = SelfAttention | L2Attention | Field
Jacobian = AttentionJacobian | WeightedJacobian | AutodiffJacobian

MOVE_OPTIONS = ("positions", "masses", "both")
WARM_STEPS = 3  # Golub–Kahan steps for σ₁ at each trial point
WARM_START_NOISE = 1e-2  # relative weight of a random vector in the start of a solve, for singular values that cross
FIRST_STEP, MIN_STEP, MAX_STEP = 0.1, 1e-7, 4.0  # in radii
STEP_GROWTH, STEP_DECAY, MOMENTUM, NOISE = 1.3, 0.3, 0.9, 0.1  # the best of those tried on GPT-2 and small layers
ZERO_GRADIENT_THRESHOLD = 1e-10  # of σ₁ per radius: a smaller gradient is rounding error
MAX_RANDOM_STEPS, MIN_RANDOM_STEP = 60, 1e-2  # failures in a row before a restart stops; in radii
LOG_WEIGHT_STEP = 4.0  # change of a log weight when a token moves by one radius
MIN_LOG_WEIGHT = -200.0
# The draws that steered an ascent must not certify its result. (Only the low 32 bits of a seed count on the CPU.)
MAX_CERTIFICATES, CERTIFICATE_SEED_OFFSET = 3, 1_000_003


@dataclass(frozen=True, eq=False, repr=False)
class Ascent(Displayed):
    """The input with the largest constant found, its certificate, and the history of the ascent.

    Attributes:
        x: the tokens found, (n, d), float64.
        masses: their masses (n,), which add up to 1; None for a plain sequence.
        estimate: the certificate at `x`, in float64, from random draws that the ascent did not use.
        value: the largest ‖J v‖ attained at `x`, by the certificate's v or by that of the ascent. It may exceed
            `estimate.value` within the tolerance, but never the true norm. It is no less than at the best start.
            With masses, it and the estimate are in the norm Σ a_i|ε_i|².
        start: σ₁ at the starting points of the b restarts, (b,).
        path: the value of each restart after each step, (steps + 1, b).
        ends: the final tokens of the restarts, (b, n, d).
        steps: how many steps were taken.
        gradients: how many gradients were computed, each for all restarts at once.
        seconds: the wall-clock time.
        constraint: the set of inputs.
    """

    x: Tensor
    masses: Tensor | None
    estimate: Estimate
    value: float
    start: Tensor
    path: Tensor
    ends: Tensor
    steps: int
    gradients: int
    seconds: float
    constraint: Constraint

    @property
    def values(self) -> Tensor:
        """The final value of each restart, (b,)."""
        return self.path[-1]

    def __repr__(self) -> str:
        """Summarise the result in four lines, numbers to six significant digits, without the tensors."""
        n, d = self.x.shape
        upper = "None" if self.estimate.upper is None else f"{self.estimate.upper:.6g}"
        indent = " " * len("Ascent(")
        return f",\n{indent}".join(
            (
                f"Ascent(value={self.value:.6g}, lower={self.estimate.lower:.6g}, upper={upper}, "
                f"status={self.estimate.status!r}",
                f"start={float(self.start.max()):.6g}, restarts={len(self.start)}, steps={self.steps}, "
                f"gradients={self.gradients}, seconds={self.seconds:.6g}",
                f"n={n}, d={d}, weighted={self.masses is not None}",
                f"constraint={self.constraint!r})",
            )
        )


def ascend(
    f: Layer,
    x: Tensor,
    constraint: Constraint,
    *,
    steps: int = 200,
    move: str = "positions",
    masses: Tensor | None = None,
    seed: int = 0,
    tol: float = 1e-3,
    progress: Callable[[int, Tensor], None] | None = None,
) -> Ascent:
    """Maximise ‖D_X f‖₂ by gradient ascent from x, within a constraint set.

    Starting points outside the set are projected onto it first. A restart never moves to a smaller value. The best
    restart is certified by `local_lipschitz`.

    Args:
        f: the attention layer: a `SelfAttention`, an `L2Attention`, or a `Field` on its own tokens.
        x: the starting point (n, d), or b restarts (b, n, d), which are computed as one batch.
        constraint: the set of inputs: `Ball`, `Sphere`, `Ellipsoid` or `Near`.
        steps: the largest number of steps.
        move: "positions", "masses" or "both". The last two interpret x as atoms Σ a_i δ_{x_i}.
        masses: (n,) or (b, n), positive; equal unless given. They stay fixed with move="positions".
        seed: seed of all random draws.
        tol: relative width of the certificate's interval.
        progress: called after each step with its number and the values (b,) of the restarts.

    Returns:
        The best restart with its certificate.

    Raises:
        InputError: an argument has the wrong type or shape, or the layer does not support masses.
        NotConverged: Sinkhorn's iteration of a `SinkhornField` did not converge at a trial point.

    Example:
        >>> from howsmooth.attack import Ball
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> f = SelfAttention(one, one, one, scale=1.0)
        >>> found = ascend(f, torch.tensor([[3.0], [0.2], [-0.1], [0.0]], dtype=torch.float64), Ball(3.0), steps=50)
        >>> found.value > found.start.max(), found.estimate.status
        (tensor(True), 'converged')
    """
    began = time.perf_counter()
    f = softmax_layer(f)
    _check_arguments(f, x, constraint, steps, move, masses, seed, progress)
    f, x = promote_half(f, x)
    batch = x if x.dim() == 3 else x.unsqueeze(0)
    state = _AscentState(f, constraint, move, seed, batch, masses)
    start = state.initialise(tol)
    path = [start]
    while len(path) <= steps and state.active.any():
        state.step()
        path.append(state.value.clone())
        if progress is not None:
            progress(len(path) - 1, path[-1])
    return state.result(start, torch.stack(path), tol, began)


def softmax_layer(f: Layer) -> Layer:
    """Return the layer of a softmax field, whose derivatives are in closed form; anything else unchanged."""
    return f.layer if isinstance(f, SoftmaxField) else f


def refuse_other_maps(caller: str, f: object) -> None:
    """Refuse anything but an attention layer or a field."""
    if not isinstance(f, (SelfAttention, L2Attention, Field)):
        raise InputError(
            f"{caller}: expected a SelfAttention, an L2Attention or a Field, got {type(f).__name__}; the ascent needs "
            "its second derivative"
        )


def _jacobian_at(f: Layer, x: Tensor) -> AttentionJacobian | AutodiffJacobian:
    """Return J at tokens x (n, d) or (b, n, d)."""
    if isinstance(f, SelfAttention):
        return f.jacobian(x)
    return AutodiffJacobian(_on_tokens(f), x, batched=x.dim() == 3, check=False)


def _on_tokens(f: Layer) -> Callable[[Tensor], Tensor]:
    """Return the map of tokens."""
    return f.on_tokens if isinstance(f, Field) else f


class _AscentState:
    """The restarts of one ascent: coordinates y (b, n, d) and log weights (b, n), with their gradients."""

    value: Tensor  # (b,)
    v: Tensor  # (b, n·d), the right singular vectors that attain the values
    gradient: Tensor  # (b, n, d)
    log_weight_gradient: Tensor  # (b, n); zero for a plain sequence

    def __init__(
        self, f: Layer, constraint: Constraint, move: str, seed: int, x: Tensor, masses: Tensor | None
    ) -> None:
        self.f, self.constraint, self.seed = f, constraint, seed
        has_masses = isinstance(f, SelfAttention) and (masses is not None or move != "positions")
        self.weighted = WeightedAttention(f) if has_masses and isinstance(f, SelfAttention) else None
        self.moves_tokens, self.moves_masses = move != "masses", move != "positions"
        self.generator = torch.Generator().manual_seed(seed)
        self.y = constraint.project(constraint.encode(x))
        self.log_weights = _log_weights(masses, x)
        self.step_size = x.new_full((len(x),), FIRST_STEP)
        self.scales_per_token = torch.ones(len(x), dtype=torch.bool, device=x.device)  # or the plain gradient
        self.failures = torch.zeros(len(x), dtype=torch.int64, device=x.device)  # of the two kinds of step, in a row
        self.failed_random_steps = torch.zeros_like(self.failures)  # in a row
        self.momentum, self.log_weight_momentum = torch.zeros_like(self.y), torch.zeros_like(self.log_weights)
        self.noise = torch.zeros_like(self.step_size)
        self.gradients = 0

    @property
    def active(self) -> Tensor:
        """Which restarts have not converged, (b,)."""
        return (self.failures < 2) & (self.failed_random_steps < MAX_RANDOM_STEPS)

    @property
    def is_flat(self) -> Tensor:
        """Which restarts have no gradient to follow, (b,)."""
        largest = token_norms(self.gradient).amax((-2, -1)) * self.constraint.coordinate_radius
        return (largest <= ZERO_GRADIENT_THRESHOLD * self.value) & self.moves_tokens

    def jacobian(self, y: Tensor, log_weights: Tensor) -> Jacobian:
        """Return J at coordinates y."""
        x = self.constraint.decode(y)
        return _jacobian_at(self.f, x) if self.weighted is None else self.weighted.jacobian(x, log_weights)

    def initialise(self, tol: float) -> Tensor:
        """Compute σ₁ of every start, to the relative width tol, and the first gradient; return σ₁ (b,)."""
        J = self.jacobian(self.y, self.log_weights)
        found = singular_values(J, tol=tol, seed=self.seed, strict=False)
        self.value, self.v = found.value[:, 0].to(J.device), found.v[:, 0]
        self.gradient, self.log_weight_gradient = self._gradients(J, found.u[:, 0], self.v)
        return self.value.clone()

    def _gradients(self, J: Jacobian, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Return ∇σ₁ in the coordinates, (b, n, d), and in the log weights, (b, n)."""
        self.gradients += 1
        if isinstance(J, WeightedJacobian):
            in_x, in_log_weights = J.gradient(u, v)
        else:
            in_x, in_log_weights = J.gradient(u, v), torch.zeros_like(self.log_weights)
        return self.constraint.pull_back(in_x), in_log_weights

    def step(self) -> None:
        """Evaluate one trial point for every restart, and accept it where the value increases."""
        flat = self.is_flat
        y, direction = self._propose_tokens()
        log_weights, log_weight_direction = self._propose_log_weights()
        y, direction = _where(flat, self._random_step(), y), _where(flat, torch.zeros_like(direction), direction)
        J = self.jacobian(y, log_weights)
        noise = WARM_START_NOISE * self._normal(self.v.shape) / self.v.shape[1] ** 0.5
        sigma, u, v = warm_triplet(J, self.v + noise, WARM_STEPS)
        accepted = (sigma > self.value) & self.active
        if accepted.any():
            gradient, log_weight_gradient = self._gradients(J, u, v)
            self.y, self.gradient = _where(accepted, y, self.y), _where(accepted, gradient, self.gradient)
            self.v, self.value = _where(accepted, v, self.v), _where(accepted, sigma, self.value)
            self.log_weights = _where(accepted, log_weights, self.log_weights)
            self.log_weight_gradient = _where(accepted, log_weight_gradient, self.log_weight_gradient)
        self.momentum = _where(accepted, direction, torch.zeros_like(direction))
        self.log_weight_momentum = _where(accepted, log_weight_direction, torch.zeros_like(log_weight_direction))
        self.noise = torch.where(accepted, 0.0, NOISE).to(self.step_size)
        self._adapt_step_size(accepted, flat)

    def _propose_tokens(self) -> tuple[Tensor, Tensor]:
        """Return the trial coordinates, and the displacement in units of the step."""
        if not self.moves_tokens:
            return self.y, torch.zeros_like(self.y)
        norms = token_norms(self.gradient)
        largest = norms.amax(-2, keepdim=True)
        scale = torch.where(self.scales_per_token[:, None, None], norms, largest)
        direction = self.gradient / torch.where(scale > 0, scale, 1)
        noise = self._normal(self.y.shape)
        direction = direction + self.noise[:, None, None] * noise / token_norms(noise)
        step = (self.step_size * self.constraint.coordinate_radius)[:, None, None]
        y = self.constraint.project(self.y + step * (direction + MOMENTUM * self.momentum))
        return y, (y - self.y) / step

    def _propose_log_weights(self) -> tuple[Tensor, Tensor]:
        """Return the trial log weights, and the displacement in units of the step."""
        if not self.moves_masses:
            return self.log_weights, torch.zeros_like(self.log_weights)
        largest = self.log_weight_gradient.abs().amax(-1, keepdim=True)
        direction = self.log_weight_gradient / torch.where(largest > 0, largest, 1)
        direction = direction + self.noise[:, None] * self._normal(self.log_weights.shape)
        step = (self.step_size * LOG_WEIGHT_STEP)[:, None]
        trial = self.log_weights + step * (direction + MOMENTUM * self.log_weight_momentum)
        log_weights = torch.log_softmax(trial, -1).clamp(min=MIN_LOG_WEIGHT)
        return log_weights, (log_weights - self.log_weights) / step

    def _random_step(self) -> Tensor:
        """Contract by a random factor and add noise of a random size; both sizes are log-uniform."""
        size = MIN_RANDOM_STEP ** torch.rand(2, len(self.y), 1, 1, generator=self.generator, dtype=torch.float64)
        # The noise is squared, hence mostly small: some configurations only need to be contracted.
        contraction, noise_size = size[0].to(self.y), size[1].square().to(self.y)
        noise = self.constraint.project_to_subspace(self._normal(self.y.shape))
        noise = noise_size * self.constraint.coordinate_radius * noise / token_norms(noise)
        return self.constraint.project(contraction * self.y + noise)

    def _adapt_step_size(self, accepted: Tensor, flat: Tensor) -> None:
        """Lengthen the step after success, shorten it after failure; change the kind of step when it is too short."""
        self.failed_random_steps = torch.where(accepted, 0, self.failed_random_steps + flat.long())
        factor = torch.where(flat, 1.0, torch.where(accepted, STEP_GROWTH, STEP_DECAY)).to(self.step_size)
        self.step_size = (self.step_size * factor).clamp(max=MAX_STEP)
        too_short = self.step_size < MIN_STEP
        self.failures = torch.where(accepted, 0, self.failures) + too_short.long()
        self.scales_per_token = self.scales_per_token ^ too_short
        self.step_size = torch.where(too_short, FIRST_STEP, self.step_size)

    def _normal(self, shape: torch.Size) -> Tensor:
        """Draw standard normal numbers with the dtype and device of the coordinates."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64).to(self.y)

    def result(self, start: Tensor, path: Tensor, tol: float, began: float) -> Ascent:
        """Certify the best restart in float64."""
        best = int(self.value.argmax())
        f, constraint = self.f, self.constraint
        if isinstance(f, SelfAttention):  # the others convert their weights to the dtype of the tokens
            f = f.converted(dtype=torch.float64)
        x = constraint.decode(constraint.project(self.y[best].double()))  # float32 may have left the set by rounding
        v = self.v[best].double()
        map_: Map = f if isinstance(f, SelfAttention) else _on_tokens(f)
        if self.weighted is None or not isinstance(f, SelfAttention):
            masses, point = None, x
            attained = float(warm_triplet(_jacobian_at(f, x), v, 1)[0])
        else:
            log_weights, weighted = self.log_weights[best].double(), WeightedAttention(f)
            masses = torch.softmax(log_weights, -1)
            map_, point = weighted.rescaled(log_weights), root_weights(log_weights) * x
            attained = float(warm_triplet(weighted.jacobian(x, log_weights), v, 1)[0])
        estimate = certify_consistently(
            lambda seed: single_estimate(local_lipschitz(map_, point, tol=tol, seed=seed, strict=False)),
            attained,
            self.seed,
        )
        if masses is not None:
            norms = torch.linalg.vector_norm(x, dim=-1)
            mean_radius = float((masses * norms**2).sum().sqrt())
            estimate = replace(estimate, radius=float(norms.max()), mean_radius=mean_radius)
        return Ascent(
            x=x,
            masses=masses,
            estimate=estimate,
            value=max(estimate.value, attained),
            start=start,
            path=path,
            ends=constraint.decode(self.y),
            steps=len(path) - 1,
            gradients=self.gradients,
            seconds=time.perf_counter() - began,
            constraint=constraint,
        )


def certify_consistently(certify: Callable[[int], Estimate], attained: float, seed: int) -> Estimate:
    """Return a certificate whose upper end is not below a value that is attained.

    With probability 1 − confidence a random start gives an upper end that is too low. Drawing again only where this is
    proved does not lower the confidence.
    """
    for attempt in range(1, MAX_CERTIFICATES + 1):
        estimate = certify(shift_seed(seed, attempt * CERTIFICATE_SEED_OFFSET))
        if estimate.upper is None or attained <= estimate.upper * (1 + 1e-12):
            break
    return estimate


def _where(condition: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Select whole members of a batch by a condition (b,)."""
    return torch.where(condition.view(-1, *[1] * (new.dim() - 1)), new, old)


def _log_weights(masses: Tensor | None, x: Tensor) -> Tensor:
    """Return the log weights (b, n) of the atoms x (b, n, d); equal unless given."""
    if masses is None:
        return x.new_zeros(x.shape[:-1])
    return torch.log_softmax(masses.double().log(), -1).to(x).expand(x.shape[:-1])


def _check_arguments(
    f: object, x: object, constraint: object, steps: int, move: str, masses: Tensor | None, seed: int, progress: object
) -> None:
    refuse_other_maps("ascend", f)
    assert isinstance(f, (SelfAttention, L2Attention, Field))  # for mypy
    if not isinstance(constraint, Constraint):
        raise InputError(
            f"ascend: expected a constraint (Ball, Sphere, Ellipsoid or Near), got {type(constraint).__name__}"
        )
    if not isinstance(x, Tensor):
        raise InputError(f"ascend: expected tokens x as a tensor (n, {f.d}) or (b, n, {f.d}), got {describe(x)}")
    if isinstance(f, SelfAttention):
        f.check_tokens(x, None)
    elif x.dim() not in (2, 3) or x.shape[-1] != f.d or not x.dtype.is_floating_point or x.dtype.itemsize < 4:
        raise InputError(
            f"ascend: expected tokens of shape (n, {f.d}) or (b, n, {f.d}) in float32 or float64, got {describe(x)}"
        )
    constraint.check(x.shape[-2], x.shape[-1])
    if len(x) == 0:
        raise InputError(f"ascend: expected at least one restart, got x of shape {tuple(x.shape)}")
    if not torch.isfinite(x).all():
        raise InputError("ascend: expected finite tokens, got NaN or ∞ in x")
    check_count("ascend", "steps", steps, least=0)
    check_seed("ascend", seed)
    if move not in MOVE_OPTIONS:
        raise InputError(f"ascend: expected move as one of {', '.join(MOVE_OPTIONS)}, got {move!r}")
    if not isinstance(f, SelfAttention) and (move != "positions" or masses is not None):
        raise InputError(
            f"ascend: expected a SelfAttention to move masses, got {type(f).__name__}; use move='positions', no masses"
        )
    if progress is not None and not callable(progress):
        raise InputError(f"ascend: expected progress as a function of (step, values), got {describe(progress)}")
    if masses is not None:
        check_masses("ascend", masses, x)
