"""Attention that does not go through transformers' registry, found by its softmax and checked by running its layer.

A layer has softmax attention if one of its matrices, the output projection, has an input that depends on the tokens and
no longer does so once every softmax in the layer returns zeros: all that enters it has been weighted by a softmax. Its
output at one token has to depend on others: a softmax over experts or channels is none over tokens. The attention
module is then the innermost module around the softmax that, called on its hidden states alone, gives what this matrix
returned. Nothing is assumed about how scores are computed: disentangled positions, windows, gates and norms between
heads and projection are part of the map, which is differentiated as the module computes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from howsmooth.errors import InputError
from howsmooth.models.calls import ModuleCall
from howsmooth.models.hook import edit_heads, is_attending

_SOFTMAX = ("softmax", "scaled_dot_product_attention")
_SKETCH = 4096  # how many entries of the input of a matrix are compared


class _SoftmaxMode(TorchFunctionMode):
    """Calls `edit` with the output of each softmax, and of PyTorch's own attention, and returns what it returns."""

    def __init__(self, edit: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.edit = edit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") in _SOFTMAX and isinstance(output, Tensor) and not is_attending():
            return self.edit(output)
        return output


@contextmanager
def edit_softmax(edit: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Replace the output of each softmax by that of a function inside the context, but not inside `attend`."""
    with _SoftmaxMode(edit):
        yield


@contextmanager
def keep_head(head: int, heads: int) -> Iterator[None]:
    """Multiply the attention weights of all other heads by zero inside the context.

    Raises:
        InputError: A softmax has no axis of this many heads where attention modules have it.
    """

    def edit(weights: Tensor) -> Tensor:
        axis = next((a for a in _HEAD_AXES.get(weights.ndim, ()) if weights.shape[a] == heads), None)
        if axis is None:
            raise InputError(
                f"expected attention weights (b, {heads} heads, n, n), got {tuple(weights.shape)}; "
                "measure the attention"
            )
        kept = (torch.arange(heads, device=weights.device) == head).to(weights)
        return weights * kept.view([-1 if a == axis else 1 for a in range(weights.ndim)])

    with edit_softmax(edit):
        yield


_HEAD_AXES = {3: (0,), 4: (1, 2)}  # by the number of axes of the weights; Longformer has (b, n, heads, window)


@dataclass(frozen=True, eq=False)
class FoundAttention:
    """The attention module of a layer, its output projection, and how often the layer had called that before."""

    module: torch.nn.Module
    projection: torch.nn.Module
    earlier: int


@dataclass
class _Replay:
    """What a run of a layer gave: its output, the inputs of its matrices in order, and the calls of some modules."""

    output: Tensor
    matrices: dict[tuple[torch.nn.Module, int], Tensor]
    calls: dict[torch.nn.Module, ModuleCall | None]


def find_attention(layer: ModuleCall, modules: list[torch.nn.Module]) -> FoundAttention | str:
    """Return the attention of a layer, or in words why it has none.

    Args:
        layer: The call of the layer.
        modules: The modules that were running at a softmax of the layer, inside it, the innermost first.

    Returns:
        The attention, or the reason.
    """
    x = layer.x
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(x.shape, generator=generator).to(x)
    moved = x + 0.5 * x.square().mean().sqrt() * noise
    plain, plain_moved = _replay(layer, x, modules), _replay(layer, moved, modules)
    with edit_softmax(torch.zeros_like), edit_heads(torch.zeros_like):
        zero, zero_moved = _replay(layer, x, modules), _replay(layer, moved, modules)
    projection = next(
        (
            key
            for key, value in plain.matrices.items()
            if _differ(value, plain_moved.matrices.get(key))
            and key in zero.matrices
            and not _differ(zero.matrices[key], zero_moved.matrices.get(key))
        ),
        None,
    )
    if projection is None:
        return "no matrix that is applied to what a softmax has weighted"
    matrix, earlier = projection
    for module in modules:
        call, call_moved = plain.calls.get(module), plain_moved.calls.get(module)
        if call is None or call_moved is None or not call.x.is_floating_point() or call.x.ndim not in (2, 3):
            continue
        if _other_arguments_differ(call, call_moved):
            continue
        if _gives(call, matrix, layer):
            if not mixes_tokens(partial(projected, call, matrix), call.x):
                return "a softmax that weights no tokens"
            return FoundAttention(module, matrix, earlier)
    return "no module that queries, keys and values enter as the same tokens"


def check_repeats(layer: ModuleCall, output: Tensor, where: str) -> None:
    """Raise InputError if a layer returns something else when it is called again with the same arguments."""
    with torch.no_grad():
        again = layer(layer.x)
    if _differ(output, again, 1e4):
        raise InputError(
            f"expected {where} to return the same for the same arguments, got something else at the second call of its "
            f"{type(layer.module).__name__}; it has a state (a cache, say), draws random numbers or changes its input: "
            "measure another layer"
        )


def projected(call: ModuleCall, projection: torch.nn.Module, x: Tensor) -> Tensor:
    """Return what the output projection returns if the attention module is called on x."""
    if not any(module is projection for module in call.module.modules()):
        y: Tensor = projection(call(x))
        return y
    # The attention module may add to the projection's output (ALBERT: residual and norm): read it off by a hook.
    captured: list[Tensor] = []
    handle = projection.register_forward_hook(lambda _module, _args, output: captured.append(output))
    try:
        call(x)
    finally:
        handle.remove()
    return captured[0]


def mixes_tokens(f: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Return whether the output of f at one of several tokens (b, n, d) or (n, d) depends on another."""
    if x.ndim not in (2, 3) or x.shape[-2] < 2:
        return x.ndim in (2, 3)
    half, moved = x.shape[-2] // 2, x.clone()
    # All in one direction, so that an average over many tokens moves as well.
    direction = torch.randn(x.shape[-1], generator=torch.Generator().manual_seed(0)).to(x)
    moved[..., :half, :] += x.square().mean().sqrt() * direction
    with torch.no_grad():
        y, y_moved = f(x), f(moved)
    return y.shape[:-1] != x.shape[:-1] or _differ(y[..., half:, :], y_moved[..., half:, :])


def _gives(call: ModuleCall, projection: torch.nn.Module, layer: ModuleCall) -> bool:
    """Return whether the attention module, called on its own, makes the projection return what it does in the layer."""
    captured: list[Tensor] = []
    handle = projection.register_forward_hook(lambda _module, _args, output: captured.append(output))
    try:
        layer(layer.x)
    finally:
        handle.remove()
    try:
        found = projected(call, projection, call.x)
    except (RuntimeError, IndexError, TypeError):  # the module's output is not what the projection takes
        return False
    return isinstance(found, Tensor) and any(
        found.shape == y.shape and not _differ(found, y) for y in captured if isinstance(y, Tensor)
    )


def _replay(layer: ModuleCall, x: Tensor, modules: list[torch.nn.Module]) -> _Replay:
    """Run a layer at x, and return what its modules were given."""
    matrices: dict[tuple[torch.nn.Module, int], Tensor] = {}
    calls: dict[torch.nn.Module, ModuleCall | None] = {}
    count: Counter[torch.nn.Module] = Counter()

    def keep_input(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
        if args and isinstance(args[0], Tensor) and args[0].is_floating_point():
            matrices[module, count[module]] = _sketch(args[0])
        count[module] += 1

    def keep_call(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module not in calls:
            try:
                calls[module] = ModuleCall(module, args, kwargs)
            except InputError:  # it takes no hidden states
                calls[module] = None

    handles = [m.register_forward_pre_hook(keep_input) for m in layer.module.modules() if is_matrix(m)]
    handles += [m.register_forward_pre_hook(keep_call, with_kwargs=True, prepend=True) for m in modules]
    try:
        with torch.no_grad():
            return _Replay(layer(x), matrices, calls)
    finally:
        for handle in handles:
            handle.remove()


def _sketch(x: Tensor) -> Tensor:
    """Return some entries of a tensor, evenly spread, at an odd distance so that they are of all channels."""
    step = max(1, x.numel() // _SKETCH) | 1
    return x.detach().reshape(-1)[::step].clone()


def _other_arguments_differ(a: ModuleCall, b: ModuleCall) -> bool:
    """Return whether two calls of a module have different arguments besides their hidden states."""
    pairs = zip(pytree.tree_leaves((a.args, a.kwargs)), pytree.tree_leaves((b.args, b.kwargs)), strict=False)
    return any(
        isinstance(left, Tensor) and isinstance(right, Tensor) and left.is_floating_point() and _differ(left, right)
        for left, right in pairs
    )


def _differ(a: Tensor, b: Tensor | None, roundings: float = 100.0) -> bool:
    """Return whether two tensors differ by more than rounding; NaN differs from everything."""
    if b is None or a.shape != b.shape:
        return True
    if a.numel() == 0:
        return False
    infinite = torch.isinf(a) & (a == b)  # of masks
    gap = torch.where(infinite, 0.0, (a - b).abs()).max()
    size = torch.where(torch.isinf(a), 0.0, a.abs()).max()
    # In half precision as well, the same operations on the same numbers agree far better than this.
    return not bool(gap <= min(roundings * torch.finfo(a.dtype).eps, 1e-2) * size)


def is_matrix(module: torch.nn.Module) -> bool:
    """Return whether a module has a weight with two axes."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2
