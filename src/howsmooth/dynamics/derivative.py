"""The derivative of a whole flow: a chain of maps of tokens, linearised where the tokens pass through."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from howsmooth.dynamics.velocity import Layer, Velocity, as_velocity
from howsmooth.errors import InputError
from howsmooth.spectral import LinearOperator

TokenMap = Callable[[Tensor], Tensor]


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
                raise InputError(f"expected maps of tokens that depend on them, got none at place {number}; look for "
                                 "detach or no_grad inside")
            if not torch.isfinite(after).all():
                raise InputError(f"expected finite tokens along the flow, got NaN or ∞ after map {number}; end "
                                 "before it")
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
            u, = torch.autograd.grad(after, before, u.view_as(after), retain_graph=True, materialize_grads=True)
        return u.reshape(-1)

    def until(self, count: int) -> FlowDerivative:
        """The derivative of the first `count` maps alone; nothing is computed again."""
        return self._part(0, count)

    def alone(self, index: int) -> FlowDerivative:
        """The derivative of map `index` at the tokens that come to it."""
        return self._part(index, index + 1)

    def shaken(self) -> FlowDerivative | None:
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
        raise InputError("expected one layer or a function of depth together with a drift, got a list of layers; put "
                         "the drift into the layers")
    return Velocity(lambda t: of(inner.pieces(1.0)[0].layer_at(t), t))


def stack(x: Tensor, *tangents: Tensor) -> Tensor:
    """x and perturbations of its shape, one below the other."""
    return torch.cat([x, *(v.view_as(x) for v in tangents)])


def unstack(y: Tensor, count: int = 1) -> Tensor:
    """(1 + count, n, d): the tokens, then the perturbations."""
    return y.unflatten(-2, (1 + count, -1)).movedim(-3, 0)
