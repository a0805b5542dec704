"""The call of a module, kept with all its arguments, as a function of its hidden states."""

from __future__ import annotations

import inspect
from collections.abc import Callable
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
        """Return tokens (n, d) as the batch that the module takes: (1, n, d), or windows of tokens (Swin)."""
        return x.reshape(len(self.x), -1, x.shape[-1])

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
