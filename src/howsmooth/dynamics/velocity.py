"""The velocity of tokens: attention of any kind as the right-hand side of x' = Γ_t(x) + drift(t, x).

Flows of measures need only part of a softmax layer: for each head the scores ⟨A_h x + c_h, y⟩ and the values V_h y, and
a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.l2 import L2Attention
from howsmooth.errors import InputError

Layer = Any  # a Field, an attention layer or any map of tokens (n, d) → (n, d)
Drift = Callable[[float, Tensor], Tensor]


@dataclass(frozen=True)
class Piece:
    """The velocity on an interval [start, end] of depth on which it is continuous.

    Attributes:
        start: First depth.
        end: Last depth.
        layer_at: The layer as a function of depth.
        velocity: The `Velocity` that this is a piece of.
    """

    start: float
    end: float
    layer_at: Callable[[float], Layer]
    velocity: Velocity

    def __call__(self, t: float, x: Tensor) -> Tensor:
        """Return the velocity at depth t of tokens x (n, d)."""
        return self.velocity.through(self.layer_at(t), t, x)


class Velocity:
    """The right-hand side dx/dt at depth t, for tokens x (n, d).

    Args:
        weights: One layer for all depths; a list of layers, each for an equal part of the depth; or a function that
            returns the layer at a depth. A layer is a `Field`, a `SelfAttention`, an `L2Attention`, a module, or any
            map of tokens. Put a plain function f of tokens into a list, `[f]`: on its own it would be taken for a
            function of depth.
        sphere: Keep every token on the sphere of its own norm, as layer normalisation does: the velocity is
            projected onto the tangent space of that sphere.
        drift: Added to Γ before the projection: an MLP, a force, any map of (t, x) to a tensor of the shape of x.

    Raises:
        InputError: If the weights are no layers, or do not map a width to itself.

    Example:
        >>> from howsmooth import SelfAttention
        >>> eye = torch.eye(2, dtype=torch.float64)
        >>> Velocity(SelfAttention(eye, eye, eye))(0.0, torch.ones(3, 2, dtype=torch.float64))[0]
        tensor([1., 1.], dtype=torch.float64)
    """

    def __init__(
        self,
        weights: Layer | Sequence[Layer] | Callable[[float], Layer],
        *,
        sphere: bool = False,
        drift: Drift | None = None,
    ) -> None:
        """Check the layers; see the class for the arguments."""
        self.layers = tuple(weights) if isinstance(weights, (list, tuple)) else None
        if self.layers == ():
            raise InputError("expected at least one layer, got an empty list; for no attention use [lambda x: 0 * x]")
        if self.layers is None and not callable(weights):
            raise InputError(
                f"expected a layer, a list of layers or a function of depth, got "
                f"{type(weights).__name__}; see howsmooth.attention.fields"
            )
        if drift is not None and not callable(drift):
            raise InputError(f"expected a function (t, x) for the drift, got {type(drift).__name__}")
        self.weights: Any = weights
        self.sphere, self.drift = sphere, drift
        self.constant = self.layers is None and _is_layer(weights)
        for layer in self.layers or ([weights] if self.constant else ()):
            _check_width(layer)

    def pieces(self, until: float) -> tuple[Piece, ...]:
        """Split [0, until] into intervals on which the velocity is continuous in t: one for each layer of a list."""
        if self.layers is None:
            return (Piece(0.0, until, _always(self.weights) if self.constant else self.weights, self),)
        count = len(self.layers)
        return tuple(
            Piece(until * i / count, until * (i + 1) / count, _always(layer), self)
            for i, layer in enumerate(self.layers)
        )

    def __call__(self, t: float, x: Tensor) -> Tensor:
        """Return the velocity (n, d) at depth t; not for a list of several layers."""
        if self.layers is not None and len(self.layers) > 1:
            raise InputError(
                "expected one layer for all depths, got a list, whose velocity at t depends on the depth at "
                "which the flow ends; use pieces(until)"
            )
        return self.pieces(1.0)[0](t, x)

    def through(self, layer: Layer, t: float, x: Tensor) -> Tensor:
        """Return the velocity (n, d) with this layer as the attention at depth t."""
        layer_map = getattr(layer, "on_tokens", layer)
        if not callable(layer_map):
            raise InputError(f"expected a layer at depth {t:g}, got {type(layer).__name__}")
        v = layer_map(x)
        if not isinstance(v, Tensor) or v.shape != x.shape:
            got = tuple(v.shape) if isinstance(v, Tensor) else type(v).__name__
            raise InputError(
                f"expected a velocity of the tokens' shape {tuple(x.shape)}, got {got}; tokens move "
                "in R^d, so V has to be square"
            )
        if self.drift is not None:
            v = v + self.drift(t, x)
        return tangent(x, v) if self.sphere else v


def tangent(x: Tensor, v: Tensor) -> Tensor:
    """Project v (n, d), token by token, onto the tangent space of the sphere through x (n, d).

    Example:
        >>> tangent(torch.tensor([[2.0, 0.0]]), torch.tensor([[3.0, 5.0]]))
        tensor([[0., 5.]])
    """
    return v - x * ((x * v).sum(-1, keepdim=True) / x.square().sum(-1, keepdim=True))


def as_velocity(given: Velocity | Layer) -> Velocity:
    """Return a `Velocity` as it is, and make one of a layer, a list of layers or a function of depth."""
    return given if isinstance(given, Velocity) else Velocity(given)


def _always(layer: Layer) -> Callable[[float], Layer]:
    return lambda t: layer


def _is_layer(weights: Any) -> bool:
    return hasattr(weights, "on_tokens") or isinstance(weights, (SelfAttention, L2Attention, torch.nn.Module))


def _check_width(layer: Layer) -> None:
    d, d_out = getattr(layer, "d", None), getattr(layer, "d_out", None)
    if isinstance(d, int) and isinstance(d_out, int) and d != d_out:
        raise InputError(
            f"expected a layer from width {d} to width {d}, got one to width {d_out}; tokens move "
            "in R^d, so V (with the output projection) has to be square"
        )


@dataclass(frozen=True, eq=False)
class HeadMatrices:
    """One head in float64: scores ⟨Ax + c, y⟩ and values Vy, the output projection included in V.

    Attributes:
        A: Bilinear form of the scores, (d, d).
        V: Values, (d_out, d).
        c: From the query bias, (d,).
    """

    A: Tensor
    V: Tensor
    c: Tensor


def heads_of(layer: SelfAttention, purpose: str) -> tuple[list[HeadMatrices], Tensor]:
    """Return the heads of a layer, and the constant (d_out,) that its value and output biases add.

    Key biases drop out: they add a constant to each row of scores. `purpose` begins the error message.

    Raises:
        InputError: If the layer has a mask, a window, rotary positions, a soft cap or a score bias.
    """
    traits = {
        "a causal mask": layer.causal,
        "a window": layer.window is not None,
        "rotary positions": layer.rotary is not None,
        "a soft cap": layer.softcap is not None,
        "a score_bias": layer.score_bias is not None,
    }
    for trait in (name for name, present in traits.items() if present):
        raise InputError(
            f"{purpose}: expected a layer without positions and with plain scores, got one with {trait}; use particles"
        )
    layer = layer.converted(dtype=torch.float64)
    outs = (torch.eye(layer.d_out, dtype=torch.float64) if layer.wo is None else layer.wo).chunk(layer.heads, 1)
    constant = torch.zeros(layer.d_out, dtype=torch.float64) if layer.bo is None else layer.bo
    heads = []
    for index, out in enumerate(outs):
        head = layer.head(index)
        key = layer.scale * head.wk.mT
        c = torch.zeros(layer.d, dtype=torch.float64) if head.bq is None else key @ head.bq
        heads.append(HeadMatrices(key @ head.wq, out @ head.wv, c))
        if head.bv is not None:
            constant = constant + out @ head.bv
    return heads, constant


def single_head_matrices(layer: SelfAttention) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return A, c and V of a layer with one head, scores ⟨Ax + c, y⟩ and values Vy.

    Raises:
        InputError: If the layer is not of that form.
    """
    if not isinstance(layer, SelfAttention):
        raise InputError(
            f"expected softmax attention (SelfAttention or SoftmaxField), got {type(layer).__name__}; "
            "integrate other kinds without renormalisation"
        )
    traits = {
        f"{layer.heads} heads": layer.heads != 1,
        "rotary positions": layer.rotary is not None,
        "a score_bias": layer.score_bias is not None,
        "a window": layer.window is not None,
        "a soft cap": layer.softcap is not None,
        "a value or output bias": any(b is not None and bool(b.any()) for b in (layer.bv, layer.bo)),
        "a V that is not square": layer.d != layer.d_out,
    }
    for trait in (name for name, present in traits.items() if present):
        raise InputError(
            "renormalised coordinates: expected one head with scores ⟨Ax + c, y⟩ and values Vy, V "
            f"square, got a layer with {trait}; integrate the tokens themselves"
        )
    A = layer.scale * layer.wk.mT @ layer.wq
    c = None if layer.bq is None else layer.scale * layer.wk.mT @ layer.bq
    return A, c, layer.wv if layer.wo is None else layer.wo @ layer.wv
