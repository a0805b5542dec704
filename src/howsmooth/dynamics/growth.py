"""How a perturbation grows along depth: σ₁ of the flow's derivative against what the layers allow one by one.

The derivative of a whole flow is a chain of maps of tokens, linearised where the tokens pass through.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.dynamics.fixed_steps import Step, steps_of
from howsmooth.dynamics.velocity import Layer, Velocity, as_velocity, tangent
from howsmooth.errors import InputError
from howsmooth.spectral import LinearOperator, MatrixOperator, SingularTriplets, restrict, singular_values
from howsmooth.spectral.result import CONVERGED

TokenMap = Callable[[Tensor], Tensor]
DENSE = 256  # coordinates up to which a chain's derivative is multiplied out, one small matrix per map


class FlowDerivative(LinearOperator):
    """D(f_L ∘ … ∘ f_1) at x (n, d), matrix-free, for maps of tokens: layers of a model, or the steps of a flow.

    J v follows a perturbation forward through the maps (the variational equation of the scheme), Jᵀ u goes back through
    them (its adjoint). What is kept are the tokens before each map and the graph of each, which for attention holds
    nothing of size n²; `states` are the tokens themselves, x first.

    >>> twice = FlowDerivative([lambda x: 2 * x, lambda x: x**2], torch.ones(1, 1, dtype=torch.float64))
    >>> twice.matvec(torch.ones(1, dtype=torch.float64))
    tensor([8.], dtype=torch.float64)
    """

    def __init__(self, maps: Sequence[TokenMap], x: Tensor):
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
                    f"expected maps of tokens that depend on them, got none at place {number}; look for "
                    "detach or no_grad inside"
                )
            if not torch.isfinite(after).all():
                raise InputError(
                    f"expected finite tokens along the flow, got NaN or ∞ after map {number}; end before it"
                )
            self._graphs.append((before, after))
            self.states.append(after.detach())
        super().__init__((self.states[-1].numel(), x.numel()), dtype=x.dtype, device=x.device)

    def matvec(self, v: Tensor) -> Tensor:
        v = v.view_as(self.x)
        with torch.no_grad():
            for step, state in zip(self.maps, self.states, strict=False):
                _, v = torch.func.jvp(step, (state,), (v,))
        return v.reshape(-1)

    def rmatvec(self, u: Tensor) -> Tensor:
        for before, after in reversed(self._graphs):
            (u,) = torch.autograd.grad(after, before, u.view_as(after), retain_graph=True, materialize_grads=True)
        return u.reshape(-1)

    def until(self, count: int) -> FlowDerivative:
        """The derivative of the first `count` maps alone; nothing is computed again."""
        return self._part(0, count)

    def alone(self, index: int) -> FlowDerivative:
        """The derivative of map `index` at the tokens that come to it."""
        return self._part(index, index + 1)

    def perturbed(self) -> FlowDerivative | None:
        """The derivative from x moved by a unit of rounding: shows what rounding does where float64 cannot be had."""
        if self.dtype == torch.float64:
            return None
        signs = torch.randn(self.x.shape, generator=torch.Generator().manual_seed(0)).sign().to(self.x)
        return FlowDerivative(self.maps, self.x * (1 + self.roundoff * signs))

    def _part(self, first: int, last: int) -> FlowDerivative:
        part = object.__new__(FlowDerivative)
        part.maps, part.x = self.maps[first:last], self.states[first]
        part._graphs, part.states = self._graphs[first:last], self.states[first : last + 1]
        LinearOperator.__init__(part, (self.states[last].numel(), part.x.numel()), dtype=self.dtype, device=self.device)
        return part


def with_tangents(velocity: Velocity | Layer, count: int = 1) -> Velocity:
    """The velocity of tokens and perturbations together: x' = Γ_t(x), v' = DΓ_t(x) v, for `integrate`.

    Tokens and `count` perturbations of them lie one below the other, ((1 + count)·n, d); see `stack` and `unstack`.
    """
    inner = as_velocity(velocity)

    def joined(f: TokenMap) -> TokenMap:
        def both(y: Tensor) -> Tensor:
            x, *tangents = y.unflatten(0, (1 + count, -1))
            moved = [torch.func.jvp(f, (x,), (v,)) for v in tangents]
            return torch.cat([moved[0][0], *(v for _, v in moved)])

        return both

    def of(layer: Layer, t: float) -> TokenMap:
        return joined(lambda x: inner.through(layer, t, x))

    if inner.drift is None and inner.layers is not None:  # a list jumps from layer to layer: it stays a list
        return Velocity([of(layer, 0.0) for layer in inner.layers])
    if inner.layers is not None and len(inner.layers) > 1:
        raise InputError(
            "expected one layer or a function of depth together with a drift, got a list of layers; put "
            "the drift into the layers"
        )
    return Velocity(lambda t: of(inner.pieces(1.0)[0].layer_at(t), t))


def stack(x: Tensor, *tangents: Tensor) -> Tensor:
    """X and perturbations of its shape, one below the other."""
    return torch.cat([x, *(v.view_as(x) for v in tangents)])


def unstack(y: Tensor, count: int = 1) -> Tensor:
    """(1 + count, n, d): the tokens, then the perturbations."""
    return y.unflatten(-2, (1 + count, -1)).movedim(-3, 0)


@dataclass(frozen=True, eq=False)
class Growth:
    """At one depth: what the flow so far can do to a perturbation, and what its maps allow.

    `value` is σ₁ of the derivative of the flow from 0 to here, in [lower, upper] with probability `confidence`.
    `product` is Π σ₁ of the maps one by one, from the upper ends of their intervals: `value` does not exceed it, and is
    far below where the worst directions of neighbours do not meet. `status` is the chain's, or, where that converged,
    that of a map whose interval is wider than asked. `local` is σ₁ of the velocity's derivative at the tokens here, the
    local Lipschitz constant of attention (with drift, and projected where tokens live on spheres); None for maps that
    are no steps of a flow.
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
    direction: Tensor  # (n, d), unit norm: the perturbation of the first tokens that grows most
    response: Tensor  # (n, d), unit norm: what becomes of it here
    seed: int | None
    dtype: torch.dtype

    @property
    def product(self) -> float:
        return math.exp(self.log_product) if self.log_product < 709 else math.inf

    @property
    def exponent(self) -> float:
        """Log σ₁ per unit of depth."""
        return math.log(self.value) / self.depth if self.value > 0 else -math.inf

    def as_record(self) -> dict[str, Any]:
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
    tol: float = 1e-3,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[Growth]:
    """σ₁ of the derivative of the flow at `depths` depths up to `until`, by `steps` steps of a scheme.

    With scheme="residual" the flow is that of the residual layers themselves, and the numbers are theirs exactly.

    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> grown = perturbation_growth([lambda x: x], eye, 1.0, steps=4, depths=2)
    >>> [round(g.value, 4) for g in grown]  # (1 + 1/4)² and (1 + 1/4)⁴
    [1.5625, 2.4414]
    """
    chain = steps_of(as_velocity(velocity), until, steps, scheme)
    if isinstance(depths, bool) or not isinstance(depths, int) or not 1 <= depths <= steps:
        raise InputError(f"expected from 1 to {steps} depths, as many as there are steps, got {depths!r}")
    at = sorted({round(steps * (k + 1) / depths) for k in range(depths)})
    return growth_through(chain, x, at, tol=tol, seed=seed, progress=progress)


