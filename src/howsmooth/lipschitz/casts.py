"""Casts to a coarser dtype inside a function: how to detect them, and how to evaluate the function without them.

The map that is measured is the function in exact arithmetic, with its weights, tables and input x as they are stored.
Casts of intermediate results count as rounding errors. Examples are `torch.autocast`, `softmax(dtype=torch.float32)`
and a normalisation that computes in float32.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from howsmooth.quantised import is_quantised_operation, quantised_error

# Tensor methods that cast to the dtype in their name.
_CAST_METHODS = (Tensor.float, Tensor.half, Tensor.bfloat16)

# Functions that round numbers of Python to the default dtype. Those that draw numbers would draw others in float64.
_MADE_OF_NUMBERS = (
    *(torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor),
    *(torch.full, torch.arange, torch.linspace, torch.logspace),
)


class CastDetector(TorchDispatchMode):
    """A context manager that records the coarsest dtype to which an operation casts its input.

    Casts by autocast, explicit ones, and those inside modules and autograd functions are all recorded. Constants that
    are created in a coarser dtype are not casts.

    Attributes:
        unit: Machine epsilon of the coarsest dtype; 0 if nothing was cast to a coarser dtype.

    Raises:
        InputError: An operation computes with quantised numbers.
    """

    def __init__(self) -> None:
        """Start with no casts recorded."""
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.unit = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and compare the dtypes of its inputs and outputs."""
        if is_quantised_operation(func.name()):
            raise quantised_error(func.name())
        out = func(*args, **(kwargs or {}))
        output_units = [_unit(t) for t in tree_leaves(out) if _is_floating(t)]
        if output_units and max(output_units) > self.unit:
            input_units = [_unit(t) for t in tree_leaves((args, kwargs)) if _is_floating(t)]
            if input_units and min(input_units) < max(output_units):
                self.unit = max(output_units)
        return out


def evaluated_in_float64(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return f with all of its arithmetic in float64: captured tensors are converted, and casts have no effect.

    A call raises NotImplementedError if f writes into a captured tensor of a coarser dtype.

    Example:
        >>> w = torch.ones(2, 2)
        >>> evaluated_in_float64(lambda x: (x.bfloat16() @ w.bfloat16()).float())(torch.ones(1, 2)).dtype
        torch.float64
    """

    @functools.wraps(f, updated=())
    def f_float64(x: Tensor) -> Tensor:
        with _Float64Mode():
            return f(x)

    return f_float64


def warn_of_refusal(error: Exception, instead: str) -> None:
    """Warn that a map does not run in float64, naming its error.

    Args:
        error: What the map raised in float64. Maps refuse a dtype by a RuntimeError or a NotImplementedError as PyTorch
            does, by a check of their own, or by a lookup that has no such key.
        instead: What is done without float64.

    Raises:
        Exception: The error itself if it is none of these.
    """
    if not isinstance(error, RuntimeError | TypeError | ValueError | KeyError | AssertionError):
        error.add_note("It was raised when the map was evaluated in float64 instead of its own dtype.")
        raise error
    line = next(iter(str(error).splitlines()), "")
    named = type(error).__name__ + (f": {line}" if line else "")
    warnings.warn(f"the map does not run in float64 ({named}); {instead}", stacklevel=3)


class _Float64Mode(TorchFunctionMode):
    """Convert all floating inputs and outputs of torch functions, and all dtype arguments, to float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _writes(func, kwargs) and any(_is_coarse(t) for t in tree_leaves((args[:1], kwargs.get("out")))):
            raise NotImplementedError("expected to write into float64 alone, got a tensor of a coarser dtype")
        if func in _CAST_METHODS:
            return args[0].double()
        args, kwargs = tree_map(_to_float64, (args, kwargs))
        out = func(*args, **kwargs)
        if func in _MADE_OF_NUMBERS and _is_coarse(out):
            out = func(*args, **{**kwargs, "dtype": torch.float64})
        return tree_map(_to_float64, out)


def _to_float64(leaf: Any) -> Any:
    """Convert a floating tensor, or replace a floating dtype; return anything else unchanged."""
    if isinstance(leaf, torch.dtype):
        return torch.float64 if leaf.is_floating_point else leaf
    return leaf.double() if _is_coarse(leaf) else leaf


def _writes(func: Callable[..., Any], kwargs: dict[str, Any]) -> bool:
    """Return whether a torch function modifies its first argument or writes into `out`."""
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
