"""Mass splitting: whether the norm of the derivative grows if atoms are split into several that move separately.

Split every atom into k ≥ 2 atoms and perturb them freely. For any map `x_i ↦ G(x_i, μ)` of weighted atoms, exactly,

    norm after splitting = max( ‖D‖ , max_i ‖∂₁G(x_i, μ)‖ )

in L²(μ), for every k and for all masses of the pieces. The pieces of an atom enter all outputs by their mean only, so
perturbations split into means and zero-sum parts that do not mix, and on a zero-sum part the derivative is ∂₁G of that
atom (proof in docs/splitting.md). For attention `∂₁G(x_i, μ) = Σ_h W_h V_h C_i^h A_h`. So a measure splits iff
`max_i ‖∂₁G(x_i, μ)‖ > ‖D‖`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from howsmooth.attention.fields.softmax import SoftmaxField
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.query_derivative import QueryDerivative
from howsmooth.attention.weighted import root_weights
from howsmooth.errors import InputError
from howsmooth.lipschitz.estimate import Estimate
from howsmooth.lipschitz.gains import TokenGains
from howsmooth.lipschitz.local import Map, local_lipschitz
from howsmooth.lipschitz.mean_field import check_log_weights
from howsmooth.lipschitz.rowwise import plus_identity, rowwise_jacobian, spectral_norms
from howsmooth.spectral.operator import LinearOperator
from howsmooth.spectral.solver import Solver, SolverOptions
from howsmooth.transport.measures import TokenMeasure, refuse_without_order

SPLITS, DOES_NOT_SPLIT, UNDECIDED = "splits", "does not split", "undecided"
_MIN_TOL = 1e-9  # relative width that float64 can resolve

FieldMap = Callable[..., Tensor]  # G(x, points, log_weights), with keywords `times` and `source_times` for timed atoms


@dataclass(frozen=True, eq=False)
class Splitting:
    """The two norms that decide whether a measure splits, with their intervals.

    Attributes:
        status: "splits" or "does not split" if the intervals of the two norms do not overlap, else "undecided".
        norm: `‖D‖` at this measure, in L²(μ).
        own: `‖∂₁G(x_i, μ)‖` of each atom: the derivative of its output in its own position.
        atom: Index of the atom with the largest of these.
    """

    status: str
    norm: Estimate
    own: TokenGains
    atom: int

    @property
    def splits(self) -> bool:
        """Whether the norm certainly grows by splitting."""
        return self.status == SPLITS

    @property
    def ratio(self) -> float:
        """The ratio `max_i ‖∂₁G(x_i, μ)‖ / ‖D‖`; the measure splits iff it is above 1."""
        return _ratio(self.own.largest, self.norm.value)

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the ratio."""
        return (
            _ratio(float(self.own.lower.max()), _upper(self.norm)),
            _ratio(float(self.own.upper.max()), self.norm.lower),
        )

    @property
    def after(self) -> float:
        """The norm after splitting."""
        return max(self.norm.value, self.own.largest)

    @property
    def gain(self) -> float:
        """The norm after splitting divided by the norm before, at least 1."""
        return max(1.0, self.ratio)

    @property
    def atoms(self) -> Tensor:
        """Indices of the atoms whose splitting alone certainly increases the norm."""
        return (self.own.lower > _upper(self.norm)).nonzero().flatten()

    def as_record(self) -> dict[str, Any]:
        """Return the numbers as plain Python values."""
        low, high = self.interval
        return {
            "verdict": self.status,
            "status": self.norm.status,
            "ratio": self.ratio,
            "ratio_lower": low,
            "ratio_upper": high,
            "gain": self.gain,
            "norm": self.norm.as_record(),
            "own": self.own.largest,
            "own_lower": float(self.own.lower.max()),
            "own_upper": float(self.own.upper.max()),
            "own_confidence": self.own.confidence,
            "atom": self.atom,
            "atoms": self.atoms.tolist(),
            "dtype": str(self.norm.dtype).removeprefix("torch."),
            "seed": self.norm.seed,
        }


