"""The velocity of tokens: attention of any kind as the right-hand side of x' = Γ_t(x) + drift(t, x)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention import L2Attention, SelfAttention
from howsmooth.errors import InputError

Layer = Any  # a Field, an attention layer or any map of tokens (n, d) → (n, d)
Drift = Callable[[float, Tensor], Tensor]


@dataclass(frozen=True)
class Piece:
    """The velocity on one stretch [start, end] of depth where it does not jump."""

    start: float
    end: float
    layer_at: Callable[[float], Layer]
    velocity: Velocity

    def __call__(self, t: float, x: Tensor) -> Tensor:
        return self.velocity.through(self.layer_at(t), t, x)


class Velocity:
    """x ↦ dx/dt at depth t, for tokens x (n, d).

    Args:
        weights: one layer for all depths; a list of layers, each for an equal share of the depth; or a function of
            depth that gives the layer there. A layer is a `Field`, a `SelfAttention`, an `L2Attention`, a module, or
            any map of tokens; a plain function of tokens goes into a list, [f], since alone it is read as a function
            of depth.
        sphere: every token stays on the sphere of its own norm, as layer normalisation keeps it: the velocity is
            projected on the tangent space there.
        drift: added to Γ before the projection: an MLP, a force, anything that maps (t, x) to a tensor like x.

    >>> from howsmooth import SelfAttention
    >>> eye = torch.eye(2, dtype=torch.float64)
    >>> Velocity(SelfAttention(eye, eye, eye))(0.0, torch.ones(3, 2, dtype=torch.float64))[0]
    tensor([1., 1.], dtype=torch.float64)
    """

    def __init__(self, weights: Layer | Sequence[Layer] | Callable[[float], Layer], *, sphere: bool = False,
                 drift: Drift | None = None):
        self.layers = tuple(weights) if isinstance(weights, (list, tuple)) else None
        if self.layers == ():
            raise InputError("expected at least one layer, got an empty list; without attention it is "
                             "[lambda x: 0 * x]")
        if self.layers is None and not callable(weights):
            raise InputError(f"expected a layer, a list of layers or a function of depth, got "
                             f"{type(weights).__name__}; see howsmooth.attention.fields")
        if drift is not None and not callable(drift):
            raise InputError(f"expected a function (t, x) for the drift, got {type(drift).__name__}")
        self.weights, self.sphere, self.drift = weights, sphere, drift
        self.constant = self.layers is None and _is_layer(weights)
        for layer in self.layers or ([weights] if self.constant else ()):
            _refuse_other_widths(layer)

    def pieces(self, until: float) -> tuple[Piece, ...]:
        """Stretches of [0, until] on which the velocity is smooth in t; one for each layer of a list."""
        if self.layers is None:
            at = (lambda t: self.weights) if self.constant else self.weights
            return (Piece(0.0, until, at, self),)
        count = len(self.layers)
        return tuple(Piece(until * i / count, until * (i + 1) / count, lambda t, layer=layer: layer, self)
                     for i, layer in enumerate(self.layers))

    def __call__(self, t: float, x: Tensor) -> Tensor:
        if self.layers is not None and len(self.layers) > 1:
            raise InputError("expected one layer for all depths, got a list, whose velocity at t depends on where the "
                             "flow ends; use pieces(until)")
        return self.pieces(1.0)[0](t, x)

    def through(self, layer: Layer, t: float, x: Tensor) -> Tensor:
        """The velocity that this layer gives at depth t."""
        layer_map = getattr(layer, "on_tokens", layer)
        if not callable(layer_map):
            raise InputError(f"expected a layer at depth {t:g}, got {type(layer).__name__}")
        v = layer_map(x)
        if not isinstance(v, Tensor) or v.shape != x.shape:
            got = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
            raise InputError(f"expected a velocity of the tokens' shape {tuple(x.shape)}, got {got}; tokens move where "
                             "they live, so V has to be square")
        if self.drift is not None:
            v = v + self.drift(t, x)
        return tangent(x, v) if self.sphere else v


def tangent(x: Tensor, v: Tensor) -> Tensor:
    """v without its part along x, token by token: what moves x on the sphere of its own norm.

    >>> tangent(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 5.0]]))
    tensor([[0., 5.]])
    """
    return v - x * ((x * v).sum(-1, keepdim=True) / x.square().sum(-1, keepdim=True))


def as_velocity(given: Velocity | Layer) -> Velocity:
    """The velocity itself, or that of a layer, a list of layers or a function of depth."""
    return given if isinstance(given, Velocity) else Velocity(given)


def _is_layer(weights: Any) -> bool:
    return hasattr(weights, "on_tokens") or isinstance(weights, (SelfAttention, L2Attention, torch.nn.Module))


def _refuse_other_widths(layer: Layer) -> None:
    d, d_out = getattr(layer, "d", None), getattr(layer, "d_out", None)
    if isinstance(d, int) and isinstance(d_out, int) and d != d_out:
        raise InputError(f"expected a layer from width {d} to width {d}, got one to width {d_out}; tokens move where "
                         "they live, so V (with the output projection) has to be square")
