"""The parts of a layer that ran: its attention, its norms, its residual connection, and what else mixes its tokens.

They follow from the data flow of one forward pass:

    attention       the module that called the attention function or, without one, that `find_attention` finds
    projection      the first matrix applied to the heads' output, with any wrapper around it (LoRA)
    normalisation   the module with "norm" in its class name whose output is the input of attention
    after           modules that are applied to the projection's output alone, before it is added to the residual
                    stream (Gemma's second norm, DINOv2's layer scale)
    post_norm       the norm of a post-norm layer, applied to the sum of the stream and attention
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.calls import (
    CompletedCall,
    ModuleCall,
    RunningCall,
    SoftmaxCall,
    applied_to,
    is_close,
    is_norm,
    is_same,
)
from howsmooth.models.mlp import Mlp, find_mlp
from howsmooth.models.tracing import check_repeats, find_attention, is_matrix, mixes_tokens


class MissingMap(InputError):
    """A layer, or a family, has no such map; `Model.map_at` adds the names of those it has."""


@dataclass(frozen=True, eq=False)
class Attention:
    """The softmax self-attention of a layer, as it ran on one input. Tensors are (b, n, d).

    Attributes:
        call: The call of the attention module.
        projection: The output projection.
        projection_calls: How often the projection had been called before in the forward pass, by layers that share it.
        output: What the projection returned: the value of the attention map at `call.x`.
        after: Modules between the projection and the residual stream.
        post_norm: The norm of a post-norm layer.
        has_residual: Whether the layer computes the sum of its input and attention.
        other_sources: What attention takes from other tokens than `call.x`, in words; "" for nothing.
        attends: Whether it is computed by `attend`; otherwise by the module's own code.
        direct: Whether the heads enter the projection as they are, without a gate or a norm.
        heads: The number of heads, where `attend` computes them; stages of a network may have their own.
    """

    call: ModuleCall
    projection: torch.nn.Module
    projection_calls: int
    output: Tensor
    after: tuple[torch.nn.Module, ...]
    post_norm: torch.nn.Module | None
    has_residual: bool
    other_sources: str
    attends: bool
    direct: bool
    heads: int | None


@dataclass(frozen=True, eq=False)
class Site:
    """One layer of a network, as it ran on one input. Tensors are (b, n, d).

    Attributes:
        layer: The call of the layer.
        mixer: The call of the module that mixes tokens: attention, or what is in its place; None if there is no such
            module that takes the tokens (b, n, d).
        norm: The normalisation whose output is the input of the mixer, if there is one.
        norm_input: What that normalisation was applied to.
        norm_in_layer: Whether it was applied to the input of the layer.
        softmax: The softmax self-attention of the layer; None if it has none.
        missing: Returns the error that says why there is none.
        mlp: The MLP of the layer, where it was recognised.
    """

    layer: ModuleCall
    mixer: ModuleCall | None
    norm: torch.nn.Module | None
    norm_input: Tensor | None
    norm_in_layer: bool
    softmax: Attention | None
    missing: Callable[[], MissingMap]
    mlp: Mlp | None

    def require_softmax(self) -> Attention:
        """Return the softmax self-attention; raise InputError if there is none."""
        if self.softmax is None:
            raise self.missing()
        return self.softmax

    @property
    def attention(self) -> ModuleCall:
        """The call of the attention module; InputError if the layer has no softmax self-attention."""
        return self.require_softmax().call

    @property
    def projection(self) -> torch.nn.Module:
        """The output projection of attention; InputError if the layer has no softmax self-attention."""
        return self.require_softmax().projection

    @property
    def output(self) -> Tensor:
        """The value of the attention map; InputError if the layer has no softmax self-attention."""
        return self.require_softmax().output


def build_site(running: RunningCall, output: Tensor, where: str, refuse: Callable[[str], MissingMap]) -> Site:
    """Return the site of a layer that has returned `output`.

    Args:
        running: The call of the layer.
        output: What it returned.
        where: The layer in words, for error messages.
        refuse: Makes the error for a layer without softmax self-attention, of the reason.

    Raises:
        InputError: The layer returns something else when it is called again.
    """
    layer, used = running.as_function(), running.attended
    found: _Found | str
    if used is not None and (direct := _direct_projection(running.completed[used.before :], used)) is not None:
        found = _Found(used, used.around[0].as_function(), direct, direct=True)
    else:
        check_repeats(layer, output, where)
        found = _search(running, layer)
    mixer: ModuleCall | None
    norm: CompletedCall | None = None
    if isinstance(found, str):
        mixing, softmax, reason = _find_mixer(running), None, found
        mixer = None if mixing is None else mixing.running.as_function()
        if mixer is not None:
            norm = next((call for call in running.completed if is_norm(call.module) and is_same(call.y, mixer.x)), None)
    else:
        mixing, mixer, reason = found.projection, found.call, ""
        norm = next((call for call in reversed(found.used.norms) if is_same(call.y, found.call.x)), None)
        softmax = _describe_attention(running, layer, output, found, norm)
    added = layer.x.new_zeros(0) if mixing is None else applied_to(mixing, running.completed)[1]
    return Site(
        layer,
        mixer,
        None if norm is None else norm.module,
        None if norm is None else norm.x,
        norm is not None and is_same(norm.x, layer.x),
        softmax,
        lambda: refuse(reason),
        find_mlp(running, layer.x, added, output),
    )


@dataclass(frozen=True, eq=False)
class _Found:
    """The attention of a layer: its softmax, its module's call, the call of its projection."""

    used: SoftmaxCall
    call: ModuleCall
    projection: CompletedCall
    direct: bool


