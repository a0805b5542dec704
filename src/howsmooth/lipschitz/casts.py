"""Casts to a coarser dtype inside a function: seen, and undone.

What is measured is a function in exact arithmetic, with the numbers it is made of (weights, tables, x) as they are
stored. A cast of what is computed on the way is rounding. `torch.autocast`, `softmax(dtype=torch.float32)` and a
normalisation that works in float32 are such casts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

# Tensor methods whose name says which dtype they return.
_NAMED = (Tensor.float, Tensor.half, Tensor.bfloat16)


class CastsSeen(TorchDispatchMode):
    """Inside the block, remembers the coarsest dtype that any operation narrowed a number to.

    Casts by autocast, by hand, and inside modules and autograd functions all arrive here as operations. `unit` is the
    unit of rounding of that dtype, and 0 where nothing was narrowed. Constants that are made in a coarser dtype narrow
    nothing.
    """

    def __init__(self) -> None:
        super().__init__()
        self.unit = 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [_unit(t) for t in tree_leaves(out) if _is_floating(t)]
        if made and max(made) > self.unit:
            given = [_unit(t) for t in tree_leaves((args, kwargs)) if _is_floating(t)]
            if given and min(given) < max(made):
                self.unit = max(made)
        return out


def in_float64_throughout(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """F with every floating number inside it in float64: what it captured is raised, and its casts do nothing.

    Where f writes into a tensor of a coarser dtype that is not its own, this cannot be had, and a call raises.

    >>> w = torch.ones(2, 2)
    >>> in_float64_throughout(lambda x: (x.bfloat16() @ w.bfloat16()).float())(torch.ones(1, 2)).dtype
    torch.float64
    """

    @functools.wraps(f, updated=())
    def raised(x: Tensor) -> Tensor:
        with _InFloat64():
            return f(x)

    return raised


class _InFloat64(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _writes(func, kwargs) and any(_is_coarse(t) for t in tree_leaves((args[:1], kwargs.get("out")))):
            raise NotImplementedError("expected to write into float64 alone, got a tensor of a coarser dtype")
        if func in _NAMED:
            return args[0].double()
        args, kwargs = tree_map(_raised, (args, kwargs))
        return tree_map(_raised, func(*args, **kwargs))


def _raised(leaf: Any) -> Any:
    if isinstance(leaf, torch.dtype):
        return torch.float64 if leaf.is_floating_point else leaf
    return leaf.double() if _is_coarse(leaf) else leaf


def _writes(func: Callable, kwargs: dict) -> bool:
    """Whether a function of torch changes its first argument, or one called out."""
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    augmented = name.startswith("__i") and hasattr(Tensor, "__" + name[3:])  # __iadd__, not __int__
    return in_place or augmented or name in ("__setitem__", "__set__") or kwargs.get("out") is not None


def _is_floating(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.dtype.is_floating_point


def _is_coarse(leaf: Any) -> bool:
    return _is_floating(leaf) and leaf.dtype != torch.float64


def _unit(t: Tensor) -> float:
    return torch.finfo(t.dtype).eps
