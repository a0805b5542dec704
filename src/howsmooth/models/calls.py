"""One call of a module in a real forward pass, kept with all of its arguments as a function of its hidden states."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from howsmooth.errors import InputError


class Call(torch.nn.Module):
    """x (b, n, d) ↦ module(x, …) with masks, positions and all else as they were; `x` is what came in then."""

    def __init__(self, module: torch.nn.Module, args: tuple, kwargs: dict):
        super().__init__()
        self.module = module
        self.x = hidden_states(module, args, kwargs)
        self.positional = bool(args)
        self.args = args[1:]
        self.kwargs = kwargs if args else {key: value for key, value in kwargs.items() if key != "hidden_states"}

    def forward(self, x: Tensor) -> Tensor:
        """The module's output, the first of several."""
        if self.positional:
            return first(self.module(x, *self.args, **self.kwargs))
        return first(self.module(hidden_states=x, *self.args, **self.kwargs))

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