def splits(
    f: SelfAttention | FieldMap,
    x: Tensor | TokenMeasure,
    log_weights: Tensor | None = None,
    times: Tensor | None = None,
    *,
    residual: bool = False,
    solver: Solver = Solver(),
    **options: Unpack[SolverOptions],
) -> Splitting:
    """Decide whether the measure `Σ a_i δ_{x_i}` splits under a map, and by how much the norm grows.

    If the intervals overlap, the comparison is repeated with a smaller tolerance, down to 1e-9. The failure probability
    is divided among the possible attempts.

    Args:
        f: An attention layer with any of its options (with rotary positions, a piece keeps the position of its atom);
            or any `G(x, points, log_weights)` that returns one output for each row of x, such as a field of
            `howsmooth.attention.fields`.
        x: Atoms (n, d), or a `TokenMeasure` or `TimedMeasure`.
        log_weights: Logarithms of the masses, (n,), up to a constant; equal masses by default.
        times: Times (n,). An atom attends to those whose time is not later than its own, and pieces have the time of
            their atom. In a causal layer without times, each token has its own time, in order.
        residual: Whether to add x to the output of the map.
        solver: The options of the solves: `tol` is that of the first attempt, the confidence that of all intervals of
            all attempts.
        **options: Fields of the solver to replace.

    Returns:
        The two norms and the decision.

    Raises:
        InputError: If the map or the atoms cannot be used; the message contains the reason.

    Example:
        >>> one = torch.ones(1, 1, dtype=torch.float64)
        >>> found = splits(SelfAttention(one, one, one), torch.tensor([[0.2], [10.0]], dtype=torch.float64))
        >>> found.status, round(found.own.largest, 4), round(found.norm.value, 4)
        ('splits', 10.3937, 10.363)
    """
    solver = replace(solver, **options)
    f = f.layer if isinstance(f, SoftmaxField) else f
    if isinstance(f, torch.nn.Module) and not isinstance(f, SelfAttention):
        raise InputError(
            "expected an attention layer or a map G(x, points, log_weights), whose masses can be divided, got "
            f"{type(f).__name__}, a map of tokens alone; pass the field of one head, such as "
            "howsmooth.attention.fields.L2Field"
        )
    if isinstance(f, SelfAttention) and isinstance(x, TokenMeasure):
        refuse_without_order(f, x)
    x, log_weights, times = _check_atoms(x, log_weights, times)
    if log_weights is not None:
        check_log_weights(torch.log_softmax(log_weights.double(), -1))
    solver = solver.divided(1 + max(0, math.ceil(math.log(solver.tol / _MIN_TOL, 100) - 1e-9)))
    while True:
        if log_weights is not None or solver.tol < 1e-6:  # small masses and small tolerances need float64
            f, x = _in_float64(f, x)
            log_weights = None if log_weights is None else log_weights.double()
        if isinstance(f, SelfAttention):
            whole, own = _layer_maps(f, x, log_weights, times, residual)
        else:
            whole, own = _field_maps(f, x, log_weights, times, residual)
        start = x if log_weights is None else root_weights(log_weights) * x
        found = compare_norms(whole, own, start, solver)
        if found.status != UNDECIDED or solver.tol <= _MIN_TOL:
            return found
        f, x = _in_float64(f, x)
        solver = replace(solver, tol=max(solver.tol / 100, _MIN_TOL))


def compare_norms(whole: Map, own: LinearOperator, x: Tensor, solver: Solver) -> Splitting:
    """Compare `‖D‖` of a map at x (n, d) with the norms of `own`, the batch of the n operators `∂₁G(x_i, μ)`."""
    solver = solver.divided(2)
    norms = spectral_norms(own, solver=solver)
    norm = local_lipschitz(whole, x, solver=solver, batched=False, strict=False)
    return Splitting(_decision(norm, norms), norm, norms, int(norms.value.argmax()))