def _search(running: RunningCall, layer: ModuleCall) -> _Found | str:
    """Return the attention that the zeros of its softmax reveal, or in words why there is none."""
    reason = f"a {type(running.module).__name__} without a softmax"
    for used in [running.attended] if running.attended is not None else running.softmaxes:
        found = find_attention(layer, [call.module for call in used.around])
        if isinstance(found, str):
            reason = f"a {type(running.module).__name__} with {found}"
            continue
        calls = [c for c in running.completed if c.module is found.projection]
        around = next(call for call in used.around if call.module is found.module)
        matrix = calls[found.earlier]
        return _Found(used, around.as_function(), _with_wrapper(running.completed, matrix), direct=False)
    return reason


def _find_mixer(running: RunningCall) -> CompletedCall | None:
    """Return the first call of the layer itself whose output at one token depends on another token."""
    for call in running.completed:
        if call.is_direct and call.x.ndim in (2, 3) and call.x.is_floating_point():
            try:
                function = call.running.as_function()
                if mixes_tokens(function, function.x):
                    return call
            except (InputError, RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                continue  # it needs more than its hidden states, or cannot be called a second time
    return None


def _describe_attention(
    running: RunningCall, layer: ModuleCall, output: Tensor, found: _Found, norm: CompletedCall | None
) -> Attention:
    later = running.completed[found.used.before :]
    after, y = applied_to(found.projection, later)
    post_norm, sum_found = None, False
    if y.numel() == layer.x.numel():  # MobileBERT's attention is narrower, Gemma 3n has several streams
        stream = layer.x + y.view_as(layer.x)
        if any(is_norm(call.module) and is_same(call.y, output) for call in later):  # post-norm: a norm comes last
            post_norm = next((call.module for call in later if is_norm(call.module) and is_close(call.x, stream)), None)
            sum_found = post_norm is not None
        else:
            sum_found = any(is_close(call.x, stream) or is_close(call.copy, output - stream) for call in later)
    norm_in_layer = norm is not None and is_same(norm.x, layer.x)
    return Attention(
        found.call,
        found.projection.module,
        found.projection.earlier,
        found.projection.copy,
        tuple(after),
        post_norm,
        sum_found and (norm_in_layer or is_same(found.call.x, layer.x)),
        _describe_other_sources(found.call),
        attends=found.used.heads is not None,
        direct=found.direct,
        heads=None if found.used.heads is None else found.used.heads.shape[2],
    )


def _direct_projection(later: list[CompletedCall], used: SoftmaxCall) -> CompletedCall | None:
    """Return the call of the matrix that was applied to the heads as they are."""
    heads = used.heads
    matrix = next(
        (call for call in later if heads is not None and is_matrix(call.module) and is_same(call.x, heads)), None
    )
    return None if matrix is None else _with_wrapper(later, matrix)


def _with_wrapper(later: list[CompletedCall], matrix: CompletedCall) -> CompletedCall:
    """Return the call of the wrapper around a matrix (LoRA's, say), or that of the matrix itself.

    A wrapper is also applied to the heads, and returns after the matrix inside it.
    """
    wrappers = (
        call
        for call in reversed(later)
        if call.unary
        and is_same(call.x, matrix.x)
        and not is_same(call.y, matrix.y)
        and any(module is matrix.module for module in call.module.modules())
    )
    return next(wrappers, matrix)


def _describe_other_sources(attention: ModuleCall) -> str:
    if getattr(attention.module, "is_kv_shared_layer", False):
        return "keys and values of a layer below"
    return " and ".join(attention.other_sources())
