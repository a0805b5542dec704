"""Growth of a perturbation along depth: σ₁ of the flow's derivative, and the product of the layers' own constants.

The derivative of a flow is the product of the derivatives of its maps, each taken at the tokens that enter it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch
from torch import Tensor

from howsmooth.dynamics.fixed_steps import FixedStep, steps_of
from howsmooth.dynamics.velocity import Layer, Velocity, as_velocity, tangent
from howsmooth.errors import InputError
from howsmooth.spectral.golub_kahan import singular_values
from howsmooth.spectral.operator import LinearOperator, MatrixOperator, restrict
from howsmooth.spectral.result import CONVERGED, SingularTriplets
from howsmooth.spectral.rounding import moved
from howsmooth.spectral.solver import Solver, SolverOptions

TokenMap = Callable[[Tensor], Tensor]
MAX_DENSE_COORDINATES = 256  # n·d up to which the derivative of a chain is a product of dense matrices


class FlowDerivative(LinearOperator):
    """The derivative D(f_L ∘ … ∘ f_1) at x, matrix-free, for maps of tokens: layers of a model, or steps of a flow.

    J v propagates a perturbation forward through the maps (the variational equation of the scheme), Jᵀ u propagates
    backward (its adjoint). The tokens before each map and the autograd graph of each map are kept in memory; for
    attention no graph is of size n².

    Args:
        maps: The maps f_1, …, f_L in the order of application.
        x: The tokens (n, d) that enter the first.

    Attributes:
        states: The tokens before each map, and at the end those after the last.

    Raises:
        InputError: If there is no map, a map does not depend on its input, or the tokens become NaN or ∞.

    Example:
        >>> twice = FlowDerivative([lambda x: 2 * x, lambda x: x**2], torch.ones(1, 1, dtype=torch.float64))
        >>> twice.matvec(torch.ones(1, dtype=torch.float64))
        tensor([8.], dtype=torch.float64)
    """

    def __init__(self, maps: Sequence[TokenMap], x: Tensor) -> None:
        """Apply the maps once and record their graphs."""
        if not maps:
            raise InputError("expected at least one map, got none")
        self.maps, self.x = tuple(maps), x.detach()
        self._graphs: list[tuple[Tensor, Tensor]] = []
        self.states = [self.x]
        for number, step in enumerate(self.maps):
            before = self.states[-1].clone().requires_grad_()
            with torch.enable_grad():
                after = step(before)
            if not isinstance(after, Tensor) or not after.requires_grad:
                raise InputError(
                    f"expected maps whose output depends on the tokens, got map {number}, which does not; look "
                    "for detach or no_grad inside"
                )
            if not torch.isfinite(after).all():
                raise InputError(
                    f"expected finite tokens along the flow, got NaN or ∞ after map {number}; end before it"
                )
            self._graphs.append((before, after))
            self.states.append(after.detach())
        super().__init__((self.states[-1].numel(), x.numel()), dtype=x.dtype, device=x.device)

    def matvec(self, v: Tensor) -> Tensor:
        """Return J v for a flat perturbation of the first tokens."""
        v = v.view_as(self.x)
        with torch.no_grad():
            for step, state in zip(self.maps, self.states, strict=False):
                v = torch.func.jvp(step, (state,), (v,))[1]
        return v.reshape(-1)

    def rmatvec(self, u: Tensor) -> Tensor:
        """Return Jᵀ u for a flat vector of the shape of the last tokens."""
        for before, after in reversed(self._graphs):
            (u,) = torch.autograd.grad(after, before, u.view_as(after), retain_graph=True, materialize_grads=True)
        return u.reshape(-1)

    def first(self, count: int) -> FlowDerivative:
        """Return the derivative of the first `count` maps, without recomputation."""
        return self._part(0, count)

    def single(self, index: int) -> FlowDerivative:
        """Return the derivative of map `index` at the tokens that enter it."""
        return self._part(index, index + 1)

    def perturbed(self) -> FlowDerivative | None:
        """Return the derivative at x perturbed by a rounding unit, to estimate rounding errors; None in float64."""
        if self.dtype == torch.float64:
            return None
        return FlowDerivative(self.maps, moved(self.x, self.roundoff))

    def _part(self, first: int, last: int) -> FlowDerivative:
        part = object.__new__(FlowDerivative)
        part.maps, part.x = self.maps[first:last], self.states[first]
        part._graphs, part.states = self._graphs[first:last], self.states[first : last + 1]
        LinearOperator.__init__(part, (self.states[last].numel(), part.x.numel()), dtype=self.dtype, device=self.device)
        return part


def with_tangents(velocity: Velocity | Layer, count: int = 1) -> Velocity:
    """Return the velocity of tokens together with perturbations, x' = Γ_t(x), v' = DΓ_t(x) v, for `integrate`.

    Tokens and perturbations are stacked along the first axis, ((1 + count)·n, d); see `stack` and `unstack`.

    Args:
        velocity: A `Velocity`, or anything that it accepts.
        count: Number of perturbations.

    Returns:
        The velocity of the stacked tensor.

    Raises:
        InputError: If the velocity has both a list of layers and a drift.

    Example:
        >>> both = Velocity([lambda x: x**2])
        >>> with_tangents(both)(0.0, stack(torch.tensor([[3.0]]), torch.tensor([[1.0]]))).tolist()
        [[9.0], [6.0]]
    """
    inner = as_velocity(velocity)

    def joined(f: TokenMap) -> TokenMap:
        def both(y: Tensor) -> Tensor:
            x, *tangents = y.unflatten(0, (1 + count, -1))
            moved = [torch.func.jvp(f, (x,), (v,)) for v in tangents]
            return torch.cat([moved[0][0], *(pair[1] for pair in moved)])

        return both

    def of(layer: Layer, t: float) -> TokenMap:
        return joined(lambda x: inner.through(layer, t, x))

    if inner.drift is None and inner.layers is not None:  # keep a list, whose velocity jumps from layer to layer
        return Velocity([of(layer, 0.0) for layer in inner.layers])
    if inner.layers is not None and len(inner.layers) > 1:
        raise InputError(
            "expected one layer or a function of depth together with a drift, got a list of layers; put "
            "the drift into the layers"
        )
    return Velocity(lambda t: of(inner.pieces(1.0)[0].layer_at(t), t))


def stack(x: Tensor, *tangents: Tensor) -> Tensor:
    """Concatenate tokens and perturbations along the first axis, for `with_tangents`.

    Args:
        x: The tokens, (n, d).
        *tangents: Perturbations with n·d entries each.

    Returns:
        The stacked tensor, ((1 + count)·n, d).

    Example:
        >>> stack(torch.zeros(2, 1), torch.ones(2, 1)).flatten().tolist()
        [0.0, 0.0, 1.0, 1.0]
    """
    return torch.cat([x, *(v.view_as(x) for v in tangents)])


def unstack(y: Tensor, count: int = 1) -> Tensor:
    """Split a stacked tensor into tokens and perturbations; the inverse of `stack`.

    Args:
        y: The stacked tensor, (…, (1 + count)·n, d).
        count: Number of perturbations.

    Returns:
        Tokens and perturbations, (1 + count, …, n, d).

    Example:
        >>> x, v = unstack(torch.tensor([[0.0], [0.0], [1.0], [1.0]]))
        >>> v.flatten().tolist()
        [1.0, 1.0]
    """
    return y.unflatten(-2, (1 + count, -1)).movedim(-3, 0)


@dataclass(frozen=True, eq=False)
class PerturbationGrowth:
    """The largest growth of a perturbation from depth 0 to one depth, and the product of the maps' own constants.

    Attributes:
        depth: The depth.
        maps: Number of maps up to there.
        value: σ₁ of the derivative of the flow from 0 to this depth.
        lower: Lower end of its interval.
        upper: Upper end of its interval, valid with probability `confidence`.
        confidence: Probability that the interval contains σ₁.
        status: Status of this solve or, if it converged, of the first map whose own solve did not.
        log_product: Log of Π σ₁ over the maps, each replaced by the upper end of its interval. It bounds log `value`,
            which is much smaller when the worst directions of consecutive maps are not aligned.
        local: σ₁ of the velocity's derivative at the tokens at this depth: the local Lipschitz constant of attention
            (with drift, and projected on spheres). None for maps that are no steps of a flow.
        direction: The perturbation of the first tokens that grows most, (n, d), of unit norm.
        response: Its image at this depth, (n, d), of unit norm.
        seed: Seed of the solver.
        dtype: Dtype of the tokens.
    """

    depth: float
    maps: int
    value: float
    lower: float
    upper: float
    confidence: float
    status: str
    log_product: float
    local: float | None
    direction: Tensor
    response: Tensor
    seed: int | None
    dtype: torch.dtype

    @property
    def product(self) -> float:
        """The product of the maps' own constants; ∞ if it overflows."""
        return math.exp(self.log_product) if self.log_product < 709 else math.inf

    @property
    def exponent(self) -> float:
        """The exponent log(σ₁)/depth."""
        return math.log(self.value) / self.depth if self.value > 0 else -math.inf

    def as_record(self) -> dict[str, Any]:
        """Return all numbers as plain values, without the singular vectors."""
        names = (
            "depth",
            "maps",
            "value",
            "lower",
            "upper",
            "confidence",
            "status",
            "log_product",
            "product",
            "local",
            "exponent",
            "seed",
        )
        return {name: getattr(self, name) for name in names} | {"dtype": str(self.dtype).removeprefix("torch.")}


