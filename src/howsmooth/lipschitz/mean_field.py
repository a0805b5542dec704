"""Local Lipschitz constants of attention as a map of measures, `F(μ) = (Γ_μ)♯μ`, in L²(μ).

At `μ = Σ a_i δ_{x_i}` a perturbation moves the atom x_i by ε_i, and its norm is `(Σ a_i|ε_i|²)^½`. For small
perturbations that is the distance W₂ of the two measures. The derivative of `x_i ↦ Γ_μ(x_i)`, where μ moves with its
atoms, is a Jacobian between weighted norms. Its norm is the local Lipschitz constant of F at μ among measures with as
many atoms.

    layer, equal masses     the local Lipschitz constant of a sequence
    layer, any masses       in closed form and matrix-free: no memory of size m² for m atoms
    any field               by automatic differentiation
    times                   an atom attends to those of its own time and earlier; with one atom for each time this is
                            the causal layer on atoms in order, again in closed form

`lipschitz_quotients` approximates the same constant by finite differences. Let ν be μ with its atoms moved by η u. As
η → 0 the quotient `W_p(F(μ), F(ν)) / W_p(μ, ν)` tends to `‖DF·u‖ / ‖u‖` in L^p(μ), because for small η the optimal plan
sends each atom to itself. Along the worst direction that is the local constant. For timed measures, that is for masked
attention, the conditional distance d_p takes the place of W_p.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from howsmooth.attention.fields.field import Field
from howsmooth.attention.fields.softmax import SoftmaxField
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.weighted import WeightedAttention, WeightedJacobian, root_weights
from howsmooth.errors import InputError, NotConverged
from howsmooth.lipschitz.autodiff import AutodiffJacobian, frobenius_norm
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.local import promote_half
from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.result import CONVERGED, SingularTriplets
from howsmooth.spectral.rounding import allowance, perturbation_norm
from howsmooth.spectral.solver import Solver, SolverOptions
from howsmooth.transport.conditional import ConditionalTransport, conditional_distance
from howsmooth.transport.distances import Transport, check_exponent, power_mean, wasserstein
from howsmooth.transport.measures import TimedMeasure, TokenMeasure, push_forward, refuse_without_order

MAX_DENSE_COLUMNS = 384  # up to this size the matrix is formed and a dense SVD computed: faster, and deterministic
MIN_LOG_WEIGHT = {torch.float64: -1400.0, torch.float32: -150.0}  # below, the square root of the weight underflows
DEFAULT_ETAS = tuple(10.0**-k for k in range(8))

Measure = TokenMeasure | tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]


def mean_field_lipschitz(
    f: SelfAttention | Field,
    measure: Measure,
    *,
    dense: bool | None = None,
    solver: Solver = Solver(),
    strict: bool = True,
    progress: Callable[..., Any] | None = None,
    **options: Unpack[SolverOptions],
) -> Estimate:
    """Compute the local Lipschitz constant of `F(μ) = (Γ_μ)♯μ` at a measure, in L²(μ).

    In the result, `direction` is `√a_i ε_i`, of unit norm, so `shares` are those of the atoms in `Σ a_i|ε_i|² = 1`. In
    `check(η)`, η is the largest distance by which an atom is moved. The radii are those of μ.

    Args:
        f: An attention layer or a field.
        measure: A `TokenMeasure` or `TimedMeasure`; or a tuple of atoms (m, d), log weights (m,), up to a constant, and
            optionally times (m,), so that an atom attends to those whose time is not later than its own. In a causal
            layer without times, an atom attends to those up to its own index.
        dense: Whether to form the matrix and compute its SVD, which is deterministic (confidence 1); by default, if
            it has few columns.
        solver: The options of the solve; like the remaining ones, all but `product_dtype` are not used with a dense
            matrix.
        strict: Whether to raise NotConverged if `tol` is not reached, or to return the result with its status.
        progress: Callback of the solver.
        **options: Fields of the solver to replace.

    Returns:
        The estimate.

    Raises:
        InputError: If the map or the measure cannot be used; the message contains the reason.
        NotConverged: If `strict` and the tolerance was not reached.

    Example:
        >>> from howsmooth.attention.fields import SoftmaxField
        >>> R, one = 2.0, torch.ones(1, 1, dtype=torch.float64)
        >>> atoms = torch.tensor([[R], [-R]], dtype=torch.float64)
        >>> log_weights = torch.tensor([0.0, 2 * R**2], dtype=torch.float64)  # masses 1 : e^{2γR²}, γ = 1
        >>> found = mean_field_lipschitz(SoftmaxField.of(-one, one), (atoms, log_weights))
        >>> round(found.value, 1)  # ½ e^{γR²} (1 + γR²)
        136.6
    """
    began = time.perf_counter()
    solver = replace(solver, **options)
    x, log_weights, times = _check_measure(f, measure)
    f, x = promote_half(f, x)
    log_weights = torch.log_softmax(log_weights.double(), -1)  # float32 would change the masses, and with them J
    check_log_weights(log_weights.to(x.dtype))
    order = None
    if times is not None and len(times.unique()) == len(times) and (layer := _layer(f)) is not None:
        # One atom for each time: the causal layer on the atoms in order of time.
        f, order = layer.replaced(causal=True), torch.argsort(times)
        x, log_weights, times = x[order], log_weights[order], None
    operator = mean_field_jacobian(f, x, log_weights, times, solver.product_dtype)

    def make_estimate(triplets: SingularTriplets) -> Estimate:
        return _make_estimate(f, x, log_weights, times, operator, order, triplets)

    if operator.shape[1] <= MAX_DENSE_COLUMNS if dense is None else dense:
        return make_estimate(_dense_svd(operator, began))
    try:
        found = singular_values(operator, solver=solver, product_dtype=None, strict=strict, progress=progress)
    except NotConverged as error:
        raise NotConverged(str(error), make_estimate(error.partial)) from None
    return make_estimate(found)


def mean_field_jacobian(
    f: SelfAttention | Field,
    x: Tensor,
    log_weights: Tensor,
    times: Tensor | None = None,
    product_dtype: torch.dtype | None = None,
) -> WeightedJacobian | AutodiffJacobian:
    """Return `J = D^½ (∂Γ/∂X) D^{−½}`, with D the masses, as a matrix-free operator.

    Args:
        f: An attention layer or a field. For a layer without times the operator is in closed form; otherwise it uses
            automatic differentiation.
        x: Atoms (m, d).
        log_weights: Logarithms of the masses, (m,), up to a constant.
        times: Times (m,), or None.
        product_dtype: Dtype of the products; for a layer without times only.

    Returns:
        An operator of shape (m·d_out, m·d).

    Raises:
        InputError: If `product_dtype` is given for a map that is differentiated automatically.

    Example:
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
    field = SoftmaxField(layer) if layer is not None else f
    root = root_weights(log_weights)

    def between_weighted_norms(y: Tensor) -> Tensor:
        r, logs = root.to(y.dtype), log_weights.to(y.dtype)
        return r * _map_atoms(field, y / r, logs, times)

    return AutodiffJacobian(between_weighted_norms, root.to(x.dtype) * x)


