"""The parts of a layer that ran: its attention, its norms, its residual connection, and what else mixes its tokens.

They follow from the data flow of one forward pass:

    attention       the module that called the attention function or, without one, that `find_attention` finds
    projection      the first matrix applied to the heads' output, with any wrapper around it (LoRA)
    normalisation   the module with "norm" in its class name whose output is the input of attention
    after           modules that are applied to the projection's output alone, before it is added to the residual
                    stream (Gemma's second norm, DINOv2's layer scale)
    post_norm       the norm of a post-norm layer, applied to the sum of the stream and attention

Tensors are identified by their address: all of them are kept alive while a layer runs, so that no address is used twice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.calls import ModuleCall
from howsmooth.models.tracing import check_repeats, find_attention, is_matrix, mixes_tokens


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
    """

    layer: ModuleCall
    mixer: ModuleCall | None
    norm: torch.nn.Module | None
    norm_input: Tensor | None
    norm_in_layer: bool
    softmax: Attention | None
    missing: Callable[[], InputError]

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


@dataclass(eq=False)
class CompletedCall:
    """A call that has returned. `copy` is the output as it was returned: later code may modify it in place.

    `earlier` is how many calls of the module had returned before.
    """

    module: torch.nn.Module
    earlier: int
    x: Tensor
    y: Tensor
    copy: Tensor
    running: RunningCall
    is_direct: bool  # called by the layer itself

    @property
    def unary(self) -> bool:
        """Whether the module was called with one argument."""
        return len(self.running.args) + len(self.running.kwargs) == 1


@dataclass(eq=False)
class SoftmaxCall:
    """A softmax, or a call of the attention function, in a running layer.

    Attributes:
        around: The calls that were running inside the layer, the innermost first.
        before: How many calls had completed in the layer.
        norms: The last norms that had completed in the network.
        heads: What the attention function returned; None for a softmax in a module's own code.
    """

    around: list[RunningCall]
    before: int
    norms: list[CompletedCall]
    heads: Tensor | None


@dataclass(eq=False)
class RunningCall:
    """A call that has not returned yet, with the calls that completed inside it if it is a layer.

    Attributes:
        module: The module.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        is_layer: Whether it is a layer.
        listed: Its number by its place in the list of layers.
        completed: The calls that have completed in the layer.
        attended: Its first call of the attention function for self-attention.
        softmaxes: The softmax calls of modules with code of their own.
        has_layer: Whether a layer in it has been recorded.
    """

    module: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    is_layer: bool
    listed: int | None
    completed: list[CompletedCall] = field(default_factory=list)
    attended: SoftmaxCall | None = None
    softmaxes: list[SoftmaxCall] = field(default_factory=list)
    has_layer: bool = False

    def as_function(self) -> ModuleCall:
        """Return the call as a function of its hidden states."""
        return ModuleCall(self.module, self.args, self.kwargs)


def build_site(running: RunningCall, output: Tensor, where: str, refuse: Callable[[str], InputError]) -> Site:
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
    if isinstance(found, str):
        mixer, norm = _find_mixer(running), None
        if mixer is not None:
            norm = next((call for call in running.completed if is_norm(call.module) and _is_same(call.y, mixer.x)), None)
        softmax, reason = None, found
    else:
        mixer, reason = found.call, ""
        norm = next((call for call in reversed(found.used.norms) if _is_same(call.y, mixer.x)), None)
        softmax = _describe_attention(running, layer, output, found, norm)
    in_layer = norm is not None and _is_same(norm.x, layer.x)
    return Site(
        layer,
        mixer,
        None if norm is None else norm.module,
        None if norm is None else norm.x,
        in_layer,
        softmax,
        lambda: refuse(reason),
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


def _find_mixer(running: RunningCall) -> ModuleCall | None:
    """Return the first call of the layer itself whose output at one token depends on another token."""
    for call in running.completed:
        if call.is_direct and call.x.ndim == 3 and call.x.is_floating_point():
            try:
                function = call.running.as_function()
                if mixes_tokens(function):
                    return function
            except (InputError, RuntimeError, TypeError, ValueError, IndexError, AttributeError):
                continue  # it needs more than its hidden states, or cannot be called a second time
    return None


def _describe_attention(
    running: RunningCall, layer: ModuleCall, output: Tensor, found: _Found, norm: CompletedCall | None
) -> Attention:
    later = running.completed[found.used.before :]
    y, after = found.projection.y, []
    for call in later:
        if call.unary and _is_same(call.x, y) and call.y.shape == y.shape and not _is_same(call.y, y):
            after.append(call.module)
            y = call.copy
    post_norm, sum_found = None, False
    if y.numel() == layer.x.numel():  # MobileBERT's attention is narrower, Gemma 3n has several streams
        stream = layer.x + y.view_as(layer.x)
        if any(is_norm(call.module) and _is_same(call.y, output) for call in later):  # post-norm: a norm comes last
            post_norm = next(
                (call.module for call in later if is_norm(call.module) and _is_close(call.x, stream)), None
            )
            sum_found = post_norm is not None
        else:
            sum_found = any(_is_close(call.x, stream) or _is_close(call.copy, output - stream) for call in later)
    norm_in_layer = norm is not None and _is_same(norm.x, layer.x)
    return Attention(
        found.call,
        found.projection.module,
        found.projection.earlier,
        found.projection.copy,
        tuple(after),
        post_norm,
        sum_found and (norm_in_layer or _is_same(found.call.x, layer.x)),
        _describe_other_sources(found.call),
        attends=found.used.heads is not None,
        direct=found.direct,
    )


def _direct_projection(later: list[CompletedCall], used: SoftmaxCall) -> CompletedCall | None:
    """Return the call of the matrix that was applied to the heads as they are."""
    heads = used.heads
    matrix = next(
        (call for call in later if heads is not None and is_matrix(call.module) and _is_same(call.x, heads)), None
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
        and _is_same(call.x, matrix.x)
        and not _is_same(call.y, matrix.y)
        and any(module is matrix.module for module in call.module.modules())
    )
    return next(wrappers, matrix)


def _describe_other_sources(attention: ModuleCall) -> str:
    if getattr(attention.module, "is_kv_shared_layer", False):
        return "keys and values of a layer below"
    return " and ".join(attention.other_sources())


def is_cross_attention(call: RunningCall) -> bool:
    """Return whether a call is one of cross attention."""
    others = (call.kwargs.get(name) for name in ("key_value_states", "encoder_hidden_states"))
    cross = getattr(call.module, "is_cross_attention", False) or "Cross" in type(call.module).__name__
    return bool(cross) or any(other is not None for other in others)


def is_norm(module: torch.nn.Module) -> bool:
    """Return whether a module is a normalisation, by the name of its class."""
    return "norm" in type(module).__name__.lower()


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same memory, up to their shape."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and a.dtype == b.dtype


def _is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors agree up to rounding and up to their shape."""
    if a.numel() != b.numel() or not a.is_floating_point():
        return False
    gap = (a.reshape(-1) - b.reshape(-1)).abs().max()
    return bool(gap <= 50 * torch.finfo(b.dtype).eps * (1 + b.abs().max()))
