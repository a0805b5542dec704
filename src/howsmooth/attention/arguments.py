"""What `attend` accepts as an argument: tensors that contain their values, whole numbers, causal biases of PyTorch."""

from __future__ import annotations

import math
import operator
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from howsmooth.errors import InputError

if TYPE_CHECKING:
    from torch.nn.attention.bias import CausalBias

# How to get a plain tensor from the subclasses of PyTorch that compute by rules of their own.
_PLAIN_BY = {
    "AsyncCollectiveTensor": "wait for it by .wait()",
    "CausalBias": "use causal=True",
    "DTensor": "pass the part of this process, .to_local()",
    "MaskedTensor": "pass .get_data(), and its mask as score_bias= or padding=",
}


def check_tensor(name: str, t: object) -> None:
    """Refuse an argument that is not a dense tensor whose memory contains its values.

    Subclasses that only add attributes or methods are accepted, and so are parameters. One that overrides how
    operations on it are computed may have no values of its own: read as a table, it would be uninitialised memory.

    Args:
        name: Name of the argument.
        t: The argument.

    Raises:
        InputError: If it is no tensor, nested, sparse, or of a subclass with rules of its own.
    """
    if not isinstance(t, Tensor):
        raise InputError(
            f"attend: expected {name} as a torch.Tensor, got {type(t).__name__}; convert it by torch.as_tensor"
        )
    if t.is_nested:
        raise InputError(
            f"attend: expected {name} of one length for all sequences, got a nested tensor; pad it by "
            "torch.nested.to_padded_tensor and pass padding=, or pack it and pass mask=SparseMask.documents(…)"
        )
    if t.layout != torch.strided:
        raise InputError(f"attend: expected a dense {name}, got the layout {t.layout}; use .to_dense()")
    kind = type(t)
    if kind is Tensor or kind is torch.nn.Parameter or _contains_its_values(kind):
        return
    remedy = _PLAIN_BY.get(kind.__name__, "pass the plain tensor that it stands for")
    raise InputError(
        f"attend: expected {name} as a plain torch.Tensor, got a {kind.__name__}, which computes by rules of its own; "
        f"{remedy}"
    )


def _contains_its_values(kind: type[Tensor]) -> bool:
    """Return whether tensors of a class are read as tensors are, or belong to the recording of a graph."""
    if issubclass(kind, FakeTensor | FunctionalTensor):
        return True
    function: Any = kind.__torch_function__
    is_default = getattr(function, "__func__", function) in (
        Tensor.__torch_function__.__func__,  # type: ignore[attr-defined]  # a bound class method
        torch._C._disabled_torch_function_impl,
    )
    return is_default and kind.__torch_dispatch__ is Tensor.__torch_dispatch__


def check_whole(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number, or refuse the argument.

    Args:
        name: Name of the argument.
        value: The argument: an int, a whole number of numpy, or a symbolic size.
        least: The smallest number that is accepted.

    Returns:
        The number.

    Raises:
        InputError: If it is no whole number, too small, or too large for a tensor.

    Example:
        >>> check_whole("window", 3)
        3
    """
    number: Any = None
    if isinstance(value, int | torch.SymInt) and not isinstance(value, bool):
        number = value
    elif not isinstance(value, bool | Tensor):
        try:
            number = operator.index(value)
        except TypeError:
            number = None
    is_long = isinstance(number, int) and not -(2**63) <= number < 2**63
    if number is None or is_long or (least is not None and number < least):
        bound, kind = "" if least is None else f" ≥ {least}", "whole number" + " below 2⁶³" * is_long
        raise InputError(f"attend: expected {name}{bound}, a {kind}, got {value!r}")
    return int(number) if isinstance(number, int) else number


def check_number(name: str, value: Any, positive: bool = False) -> float:
    """Return a finite number, or refuse the argument.

    Args:
        name: Name of the argument.
        value: The argument: a float, a number of numpy, a tensor of one entry without a gradient, or a symbolic number.
        positive: Whether it has to be positive.

    Returns:
        The number.

    Raises:
        InputError: If it is no number, not finite, not positive where it has to be, or has a gradient.

    Example:
        >>> check_number("scale", 2)
        2.0
    """
    if isinstance(value, Tensor) and value.requires_grad:
        raise InputError(
            f"attend: expected a constant {name}, got a tensor that requires a gradient, which would be lost; multiply "
            "q by it, or detach it"
        )
    try:
        number = None if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, RuntimeError):
        number = None
    if number is None or not math.isfinite(number) or (positive and not number > 0):
        kind = f"{name} > 0, a finite number" if positive else f"a finite {name}"
        raise InputError(f"attend: expected {kind}, got {value!r}")
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return a truth value, or refuse the argument.

    Args:
        name: Name of the argument.
        value: The argument: True or False, of Python or numpy.

    Returns:
        The value.

    Raises:
        InputError: If it is something else.

    Example:
        >>> check_flag("causal", True)
        True
    """
    if not isinstance(value, bool | torch.SymBool) and type(value).__name__ not in ("bool_", "bool"):
        raise InputError(f"attend: expected {name} as True or False, got {value!r}")
    return bool(value)


def is_causal_bias(t: object) -> TypeGuard[CausalBias]:
    """Return whether an argument is a `CausalBias` of PyTorch, whose module takes a second to import."""
    kind = type(t)
    return kind is not Tensor and kind.__name__ == "CausalBias" and kind.__module__ == "torch.nn.attention.bias"


def offset_of(bias: CausalBias, n: int, m: int) -> int:
    """Return the position of query 0 among the keys for which a causal mask hides the pairs that a bias hides.

    Args:
        bias: `causal_upper_left` or `causal_lower_right` of `torch.nn.attention.bias`. It has no values, only sizes.
        n: Number of queries.
        m: Number of keys.

    Returns:
        0, or m − n.

    Raises:
        InputError: If it was made for other sizes.
    """
    if (bias.seq_len_q, bias.seq_len_kv) != (n, m):
        raise InputError(
            f"attend: expected a CausalBias of {n} queries and {m} keys, got one of {bias.seq_len_q} and "
            f"{bias.seq_len_kv}"
        )
    return 0 if bias.variant.name == "UPPER_LEFT" else m - n


def shape_of(t: Tensor) -> torch.Size:
    """Return the shape as numbers, while `torch.jit.trace` records it as tensors, too."""
    if torch.compiler.is_compiling() or not torch.jit.is_tracing():
        return t.shape
    state = torch._C._get_tracing_state()
    torch._C._set_tracing_state(None)  # type: ignore[attr-defined]  # torch leaves it out of its stubs
    try:
        return t.shape
    finally:
        torch._C._set_tracing_state(state)  # type: ignore[attr-defined]