def perturbation_growth(
    velocity: Velocity | Layer,
    x: Tensor,
    until: float,
    *,
    steps: int = 64,
    scheme: str = "residual",
    depths: int = 8,
    progress: Callable[[float], None] | None = None,
    solver: Solver = Solver(),
    **options: Unpack[SolverOptions],
) -> list[PerturbationGrowth]:
    """Compute σ₁ of the derivative of a flow at `depths` depths up to `until`.

    With scheme="residual" the maps are the residual layers X + hΓ(X), and σ₁ is that of the layers themselves.

    Args:
        velocity: A `Velocity`, or anything that it accepts.
        x: The tokens at depth 0, (n, d).
        until: The last depth.
        steps: Number of steps; with a list of layers a multiple of their number.
        scheme: "residual" or "rk4".
        depths: Number of depths at which σ₁ is computed, evenly spaced.
        progress: Called with the depth after each of them.
        solver: The options of each solve.
        **options: Fields of the solver to replace.

    Returns:
        The growth at each depth, in order.

    Raises:
        InputError: If a setting is not valid, or the tokens become NaN or ∞.

    Example:
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> grown = perturbation_growth([lambda x: x], eye, 1.0, steps=4, depths=2)
        >>> [round(g.value, 4) for g in grown]  # (1 + 1/4)² and (1 + 1/4)⁴
        [1.5625, 2.4414]
    """
    chain = steps_of(as_velocity(velocity), until, steps, scheme)
    if isinstance(depths, bool) or not isinstance(depths, int) or not 1 <= depths <= steps:
        raise InputError(f"expected from 1 to {steps} depths, as many as there are steps, got {depths!r}")
    at = sorted({round(steps * (k + 1) / depths) for k in range(depths)})
    return growth_through(chain, x, at, progress=progress, solver=solver, **options)