def on_atoms(f: SelfAttention, log_weights: Tensor | None = None, times: Tensor | None = None) -> SelfAttention:
    """Return the layer on weighted atoms (`P_ij ∝ a_j e^{s_ij}`), with times instead of its causal mask."""
    if log_weights is None and times is None:
        return f
    score_bias = f.score_bias

    def bias(i: Tensor, j: Tensor) -> Tensor:
        table = torch.zeros(i.shape[0], j.shape[1], dtype=torch.float64, device=i.device)
        if log_weights is not None:
            table = table + torch.log_softmax(log_weights.double(), -1)[j]
        if times is not None:
            table = table.masked_fill(times[j] > times[i], -torch.inf)
        if score_bias is None:
            return table
        if isinstance(score_bias, Tensor):
            return table + score_bias[..., i[0, 0] : i[-1, 0] + 1, j[0, 0] : j[0, -1] + 1]
        return table + score_bias(i, j)

    return f.replaced(score_bias=bias, causal=f.causal and times is None)


def _layer_maps(
    f: SelfAttention, x: Tensor, log_weights: Tensor | None, times: Tensor | None, residual: bool
) -> tuple[Map, LinearOperator]:
    """Return the map of all atoms, between weighted norms, and the operators `∂₁G(x_i, μ)`, for a layer."""
    f.check_tokens(x, None)
    layer = on_atoms(f, log_weights, times)
    own: LinearOperator = QueryDerivative(layer.converted(dtype=torch.float64), x.double())
    if residual:
        own = plus_identity(own)
    if log_weights is None and not residual:
        return layer, own
    root = 1.0 if log_weights is None else root_weights(log_weights)
    return (lambda y: root * layer(y / root) + (y if residual else 0)), own


def _field_maps(
    g: FieldMap, x: Tensor, log_weights: Tensor | None, times: Tensor | None, residual: bool
) -> tuple[Map, LinearOperator]:
    """Return the same two for any G(x, points, log_weights)."""
    options = {} if times is None else {"times": times, "source_times": times}
    root = 1.0 if log_weights is None else root_weights(log_weights)

    def whole(y: Tensor) -> Tensor:
        return root * g(y / root, y / root, log_weights, **options) + (y if residual else 0)

    # If an atom attends only to itself, ∂₁G is zero up to rounding and the checks would fail; those of `whole` suffice.
    own = rowwise_jacobian(lambda z: g(z, x, log_weights, **options), x, check=False)
    return whole, plus_identity(own) if residual else own


def _decision(norm: Estimate, own: TokenGains) -> str:
    if float(own.lower.max()) > _upper(norm):
        return SPLITS
    return DOES_NOT_SPLIT if float(own.upper.max()) <= norm.lower else UNDECIDED


def _upper(norm: Estimate) -> float:
    return math.inf if norm.upper is None else norm.upper


def _ratio(a: float, b: float) -> float:
    return a / b if b > 0 else (math.inf if a > 0 else 1.0)


def _in_float64(f: SelfAttention | FieldMap, x: Tensor) -> tuple[SelfAttention | FieldMap, Tensor]:
    return (f.converted(dtype=torch.float64) if isinstance(f, SelfAttention) else f), x.double()


def _check_atoms(
    x: Tensor | TokenMeasure, log_weights: Tensor | None, times: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return points, log weights and times, from a measure or as given."""
    if isinstance(x, TokenMeasure):
        if log_weights is not None or times is not None:
            raise InputError("expected masses and times from the measure alone, got them beside it")
        measure = x
        x, log_weights, times = measure.points, measure.log_weights, getattr(measure, "times", None)
    if not isinstance(x, Tensor) or x.dim() != 2 or not x.dtype.is_floating_point or not x.numel():
        got = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"expected atoms as a floating tensor (n, d) or a measure, got {got}")
    if not torch.isfinite(x).all():
        raise InputError("expected finite atoms, got NaN or ∞")
    for name, t in (("log_weights", log_weights), ("times", times)):
        if t is not None and (not isinstance(t, Tensor) or t.shape != x.shape[:1] or not torch.isfinite(t).all()):
            got = f"shape {tuple(t.shape)}" if isinstance(t, Tensor) else type(t).__name__
            raise InputError(
                f"expected {name} as {len(x)} finite numbers, one for each atom, got {got}; leave out "
                "atoms without mass"
            )
    return x, log_weights, times