def _map_atoms(f: SelfAttention | Field, x: Tensor, log_weights: Tensor, times: Tensor | None) -> Tensor:
    """Return the images Γ_μ(x_i) of the atoms."""
    if isinstance(f, SelfAttention):
        if times is None:
            return WeightedAttention(f)(x, log_weights)
        return _map_atoms(SoftmaxField(f), x, log_weights, times)
    return f.on_tokens(x, log_weights) if times is None else f(x, x, log_weights, times=times, source_times=times)


def _layer(f: SelfAttention | Field) -> SelfAttention | None:
    return f if isinstance(f, SelfAttention) else f.layer if isinstance(f, SoftmaxField) else None


def _dense_svd(operator: LinearOperator, began: float) -> SingularTriplets:
    """Return the largest singular triplet of the dense matrix; the interval accounts for rounding only."""
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


def _make_estimate(
    f: SelfAttention | Field,
    x: Tensor,
    log_weights: Tensor,
    times: Tensor | None,
    operator: WeightedJacobian | AutodiffJacobian,
    order: Tensor | None,
    triplets: SingularTriplets,
) -> Estimate:
    status = triplets.status
    assert isinstance(status, str)  # a list only for a batch
    root, value = root_weights(log_weights.double()), float(triplets.value[0])
    direction, response = triplets.v[0].reshape(x.shape), triplets.u[0].reshape(len(x), -1)
    image = operator.image.reshape(len(x), -1)
    if isinstance(operator, AutodiffJacobian):  # the image of the map between weighted norms
        image = image / root
    displacement = direction.double() / root
    largest, logs = float(torch.linalg.vector_norm(displacement, dim=-1).max()), log_weights.to(x.dtype)

    def finite_difference(eta: float) -> float:
        step = eta / largest
        forward, backward = (
            _map_atoms(f, (x.double() + sign * step * displacement).to(x.dtype), logs, times).double()
            for sign in (1, -1)
        )
        return frobenius_norm(root * (forward - backward)) / (2 * step)

    if order is not None:  # return to the caller's order of atoms
        inverse = torch.argsort(order)
        direction, response = direction[inverse], response[inverse]
        triplets = replace(triplets, u=response.reshape(1, -1), v=direction.reshape(1, -1))
    atom_norms = torch.linalg.vector_norm(x.double(), dim=-1)
    input_norm, output_norm = frobenius_norm(root * x.double()), frobenius_norm(root * image.double())
    return Estimate(
        value=value,
        lower=float(triplets.lower[0]),
        upper=float(triplets.upper[0]),
        confidence=triplets.confidence,
        residual=float(triplets.residual[0]),
        status=status,
        direction=direction,
        response=response,
        steps=triplets.steps,
        products=triplets.products,
        dtype=triplets.dtype,
        seed=triplets.seed,
        seconds=triplets.seconds,
        relative=value * input_norm / output_norm if output_norm > 0 else math.inf,
        radius=float(atom_norms.max()),
        mean_radius=input_norm,
        triplets=triplets,
        finite_difference=finite_difference,
    )