def growth_through(
    maps: Sequence[TokenMap],
    x: Tensor,
    at: Sequence[int] | None = None,
    *,
    progress: Callable[[float], None] | None = None,
    solver: Solver = Solver(),
    **options: Unpack[SolverOptions],
) -> list[PerturbationGrowth]:
    """Compute σ₁ of the derivative of a chain of maps, such as the layers of a model.

    Args:
        maps: Maps of tokens in the order of application.
        x: The tokens that enter the first, (n, d).
        at: After how many maps σ₁ is computed; None for after each.
        progress: Called with the depth after each solve.
        solver: The options of each solve.
        **options: Fields of the solver to replace.

    Returns:
        The growth at each depth in `at`, in order.

    Raises:
        InputError: If `at` is not valid, or the tokens become NaN or ∞.

    Example:
        >>> double = lambda x: 2 * x
        >>> [round(g.value, 6) for g in growth_through([double, double], torch.ones(2, 1).double())]
        [2.0, 4.0]
    """
    found = []
    for _, grown in growth_by_map(maps, x, at, solver=solver, **options):
        if grown is not None:
            found.append(grown)
            if progress is not None:
                progress(grown.depth)
    return found


def growth_by_map(
    maps: Sequence[TokenMap],
    x: Tensor,
    at: Sequence[int] | None = None,
    *,
    moved: Sequence[int] | None = None,
    solver: Solver = Solver(),
    **options: Unpack[SolverOptions],
) -> Iterator[tuple[SingularTriplets, PerturbationGrowth | None]]:
    """Yield σ₁ of each map at the tokens that enter it, and the growth through the chain so far.

    Args:
        maps: Maps of tokens in the order of application.
        x: The tokens that enter the first, (n, d).
        at: After how many maps the growth is computed; None for after each. Elsewhere None is yielded for it.
        moved: Indices of the tokens that a perturbation may change at the start; None for all. The maps' own
            constants, and with them the product, are always those of all tokens.
        solver: The options of each solve.
        **options: Fields of the solver to replace.

    Yields:
        For each map its own singular triplet, and the growth or None.

    Raises:
        InputError: If `at` is not valid, or the tokens become NaN or ∞.

    Example:
        >>> double = lambda x: 2 * x
        >>> [g and round(g.value, 6) for _, g in growth_by_map([double, double], torch.ones(2, 1).double(), at=[2])]
        [None, 4.0]
    """
    solver = replace(solver, **options)
    whole = FlowDerivative(maps, x)
    wanted = set(range(1, len(maps) + 1) if at is None else at)
    if not wanted <= set(range(1, len(maps) + 1)):
        raise InputError(f"expected numbers of maps from 1 to {len(maps)}, got {sorted(wanted)}")
    width = x.shape[-1]
    columns = None if moved is None else (torch.tensor(moved)[:, None] * width + torch.arange(width)).flatten()
    dense = _DenseChain(whole) if max(state.numel() for state in whole.states) <= MAX_DENSE_COORDINATES else None
    log_product = 0.0
    statuses: list[Any] = []  # strings: each operator is a single one
    for k, step in enumerate(maps):
        own = _top_triplet(whole.single(k) if dense is None else dense.single(k), solver)
        most = float(own.upper[0]) if dense is None else dense.norm(k)
        log_product += math.log(most) if most > 0 else -math.inf
        statuses.append(own.status)
        if k + 1 not in wanted:
            yield own, None
            continue
        chain = whole.first(k + 1) if dense is None else dense.first(k + 1)
        top = own if k == 0 and columns is None else _top_triplet(restrict(chain, cols=columns), solver)
        depth = step.t + step.h if isinstance(step, FixedStep) else float(k + 1)
        direction = torch.zeros(x.numel(), dtype=top.v.dtype, device=top.v.device)
        direction[... if columns is None else columns.to(top.v.device)] = top.v[0]
        yield (
            own,
            PerturbationGrowth(
                depth=depth,
                maps=k + 1,
                value=float(top.value[0]),
                lower=float(top.lower[0]),
                upper=float(top.upper[0]),
                confidence=top.confidence,
                status=_first_unconverged(top.status, *statuses),
                log_product=log_product,
                local=_step_constant(step, depth, whole.states[k + 1], solver) if isinstance(step, FixedStep) else None,
                direction=direction.view(x.shape),
                response=top.u[0].view(whole.states[k + 1].shape),
                seed=top.seed,
                dtype=x.dtype,
            ),
        )


