"""One call of a module in a real forward pass, kept with all of its arguments as a function of its hidden states."""

from __future__ import annotations

import inspect

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsmooth.errors import InputError


class Call(torch.nn.Module):
    """x (b, n, d) ↦ module(x, …) with masks, positions and all else as they were; `x` is what came in then.

    Where the module was given x more than once (as queries, keys and values), it is given the new one as often.
    """

    def __init__(self, module: torch.nn.Module, args: tuple, kwargs: dict):
        super().__init__()
        self.module = module
        self.x = hidden_states(module, args, kwargs)
        self.again = tuple(i for i, arg in enumerate(args) if arg is self.x)
        self.named = tuple(key for key, value in kwargs.items() if value is self.x)
        self.args = tuple(None if i in self.again else arg for i, arg in enumerate(args))
        self.kwargs = {key: value for key, value in kwargs.items() if key not in self.named}

    def forward(self, x: Tensor) -> Tensor:
        """The module's output, the first of several."""
        args = (x if i in self.again else arg for i, arg in enumerate(self.args))
        y = first(self.module(*args, **self.kwargs, **dict.fromkeys(self.named, x)))
        if y is None:
            raise InputError(f"expected {type(self.module).__name__} to return a tensor first, got something else; "
                             "this family needs an adapter")
        return y

    def other_tokens(self) -> list[str]:
        """Names of arguments that are keys or values of other tokens than x."""
        try:
            given = inspect.signature(self.module.forward).bind_partial(*self.args, **self.kwargs).arguments
        except TypeError:  # a forward without a signature of its own
            given = self.kwargs
        return [name for name, value in given.items()
                if name.startswith(("key_", "value_")) and isinstance(value, Tensor) and value.is_floating_point()]

    def _apply(self, fn, *more, **others):
        """Move what was captured along with the weights; a mask keeps its plan."""
        def move(leaf):
            if not isinstance(leaf, Tensor):
                return leaf
            moved = fn(leaf)
            moved.__dict__.update(leaf.__dict__)
            return moved

        self.args, self.kwargs = pytree.tree_map(move, (self.args, self.kwargs))
        self.x = fn(self.x)
        return super()._apply(fn, *more, **others)


def hidden_states(module: torch.nn.Module, args: tuple, kwargs: dict) -> Tensor:
    x = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(x, Tensor):
        raise InputError(
            f"expected {type(module).__name__} to take hidden states first, got {type(x).__name__}; this family "
            "needs an adapter"
        )
    return x


def first(output) -> Tensor | None:
    """The tensor that a module returns, or the first of several."""
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else getattr(output, "last_hidden_state", None)