def growth_through(
    maps: Sequence[TokenMap],
    x: Tensor,
    at: Sequence[int] | None = None,
    *,
    tol: float = 1e-3,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> list[Growth]:
    """The same through any chain of maps, as the layers of a model; `at` says after how many maps (default: each)."""
    found = []
    for _, grown in growth_by_map(maps, x, at, tol=tol, seed=seed):
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
    tol: float = 1e-3,
    confidence: float = 0.999,
    seed: int = 0,
) -> Iterator[tuple[SingularTriplets, Growth | None]]:
    """For each map as soon as they are known: its own σ₁ at the tokens that come to it, and, where `at` asks for it
    (after so many maps; default: each), what the chain so far can do.

    `moved` are the numbers of the tokens that a perturbation may move at the start, None for all. The product is that
    of the maps' own constants, where all tokens may move.

    >>> double = lambda x: 2 * x
    >>> [g and round(g.value, 6) for _, g in growth_by_map([double, double], torch.ones(2, 1).double(), at=[2])]
    [None, 4.0]
    """
    whole = FlowDerivative(maps, x)
    wanted = set(range(1, len(maps) + 1) if at is None else at)
    if not wanted <= set(range(1, len(maps) + 1)):
        raise InputError(f"expected numbers of maps from 1 to {len(maps)}, got {sorted(wanted)}")
    width = x.shape[-1]
    columns = None if moved is None else (torch.tensor(moved)[:, None] * width + torch.arange(width)).flatten()
    dense = _Multiplied(whole) if max(state.numel() for state in whole.states) <= DENSE else None
    log_product, statuses = 0.0, []
    for k, step in enumerate(maps):
        own = _largest(whole.alone(k) if dense is None else dense.alone(k), tol, seed, confidence)
        most = float(own.upper[0]) if dense is None else dense.norm(k)
        log_product += math.log(most) if most > 0 else -math.inf
        statuses.append(own.status)
        if k + 1 not in wanted:
            yield own, None
            continue
        chain = whole.until(k + 1) if dense is None else dense.until(k + 1)
        top = own if k == 0 and columns is None else _largest(restrict(chain, cols=columns), tol, seed, confidence)
        depth = step.t + step.h if isinstance(step, Step) else float(k + 1)
        direction = torch.zeros(x.numel(), dtype=top.v.dtype, device=top.v.device)
        direction[... if columns is None else columns.to(top.v.device)] = top.v[0]
        yield (
            own,
            Growth(
                depth=depth,
                maps=k + 1,
                value=float(top.value[0]),
                lower=float(top.lower[0]),
                upper=float(top.upper[0]),
                confidence=top.confidence,
                status=_worst(top.status, *statuses),
                log_product=log_product,
                local=_local(step, depth, whole.states[k + 1], tol, seed) if isinstance(step, Step) else None,
                direction=direction.view(x.shape),
                response=top.u[0].view(whole.states[k + 1].shape),
                seed=top.seed,
                dtype=x.dtype,
            ),
        )