def local_constant(
    layer: Layer, x: Tensor, *, sphere: bool = False, solver: Solver = Solver(), **options: Unpack[SolverOptions]
) -> SingularTriplets:
    """Compute σ₁ of D_XΓ at tokens x, the local Lipschitz constant of any kind of attention.

    Args:
        layer: A field, an attention layer, or any map of tokens.
        x: The tokens, (n, d).
        sphere: Project the velocity onto the tangent spaces of the tokens' spheres.
        solver: The options of the solve.
        **options: Fields of the solver to replace.

    Returns:
        The singular triplet with its interval and status.

    Example:
        >>> found = local_constant(lambda x: 3 * x, torch.ones(2, 2, dtype=torch.float64))
        >>> round(float(found.value[0]), 6)
        3.0
    """
    layer_map: Any = getattr(layer, "on_tokens", layer)
    f: TokenMap = (lambda x: tangent(x, layer_map(x))) if sphere else layer_map
    return _top_triplet(FlowDerivative([f], x), replace(solver, **options))


def _step_constant(step: FixedStep, depth: float, x: Tensor, solver: Solver) -> float:
    return float(_top_triplet(FlowDerivative([lambda x: step.piece(depth, x)], x), solver).value[0])


class _DenseChain:
    """The derivatives of the maps as dense matrices, and their cumulative products; for few coordinates."""

    def __init__(self, whole: FlowDerivative) -> None:
        self.each: list[Tensor] = []
        self.cumulative: list[Tensor] = []
        for step, state in zip(whole.maps, whole.states, strict=False):
            J = torch.func.jacrev(step)(state).reshape(-1, state.numel()).detach()
            self.each.append(J)
            self.cumulative.append(J @ self.cumulative[-1] if self.cumulative else J)

    def single(self, index: int) -> LinearOperator:
        return MatrixOperator(self.each[index])

    def norm(self, index: int) -> float:
        return float(torch.linalg.matrix_norm(self.each[index].double(), 2))

    def first(self, count: int) -> LinearOperator:
        return MatrixOperator(self.cumulative[count - 1])


def _first_unconverged(*statuses: Any) -> str:
    """Return the first status that is not "converged"."""
    return next((status for status in statuses if status != CONVERGED), CONVERGED)


def _top_triplet(operator: LinearOperator, solver: Solver) -> SingularTriplets:
    return singular_values(operator, solver=solver, strict=False)
