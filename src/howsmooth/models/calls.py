"""Calls of modules in a forward pass: as functions of their hidden states, and the flow of data between them.

Tensors are identified by their address: all are kept alive while a layer runs, so that no address is used twice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsmooth.errors import InputError


class ModuleCall(torch.nn.Module):
    """A captured call as a function of its hidden states: x (b, n, d) ↦ module(x, …), all other arguments fixed.

    If the module was given the hidden states more than once (as queries, keys and values), all of these arguments are
    replaced.

    Attributes:
        module: The module that was called.
        x: Its hidden states in the captured call.
    """

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Capture module(*args, **kwargs)."""
        super().__init__()
        self.module = module
        self.x = hidden_states(module, args, kwargs)
        self.positional = tuple(i for i, arg in enumerate(args) if arg is self.x)
        self.keywords = tuple(key for key, value in kwargs.items() if value is self.x)
        self.args = tuple(None if i in self.positional else arg for i, arg in enumerate(args))
        self.kwargs = {key: value for key, value in kwargs.items() if key not in self.keywords}

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's output, the first of several."""
        args = (x if i in self.positional else arg for i, arg in enumerate(self.args))
        return first_tensor(self.module(*args, **self.kwargs, **dict.fromkeys(self.keywords, x)), self.module)

    def batch(self, x: Tensor) -> Tensor:
        """Return tokens (n, d) as the module takes them: (1, n, d), windows of tokens (Swin), or (n, d) (Qwen-VL)."""
        return x if self.x.ndim == 2 else x.reshape(len(self.x), -1, x.shape[-1])

    def other_sources(self) -> list[str]:
        """Return the names of arguments that are keys or values of other tokens than x."""
        try:
            given = inspect.signature(self.module.forward).bind_partial(*self.args, **self.kwargs).arguments
        except TypeError:  # a forward without a signature of its own
            given = self.kwargs
        return [
            name
            for name, value in given.items()
            if name.startswith(("key_", "value_")) and isinstance(value, Tensor) and value.is_floating_point()
        ]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ModuleCall:
        """Convert the captured tensors together with the weights; a mask keeps its attributes (`MaskPattern`)."""

        def convert(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            converted = fn(leaf)
            converted.__dict__.update(leaf.__dict__)
            return converted

        self.args, self.kwargs = pytree.tree_map(convert, (self.args, self.kwargs))
        self.x = fn(self.x)
        return super()._apply(fn, recurse)


def hidden_states(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the hidden states among the arguments of a call: the first positional one, or `hidden_states`."""
    x = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(x, Tensor):
        raise InputError(
            f"expected {type(module).__name__} to take hidden states first, got {type(x).__name__}; this family "
            "needs an adapter"
        )
    return x


def first_tensor(output: object, module: torch.nn.Module) -> Tensor:
    """Return the output of a module if it is a tensor, or else the first tensor in it."""
    y = first_or_none(output)
    if y is None:
        raise InputError(
            f"expected {type(module).__name__} to return a tensor first, got something else; this family "
            "needs an adapter"
        )
    return y


def first_or_none(output: object) -> Tensor | None:
    """Return the output of a module if it is a tensor, or else the first tensor in it, or None."""
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else getattr(output, "last_hidden_state", None)


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


def applied_to(call: CompletedCall, later: list[CompletedCall]) -> tuple[list[torch.nn.Module], Tensor]:
    """Return the modules that are applied to the output of a call alone, one after the other, and the last output.

    `call` itself may be among the later calls.
    """
    y, copied, modules = call.y, call.copy, list[torch.nn.Module]()
    for following in later:
        is_applied = following.unary and is_same(following.x, y) and following.y.shape == y.shape
        if is_applied and not is_same(following.y, y):
            modules.append(following.module)
            y, copied = following.y, following.copy
    return modules, copied


def is_norm(module: torch.nn.Module) -> bool:
    """Return whether a module is a normalisation, by the name of its class."""
    return "norm" in type(module).__name__.lower()


def is_same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same memory, up to their shape."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and a.dtype == b.dtype


def is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors agree up to rounding and up to their shape."""
    if a.numel() != b.numel() or not a.is_floating_point():
        return False
    gap = (a.reshape(-1) - b.reshape(-1)).abs().max()
    return bool(gap <= 50 * torch.finfo(b.dtype).eps * (1 + b.abs().max()))


def is_cross_attention(call: RunningCall) -> bool:
    """Return whether a call is one of cross attention."""
    others = (call.kwargs.get(name) for name in ("key_value_states", "encoder_hidden_states"))
    cross = getattr(call.module, "is_cross_attention", False) or "Cross" in type(call.module).__name__
    return bool(cross) or any(other is not None for other in others)
