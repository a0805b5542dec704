"""A model's own eager code as reference: a part of a network as a function, and its dense Jacobian."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor


@contextmanager
def lifted() -> Iterator[None]:
    """Turn casts to float32 inside models (softmax, RMSNorm, rotary tables) into casts to float64, within the block."""

    def wide(dtype):
        return torch.float64 if dtype == torch.float32 else dtype

    to, kind, softmax = torch.Tensor.to, torch.Tensor.type, torch.nn.functional.softmax

    def lifted_to(self, *args, **kwargs):
        return to(self, *map(wide, args), **{key: wide(value) for key, value in kwargs.items()})

    @functools.wraps(softmax)  # a mode of PyTorch recognises it by its name
    def lifted_softmax(x, dim=None, dtype=None, **_):
        return softmax(x, dim=dim, dtype=wide(dtype))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        patch.setattr(torch.Tensor, "to", lifted_to)
        patch.setattr(torch.Tensor, "type", lambda self, *args, **kwargs: kind(self, *map(wide, args), **kwargs))
        patch.setattr(torch.nn.functional, "softmax", lifted_softmax)
        yield


class _Reached(Exception):
    pass


def eager(network):
    """Return a copy with the eager attention of transformers, and experts evaluated one by one."""
    duplicate = copy.deepcopy(network)
    duplicate.set_attn_implementation("eager")  # families without the registry have only that
    duplicate.set_experts_implementation("eager")
    duplicate.config.use_cache = False
    return duplicate


def stretch(network, inputs: dict, entry: tuple[str, int], exit: tuple[str, str, int]) -> tuple[Callable, Tensor]:
    """Return the function from the input of one module to the input or output of another, and the input tokens (n, d).

    entry: (path, index of the call); exit: ("input" or "output", path, index of the call).
    """
    start, (side, end_path, end_call) = network.get_submodule(entry[0]), exit
    end = network.get_submodule(end_path)

    def run(x: Tensor | None) -> tuple[Tensor, Tensor]:
        seen, calls = {}, {"start": 0, "end": 0}

        def begin(_module, args, kwargs):
            calls["start"] += 1
            if calls["start"] != entry[1] + 1:
                return None
            seen["x"] = args[0] if args else kwargs["hidden_states"]
            new = seen["x"] if x is None else x.view_as(seen["x"])  # windows (Swin) are a batch
            return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": new})

        def finish(_module, args, kwargs, *output):
            calls["end"] += 1
            if calls["end"] != end_call + 1:
                return
            value = output[0] if side == "output" else args[0] if args else kwargs["hidden_states"]
            while not isinstance(value, Tensor):
                value = value[0]
            seen["y"] = value
            raise _Reached

        register = end.register_forward_hook if side == "output" else end.register_forward_pre_hook
        handles = [
            start.register_forward_pre_hook(begin, with_kwargs=True, prepend=True),
            register(finish, with_kwargs=True),
        ]
        try:
            network(**inputs)
        except _Reached:
            pass
        finally:
            for handle in handles:
                handle.remove()
        tokens, y = seen["x"].flatten(0, -2), seen["y"]
        return tokens, y.flatten(0, 1) if y.ndim == 3 else y.reshape(len(tokens), -1)

    with torch.no_grad():
        x, _ = run(None)
    return (lambda x: run(x)[1]), x.detach()


def dense(f: Callable, x: Tensor) -> Tensor:
    """Return the Jacobian of f at x (n, d), row by row, by backward."""
    return torch.autograd.functional.jacobian(f, x).reshape(-1, x.numel())
