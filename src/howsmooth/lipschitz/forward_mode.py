"""Forward mode without products with zero: J v at the price of two evaluations of a linear layer instead of three.

The rule of PyTorch for a product A B adds the derivative in A to that in B. Where one of them is a weight, which does
not move, it multiplies by a matrix of zeros. Here such a product is differentiated in its moving factor alone. The
numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.autograd.forward_ad as forward
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

# Products, and the arguments in which they are differentiated here.
_FACTORS: dict[Any, tuple[int, ...]] = {
    F.linear: (0, 1),
    torch.addmm: (1,),
    **dict.fromkeys(
        (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, torch.mm, torch.Tensor.mm, torch.bmm), (0, 1)
    ),
}


def jvp(f: Callable[[Tensor], Tensor], x: Tensor, v: Tensor) -> Tensor:
    """Return the derivative of f at x in the direction v.

    Example:
        >>> jvp(lambda x: x @ x, torch.eye(2), torch.ones(2, 2))
        tensor([[2., 2.],
                [2., 2.]])
    """
    with torch.no_grad(), _OneFactorMoves():
        moved: Tensor = torch.func.jvp(f, (x,), (v,))[1]
    return moved


class _OneFactorMoves(TorchFunctionMode):
    """Differentiates a product in one factor, if the other does not move."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Return the product and its derivative, or what PyTorch computes for anything else."""
        moving = _moving_factor(func, args) if not kwargs else None
        if moving is None:
            return func(*args, **(kwargs or {}))
        index, (primal, tangent) = moving
        value = func(*args[:index], primal, *args[index + 1 :])
        if func is F.linear:
            return forward.make_dual(value, func(tangent, args[1]) if index == 0 else func(args[0], tangent))
        if func is torch.addmm:
            return forward.make_dual(value, torch.mm(tangent, args[2]))
        return forward.make_dual(value, func(*args[:index], tangent, *args[index + 1 :]))


def _moving_factor(func: Any, args: tuple[Any, ...]) -> tuple[int, tuple[Tensor, Tensor]] | None:
    """Return the index, the value and the derivative of the one argument of a product that moves, if it is one."""
    if func not in _FACTORS or len(args) < 2:
        return None
    try:
        pairs = [forward.unpack_dual(arg) if isinstance(arg, Tensor) else None for arg in args]
    except RuntimeError:  # inside vmap
        return None
    moving = [(i, (pair.primal, pair.tangent)) for i, pair in enumerate(pairs) if pair and pair.tangent is not None]
    return moving[0] if len(moving) == 1 and moving[0][0] in _FACTORS[func] else None