def _check_measure(f: SelfAttention | Field, measure: Measure) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return points, log weights and times; raise if they cannot be used."""
    if not isinstance(f, (SelfAttention, Field)):
        raise InputError(f"expected a SelfAttention or a Field, got {type(f).__name__}; see howsmooth.attention.fields")
    if isinstance(measure, TokenMeasure):
        refuse_without_order(_layer(f), measure)
        times = (measure.times,) if isinstance(measure, TimedMeasure) else ()
        measure = (measure.points, measure.log_weights, *times)
    if not isinstance(measure, tuple) or len(measure) not in (2, 3):
        got = f"a tuple of {len(measure)}" if isinstance(measure, tuple) else type(measure).__name__
        raise InputError(
            f"expected a measure, or atoms (m, d) with log weights (m), and times (m) where there are any, got {got}"
        )
    x, log_weights, atom_times = (*measure, None)[:3]
    for name, t in (("atoms", x), ("log weights", log_weights), ("times", atom_times)):
        if t is None and name == "times":
            continue
        if not isinstance(t, Tensor) or not t.dtype.is_floating_point or not torch.isfinite(t).all():
            kind = str(t.dtype) if isinstance(t, Tensor) else type(t).__name__
            got = "NaN or ∞" if isinstance(t, Tensor) and t.is_floating_point() else kind
            raise InputError(
                f"expected {name} as a finite tensor of a floating dtype, got {got}; leave out atoms without mass"
            )
    if x.dim() != 2 or not x.numel() or x.shape[1] != f.d:
        raise InputError(f"expected atoms of shape (m, {f.d}) with m ≥ 1, got {tuple(x.shape)}")
    for name, t in (("log weights", log_weights), ("times", atom_times)):
        if t is not None and t.shape != x.shape[:1]:
            raise InputError(f"expected {name} of shape ({len(x)},), one for each atom, got {tuple(t.shape)}")
    return x, log_weights, atom_times


def check_log_weights(log_weights: Tensor) -> None:
    """Raise if a normalised log weight is so small that the square root of the weight underflows in its dtype."""
    smallest = MIN_LOG_WEIGHT[torch.float64 if log_weights.dtype == torch.float64 else torch.float32]
    if float(log_weights.min()) < smallest:
        raise InputError(
            f"expected masses of at least e^{smallest:g} of the whole in {log_weights.dtype}, got "
            f"e^{float(log_weights.min()):.0f}; leave out atoms of such small mass, or for two "
            "points use lipschitz.two_atoms, which works in logarithms"
        )


@dataclass(frozen=True)
class Quotients:
    """Difference quotients of distances, and their limit.

    Attributes:
        etas: Step sizes η.
        before: Distances of μ and ν, one per step.
        after: Distances of their images.
        values: The quotients `after / before`.
        slope: Their limit as η → 0, from the derivative.
        p: Exponent of the distance.
        distance: "W", or "d" for timed measures.
        dtype: Dtype of the atoms.
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
        """The relative difference of each quotient from the slope."""
        return tuple(abs(value - self.slope) / self.slope if self.slope > 0 else value for value in self.values)

    def as_record(self) -> dict[str, Any]:
        """Return the numbers as plain Python values."""
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
    field: Field, measure: TokenMeasure, direction: Tensor, etas: Sequence[float] = DEFAULT_ETAS, p: float = 2.0
) -> Quotients:
    """Compute `W_p(F(μ), F(ν)) / W_p(μ, ν)` for ν = μ moved by η along a direction; with d_p for a timed measure.

    Args:
        field: The map.
        measure: The measure μ.
        direction: Displacement of the atoms, (n, d). It is normalised in L^p(μ), so that `W_p(μ, ν) = η` for small η.
            From a singular vector v of `WeightedAttention.jacobian`, which is scaled by the square roots of the masses,
            it is `v_i / √a_i`.
        etas: Step sizes η > 0.
        p: Exponent, 1 ≤ p ≤ ∞.

    Returns:
        The quotients and their limit.

    Raises:
        InputError: If the direction is zero, or a step is too small to move an atom in the dtype of the measure.

    Example:
        >>> from howsmooth.attention import MeanPooling
        >>> mu = TokenMeasure(torch.tensor([[0.0], [4.0]], dtype=torch.float64))
        >>> found = lipschitz_quotients(MeanPooling(torch.eye(1).double()), mu, torch.ones(2, 1).double(), [0.1])
        >>> round(found.values[0], 12), found.slope
        (1.0, 1.0)
    """
    p = check_exponent(p)
    image = push_forward(field, measure)
    norm = _weighted_norm(measure.moved(direction, 0.0), direction, p)
    if not 0 < norm < math.inf:
        raise InputError(f"expected a direction of positive, finite norm, got one of norm {norm}")
    if not etas or not all(isinstance(eta, int | float) and 0 < eta < math.inf for eta in etas):
        raise InputError(f"expected steps η > 0, got {list(etas)}")
    unit = direction.to(measure.points) / norm
    timed = isinstance(measure, TimedMeasure)
    distance: Callable[..., Transport | ConditionalTransport] = conditional_distance if timed else wasserstein
    moved = [measure.moved(unit, eta) for eta in etas]
    before = tuple(distance(measure, nu, p).value for nu in moved)
    after = tuple(distance(image, push_forward(field, nu), p).value for nu in moved)
    if not all(before):
        raise InputError(
            f"expected steps that move atoms in {measure.points.dtype}, got η = "
            f"{etas[before.index(0.0)]:g}; use larger steps"
        )
    values = tuple(output / input for input, output in zip(before, after, strict=True))
    return Quotients(
        tuple(map(float, etas)),
        before,
        after,
        values,
        _directional_derivative(field, measure, unit, p),
        p,
        "d" if timed else "W",
        str(measure.points.dtype).removeprefix("torch."),
    )


def _directional_derivative(field: Field, measure: TokenMeasure, unit: Tensor, p: float) -> float:
    x = measure.points
    log_weights = None if measure.equal else measure.log_weights.to(x)
    times = measure.times if isinstance(measure, TimedMeasure) else None
    tangent = torch.func.jvp(lambda y: field(y, y, log_weights, times=times, source_times=times), (x,), (unit,))[1]
    return _weighted_norm(measure, tangent, p)


def _weighted_norm(measure: TokenMeasure, vectors: Tensor, p: float) -> float:
    """Return `(Σ a_i |v_i|^p)^{1/p}`."""
    norms = vectors.double().norm(dim=1)
    return power_mean(norms.cpu().numpy(), measure.log_weights.cpu().numpy(), p)