def local_constant(
    layer: Layer, x: Tensor, *, tol: float = 1e-3, seed: int = 0, sphere: bool = False
) -> SingularTriplets:
    """σ₁ of D_XΓ at tokens x (n, d), for attention of any kind: the local Lipschitz constant of the velocity.

    >>> found = local_constant(lambda x: 3 * x, torch.ones(2, 2, dtype=torch.float64))
    >>> round(float(found.value[0]), 6)
    3.0
    """
    layer_map: Any = getattr(layer, "on_tokens", layer)
    f: TokenMap = (lambda x: tangent(x, layer_map(x))) if sphere else layer_map
    return _largest(FlowDerivative([f], x), tol, seed)


def _local(step: Step, depth: float, x: Tensor, tol: float, seed: int) -> float:
    return float(_largest(FlowDerivative([lambda x: step.piece(depth, x)], x), tol, seed).value[0])


class _Multiplied:
    """Few coordinates: the derivative of each map as a matrix, and their products so far."""

    def __init__(self, whole: FlowDerivative):
        self.each: list[Tensor] = []
        self.so_far: list[Tensor] = []
        for step, state in zip(whole.maps, whole.states, strict=False):
            J = torch.func.jacrev(step)(state).reshape(-1, state.numel()).detach()
            self.each.append(J)
            self.so_far.append(J @ self.so_far[-1] if self.so_far else J)

    def alone(self, index: int) -> LinearOperator:
        return MatrixOperator(self.each[index])

    def norm(self, index: int) -> float:
        return float(torch.linalg.matrix_norm(self.each[index].double(), 2))

    def until(self, count: int) -> LinearOperator:
        return MatrixOperator(self.so_far[count - 1])


def _worst(*statuses: Any) -> str:
    """The first status that is not converged; each is that of one operator, a string."""
    return next((status for status in statuses if status != CONVERGED), CONVERGED)


def _largest(operator: LinearOperator, tol: float, seed: int, confidence: float = 0.999) -> SingularTriplets:
    return singular_values(operator, tol=tol, seed=seed, confidence=confidence, strict=False)
