"""Local constants of attention as a map of measures, F(μ) = (Γ_μ)♯μ, in L²(μ).

At μ = Σ a_i δ_{x_i} a perturbation moves the atom x_i by ε_i, which costs (Σ a_i|ε_i|²)^½: for small moves that is the
distance W₂ of the two measures. The derivative of x_i ↦ Γ_μ(x_i), all atoms of μ moving along, is a Jacobian between
weighted norms. Its norm is the local Lipschitz constant of F at μ among measures on as many atoms.

    layer, equal masses     the local constant of a sequence
    layer, any masses       in closed form, matrix-free: nothing of size m² for m atoms
    any field               by automatic differentiation
    times                   an atom sees those of its own time and of earlier ones; with one atom for each time this is
                            the causal layer on atoms in order, in closed form again

`lipschitz_quotients` approaches the same constant by finite differences. Let ν be μ with its atoms moved by η u. As
η → 0 the quotient W_p(F(μ), F(ν)) / W_p(μ, ν) tends to ‖DF·u‖ / ‖u‖ in L^p(μ): close enough, no atom is better off with
another's place. Along the worst direction that is the local constant. For timed measures, that is for masked attention,
the same with the conditional distance d_p.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.attention.fields import Field, SoftmaxField
from howsmooth.attention.weighted import WeightedAttention, root_weights
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.autodiff import AutodiffJacobian, norm
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.local import single_at_least
from howsmooth.spectral import LinearOperator, SingularTriplets, singular_values
from howsmooth.spectral.result import CONVERGED
from howsmooth.spectral.rounding import allowance, perturbation_norm
from howsmooth.transport import TimedMeasure, TokenMeasure, conditional_distance, push_forward, wasserstein
from howsmooth.transport.measures import refuse_without_order
from howsmooth.transport.wasserstein import check_exponent, power_mean

DENSE = 384  # columns up to which the matrix itself is taken apart: faster, and no confidence to speak of
LEAST_LOG_MASS = -1400.0  # of which the root is a number still

Measure = TokenMeasure | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]
ETAS = tuple(10.0**-k for k in range(8))


def mean_field_lipschitz(
    f: SelfAttention | Field,
    measure: Measure,
    *,
    tol: float = 1e-3,
    confidence: float = 0.999,
    dense: bool | None = None,
    product_dtype: torch.dtype | None = None,
    max_steps: int | None = None,
    max_memory: int | None = None,
    seed: int = 0,
    strict: bool = True,
    progress: Callable | None = None,
) -> Estimate:
    """The local Lipschitz constant of F(μ) = (Γ_μ)♯μ at a measure, in L²(μ).

    `direction` is √a_i ε_i, of unit norm, so that `shares` are those of the atoms in Σ a_i|ε_i|² = 1; in `check(η)` η
    is the longest way that an atom goes. The radii are those of μ.

    Args:
        measure: a `TokenMeasure` or `TimedMeasure`; or atoms (m, d) with log masses (m), up to a constant, and times
            (m) where atoms see only those up to their own time. In a causal layer without times, up to their own place.
        dense: whether to take the whole matrix apart, which leaves nothing to chance (confidence 1); for few atoms
            unless told.
        tol, confidence, product_dtype, max_steps, max_memory, seed, strict, progress: as in `local_lipschitz`, for many.

    >>> from howsmooth.attention.fields import SoftmaxField
    >>> R, one = 2.0, torch.ones(1, 1, dtype=torch.float64)
    >>> atoms = torch.tensor([[R], [-R]], dtype=torch.float64)
    >>> masses = torch.tensor([0.0, 2 * R**2], dtype=torch.float64)  # 1 : e^{2γR²}, γ = 1
    >>> round(mean_field_lipschitz(SoftmaxField.of(-one, one), (atoms, masses)).value, 1)  # ½ e^{γR²} (1 + γR²)
    136.6
    """
    began = time.perf_counter()
    x, logs, times = _atoms(f, measure)
    f, x = single_at_least(f, x)
    logs = torch.log_softmax(logs.double(), -1).to(x.dtype)
    refuse_lost_masses(logs)
    order = None
    if times is not None and len(times.unique()) == len(times) and (layer := _layer(f)) is not None:
        # One atom for each time: the causal layer on atoms in order of time.
        f, order = layer.replaced(causal=True), torch.argsort(times)
        x, logs, times = x[order], logs[order], None
    operator = mean_field_jacobian(f, x, logs, times, product_dtype)
    few = operator.shape[1] <= DENSE if dense is None else dense
    if few:
        return _estimate(f, x, logs, times, operator, order, _by_all_columns(operator, began))
    try:
        found = singular_values(
            operator,
            tol=tol,
            confidence=confidence,
            max_steps=max_steps,
            max_memory=max_memory,
            seed=seed,
            strict=strict,
            progress=progress,
        )
    except NotConverged as error:
        partial = _estimate(f, x, logs, times, operator, order, error.partial)
        raise NotConverged(str(error), partial) from None
    return _estimate(f, x, logs, times, operator, order, found)


def mean_field_jacobian(
    f: SelfAttention | Field,
    x: Tensor,
    log_weights: Tensor,
    times: Tensor | None = None,
    product_dtype: torch.dtype | None = None,
) -> LinearOperator:
    """J = D^½ (∂Γ/∂X) D^{−½}, D the masses, (m·d_out, m·d): in closed form for a layer without times.

    >>> from howsmooth.attention.fields import MeanPooling
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> mean_field_jacobian(MeanPooling(eye), torch.zeros(3, 2, dtype=torch.float64), torch.zeros(3).double()).shape
    (6, 6)
    """
    layer = _layer(f)
    if layer is not None and times is None:
        return WeightedAttention(layer).jacobian(x, log_weights, product_dtype)
    if product_dtype is not None:
        raise InputError(
            "expected product_dtype only with a layer and without ties in time; a field is differentiated as it is"
        )
    field, root = SoftmaxField(layer) if layer is not None else f, root_weights(log_weights)
    return AutodiffJacobian(lambda y: root * _push(field, y / root, log_weights, times), root * x)


def _push(f: SelfAttention | Field, x: Tensor, logs: Tensor, times: Tensor | None) -> Tensor:
    """Where the atoms go, Γ_μ(x_i)."""
    if isinstance(f, SelfAttention):
        return WeightedAttention(f)(x, logs) if times is None else _push(SoftmaxField(f), x, logs, times)
    return f.on_tokens(x, logs) if times is None else f(x, x, logs, times=times, source_times=times)


def _layer(f: SelfAttention | Field) -> SelfAttention | None:
    return f if isinstance(f, SelfAttention) else f.layer if isinstance(f, SoftmaxField) else None


def _by_all_columns(operator: LinearOperator, began: float) -> SingularTriplets:
    """The largest singular value of the matrix itself; its interval is rounding alone."""
    J = operator.dense().double()
    u, values, vh = torch.linalg.svd(J, full_matrices=False)
    value, u, v = values[:1], u.mT[:1], vh[:1]
    slack = allowance(operator) + 4 * max(J.shape) * torch.finfo(torch.float64).eps
    moved = 4 * perturbation_norm(operator, J)
    residual = torch.linalg.vector_norm(J.mT @ u[0] - value * v[0]).reshape(1)
    return SingularTriplets(
        value=value,
        lower=(value * (1 - slack) - moved).clamp_min(0),
        upper=value * (1 + slack) + moved,
        residual=residual,
        u=u,
        v=v,
        confidence=1.0,
        status=CONVERGED,
        steps=0,
        products=J.shape[1],
        dtype=operator.dtype,
        seed=None,
        seconds=time.perf_counter() - began,
    )


def _estimate(
    f,
    x: Tensor,
    logs: Tensor,
    times: Tensor | None,
    operator: LinearOperator,
    order: Tensor | None,
    found: SingularTriplets,
) -> Estimate:
    root, value = root_weights(logs.double()), float(found.value[0])
    direction, response = found.v[0].reshape(x.shape), found.u[0].reshape(len(x), -1)
    image = operator.image.reshape(len(x), -1)
    if isinstance(operator, AutodiffJacobian):  # of the map between weighted norms
        image = image / root
    way = direction.double() / root
    longest = float(torch.linalg.vector_norm(way, dim=-1).max())

    def finite_difference(eta: float) -> float:
        step = eta / longest
        ahead, behind = (_push(f, (x.double() + sign * step * way).to(x.dtype), logs, times) for sign in (1, -1))
        return norm(root * (ahead.double() - behind.double())) / (2 * step)

    if order is not None:  # back to the order that the caller knows
        back = torch.argsort(order)
        direction, response = direction[back], response[back]
        found = replace(found, u=response.reshape(1, -1), v=direction.reshape(1, -1))
    lengths = torch.linalg.vector_norm(x.double(), dim=-1)
    size, moved = norm(root * x.double()), norm(root * image.double())
    return Estimate(
        value=value,
        lower=float(found.lower[0]),
        upper=float(found.upper[0]),
        confidence=found.confidence,
        residual=float(found.residual[0]),
        status=found.status,
        direction=direction,
        response=response,
        steps=found.steps,
        products=found.products,
        dtype=found.dtype,
        seed=found.seed,
        seconds=found.seconds,
        relative=value * size / moved if moved > 0 else math.inf,
        radius=float(lengths.max()),
        mean_radius=size,
        triplets=found,
        finite_difference=finite_difference,
    )


def _atoms(f, measure) -> tuple[Tensor, Tensor, Tensor | None]:
    """Points, log masses and times, each as it came, checked."""
    if not isinstance(f, (SelfAttention, Field)):
        raise InputError(f"expected a SelfAttention or a Field, got {type(f).__name__}; see howsmooth.attention.fields")
    if isinstance(measure, TokenMeasure):
        refuse_without_order(_layer(f), measure)
        times = (measure.times,) if isinstance(measure, TimedMeasure) else ()
        measure = (measure.points, measure.log_weights, *times)
    if not isinstance(measure, tuple) or len(measure) not in (2, 3):
        got = f"a tuple of {len(measure)}" if isinstance(measure, tuple) else type(measure).__name__
        raise InputError(
            f"expected a measure, or atoms (m, d) with log masses (m), and times (m) where there are any, got {got}"
        )
    x, logs, times = (*measure, None)[:3]
    for name, t in (("atoms", x), ("log masses", logs), ("times", times)):
        if t is None and name == "times":
            continue
        if not isinstance(t, Tensor) or not t.dtype.is_floating_point or not torch.isfinite(t).all():
            kind = t.dtype if isinstance(t, Tensor) else type(t).__name__
            got = "NaN or ∞" if isinstance(t, Tensor) and t.is_floating_point() else kind
            raise InputError(
                f"expected {name} as a finite tensor of a floating dtype, got {got}; leave out atoms without mass"
            )
    if x.dim() != 2 or not x.numel() or x.shape[1] != f.d:
        raise InputError(f"expected atoms of shape (m, {f.d}) with m ≥ 1, got {tuple(x.shape)}")
    for name, t in (("log masses", logs), ("times", times)):
        if t is not None and t.shape != x.shape[:1]:
            raise InputError(f"expected {name} of shape ({len(x)},), one for each atom, got {tuple(t.shape)}")
    return x, logs, times


def refuse_lost_masses(logs: Tensor) -> None:
    """Log masses, of the whole, whose roots are no numbers of their dtype."""
    least = LEAST_LOG_MASS if logs.dtype == torch.float64 else -150.0
    if float(logs.min()) < least:
        raise InputError(
            f"expected masses of at least e^{least:g} of the whole in {logs.dtype}, got "
            f"e^{float(logs.min()):.0f}; leave out what weighs so little, or for two "
            "places take lipschitz.two_atoms, which works in logarithms"
        )


@dataclass(frozen=True)
class Quotients:
    """Quotients `values` at each η, from distances `before` and `after`; `slope` is their limit, from the derivative.

    `distance` is "W" or, for timed measures, "d".
    """

    etas: tuple[float, ...]
    before: tuple[float, ...]
    after: tuple[float, ...]
    values: tuple[float, ...]
    slope: float
    p: float
    distance: str
    dtype: str

    @property
    def errors(self) -> tuple[float, ...]:
        """How far each quotient is from the slope, relative to it."""
        return tuple(abs(value - self.slope) / self.slope if self.slope > 0 else value for value in self.values)

    def as_record(self) -> dict[str, Any]:
        return {
            "etas": list(self.etas),
            "before": list(self.before),
            "after": list(self.after),
            "values": list(self.values),
            "slope": self.slope,
            "p": "inf" if math.isinf(self.p) else self.p,
            "distance": self.distance,
            "dtype": self.dtype,
        }


def lipschitz_quotients(
    field: Field, measure: TokenMeasure, direction: Tensor, etas: Sequence[float] = ETAS, p: float = 2.0
) -> Quotients:
    """W_p(F(μ), F(ν)) / W_p(μ, ν), or with d_p for a timed measure, where ν is μ moved by η along a direction (n, d).

    The direction is a displacement of atoms; it is brought to norm 1 in L^p(μ), so that W_p(μ, ν) = η for small η. From
    a singular vector v of `WeightedAttention.jacobian`, which lives in the norm Σ a_i |ε_i|², it is v_i / √a_i.

    >>> from howsmooth.attention import MeanPooling
    >>> mu = TokenMeasure(torch.tensor([[0.0], [4.0]], dtype=torch.float64))
    >>> found = lipschitz_quotients(MeanPooling(torch.eye(1).double()), mu, torch.ones(2, 1).double(), [0.1])
    >>> round(found.values[0], 12), found.slope
    (1.0, 1.0)
    """
    p = check_exponent(p)
    image = push_forward(field, measure)
    norm = _norm(measure.moved(direction, 0.0), direction, p)
    if not 0 < norm < math.inf:
        raise InputError(f"expected a direction that moves something, finite, got one of norm {norm}")
    if not etas or not all(isinstance(eta, int | float) and 0 < eta < math.inf for eta in etas):
        raise InputError(f"expected steps η > 0, got {list(etas)}")
    unit = direction.to(measure.points) / norm
    timed = isinstance(measure, TimedMeasure)
    distance = conditional_distance if timed else wasserstein
    moved = [measure.moved(unit, eta) for eta in etas]
    before = tuple(distance(measure, nu, p).value for nu in moved)
    after = tuple(distance(image, push_forward(field, nu), p).value for nu in moved)
    if not all(before):
        raise InputError(
            f"expected steps that move atoms in {measure.points.dtype}, got η = "
            f"{etas[before.index(0.0)]:g}; use larger steps"
        )
    values = tuple(there / here for here, there in zip(before, after, strict=True))
    return Quotients(
        tuple(map(float, etas)),
        before,
        after,
        values,
        _slope(field, measure, unit, p),
        p,
        "d" if timed else "W",
        str(measure.points.dtype).removeprefix("torch."),
    )


def _slope(field: Field, measure: TokenMeasure, unit: Tensor, p: float) -> float:
    x = measure.points
    logs = None if measure.equal else measure.log_weights.to(x)
    times = measure.times if isinstance(measure, TimedMeasure) else None
    _, tangent = torch.func.jvp(lambda y: field(y, y, logs, times=times, source_times=times), (x,), (unit,))
    return _norm(measure, tangent, p)


def _norm(measure: TokenMeasure, vectors: Tensor, p: float) -> float:
    """(Σ a_i |v_i|^p)^{1/p}."""
    lengths = vectors.double().norm(dim=1)
    return power_mean(lengths.cpu().numpy(), measure.log_weights.cpu().numpy(), p)
