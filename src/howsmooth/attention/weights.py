"""Modules whose weights are given as tensors: how they are registered, converted and copied."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor


class GivenWeights(nn.Module):
    """A module whose weights are tensors of the caller, registered so that gradients still reach them.

    - An `nn.Parameter` is registered as it is, so that training its owner trains this module.
    - A leaf tensor that requires gradients is registered as a parameter as it is: a new `nn.Parameter` would be another
      leaf, and the caller's `.grad` would stay empty.
    - A leaf tensor without gradients becomes an `nn.Parameter` that shares its memory and requires no gradients.
    - A tensor with a history, such as a slice of a fused projection, is registered as a buffer. A parameter is a leaf
      by definition: making it one would cut the graph to the weights that it was computed from.

    In all four cases the weight is part of `state_dict()` and follows `.to()`.
    """

    def register_weight(self, name: str, weight: Tensor | None) -> None:
        """Register a weight, or None, under a name."""
        if weight is None or isinstance(weight, nn.Parameter):
            self.register_parameter(name, weight)
        elif not weight.is_leaf or _is_differentiated(weight):
            self.register_buffer(name, weight)
        elif weight.requires_grad:
            self.register_parameter(name, None)
            self._parameters[name] = weight  # type: ignore[assignment]  # optimisers take any leaf tensor
        else:
            self.register_parameter(name, nn.Parameter(weight, requires_grad=False))

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for `copy` and `pickle`, in which weights with a history are parameters of their own.

        PyTorch copies leaf tensors only, and a copy is not computed from anything.
        """
        state = dict(self.__dict__)
        computed = {name: t for name, t in self._buffers.items() if t is not None and not t.is_leaf}
        if computed:
            state["_buffers"] = {name: t for name, t in self._buffers.items() if name not in computed}
            state["_parameters"] = self._parameters | {name: nn.Parameter(t.detach()) for name, t in computed.items()}
        return state


def converted_weight(
    weight: Tensor | None, dtype: torch.dtype | None = None, device: torch.device | str | None = None
) -> Tensor | None:
    """Return a weight in another dtype or on another device, connected to the original where gradients are recorded.

    Where none are, the result is detached: it shares memory with the original where nothing had to be converted, but
    registering it makes a new parameter, and an in-place `.to()` of its module leaves the original as it is.
    """
    if weight is None:
        return None
    if not (weight.requires_grad and torch.is_grad_enabled()) and not _is_differentiated(weight):
        weight = weight.detach()
    return weight.to(dtype=dtype, device=device)


def is_finite(t: Tensor) -> bool:
    """Return whether all entries are finite: by their sum, which is far quicker than to test each, unless it is not."""
    return bool(torch.isfinite(t.detach().sum())) or bool(torch.isfinite(t).all())


def _is_differentiated(t: Tensor) -> bool:
    """Return whether t belongs to a `torch.func` transform or has a forward-mode tangent."""
    return is_functorch_wrapped_tensor(t) or torch.autograd.forward_ad.unpack_dual(t).tangent is not None
