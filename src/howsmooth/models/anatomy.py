"""Where a network's attention sits, read off one real forward pass instead of a list of architectures.

The attention op announces itself (`hook.watched_by`), so the stack of running modules at that moment names the
attention module and the layer around it. The rest follows from which tensor goes where:

    normalisation   the module with a norm's name whose output is the tensor that enters attention
    projection      the first matrix that the heads' output is given to, with what is wrapped around it (LoRA)
    after           modules that only the projection's output passes through, before it joins the residual stream
                    (Gemma's second norm, DINOv2's layer scale)
    closing         the norm of a post-norm layer, which takes the sum of the stream and attention

A module's call is kept with all of its arguments (`Call`), as a function of its hidden states. Tensors are kept while a
layer runs, so one address means one tensor.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers.modeling_layers import GradientCheckpointingLayer

from howsmooth.errors import InputError
from howsmooth.models.hook import watched_by


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
        return first(self.module(*args, **self.kwargs, **dict.fromkeys(self.named, x)), self.module)

    def other_tokens(self) -> list[str]:
        """Names of arguments that are keys or values of other tokens than x."""
        try:
            given = inspect.signature(self.module.forward).bind_partial(*self.args, **self.kwargs).arguments
        except TypeError:  # a forward without a signature of its own
            given = self.kwargs
        return [
            name
            for name, value in given.items()
            if name.startswith(("key_", "value_")) and isinstance(value, Tensor) and value.is_floating_point()
        ]

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


def first(output: object, module: torch.nn.Module) -> Tensor:
    """The tensor that a module has returned, or the first of several."""
    y = _first_or_none(output)
    if y is None:
        raise InputError(
            f"expected {type(module).__name__} to return a tensor first, got something else; this family "
            "needs an adapter"
        )
    return y


def _first_or_none(output) -> Tensor | None:
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else getattr(output, "last_hidden_state", None)


@dataclass(frozen=True, eq=False)
class Site:
    """One layer of a network as it ran on one input. Tensors are (b, n, d)."""

    layer: Call
    attention: Call
    projection: torch.nn.Module
    attended: Tensor  # what the projection returned: the value of the attention map at `attention.x`
    norm: torch.nn.Module | None
    before_norm: Tensor | None
    norm_in_layer: bool  # whether what enters the layer is what enters the norm
    after: tuple[torch.nn.Module, ...]
    closing: torch.nn.Module | None
    residual: bool  # whether the stream plus attention was found again in what the layer computed
    elsewhere: str  # what attention takes from other tokens than `attention.x`, in words; "" for nothing


class ForwardFailed(InputError):
    """The network's own code raised something during the forward pass."""


class _Done(Exception):
    """All that was asked for has been seen: the rest of the forward pass is not needed."""


@dataclass(eq=False)
class _Event:
    """A module that has returned: what went in, what came out, and a copy, since the next line may add to it."""

    module: torch.nn.Module
    x: Tensor
    y: Tensor
    copy: Tensor
    unary: bool


class _Frame:
    """A module that is running."""

    def __init__(self, module: torch.nn.Module, args: tuple, kwargs: dict, is_layer: bool):
        self.module, self.args, self.kwargs, self.is_layer = module, args, kwargs, is_layer
        self.events: list[_Event] = []
        self.attention: _Frame | None = None
        self.heads: Tensor | None = None
        self.since = 0
        self.norm: _Event | None = None


def sites(network, inputs: dict, layers: Iterable[int], scope: str = "", total: int | None = None) -> dict[int, Site]:
    """Run the network (a `fast_twin`) on keyword inputs and return the sites of these layers.

    `scope` is the name of the submodule whose layers count, where there are several stacks of them. Layers are numbered
    as in the list of `total` modules that holds them, so that layers without attention count, too; without such a list
    (ALBERT runs one module again and again) as they come by.
    """
    watch = _Watch(network, set(layers), scope, total)
    handles = [
        handle
        for module in network.modules()
        for handle in (
            module.register_forward_pre_hook(watch.enter, with_kwargs=True),
            module.register_forward_hook(watch.leave, with_kwargs=True),
        )
    ]
    try:
        with torch.no_grad(), watched_by(watch.attended):
            network(**inputs)
    except _Done:
        pass
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a family's code may raise anything where it asks for another attention
        raise ForwardFailed(
            f"expected {type(network).__name__} to run with howsmooth's attention, got {type(error).__name__} in "
            f"{watch.place()} ({(str(error) or 'no message').splitlines()[0]}); choose another family "
            "(howsmooth models), or build howsmooth.SelfAttention from its weights"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if missing := sorted(watch.wanted - watch.found.keys()):
        raise InputError(
            f"expected softmax self-attention in layer {missing[0]} of {type(network).__name__}, got "
            f"{_listed(watch.seen)} that ask transformers' attention registry; choose among them or, if there are "
            "none, another family"
        )
    return watch.found


class _Watch:
    def __init__(self, network, wanted: set[int], scope: str, total: int | None):
        self.wanted, self.count = wanted, 0
        self.found: dict[int, Site] = {}
        self.seen: list[int] = []
        self.stack: list[_Frame] = []
        self.norms: deque[_Event] = deque(maxlen=8)
        within = network.get_submodule(scope) if scope else network
        self.scope = {id(module) for module in within.modules()}
        # The layer is what transformers may checkpoint; older families have no such mark, only a list of layers.
        marked = {id(m) for m in within.modules() if isinstance(m, GradientCheckpointingLayer)}
        listed = {id(child) for m in within.modules() if isinstance(m, torch.nn.ModuleList) for child in m}
        self.layers = marked or listed
        self.numbers = {
            id(child): i
            for m in within.modules()
            if isinstance(m, torch.nn.ModuleList) and len(m) == total
            for i, child in enumerate(m)
            if id(child) in self.layers
        }

    def number(self, frame: _Frame) -> int:
        """The number of the layer that runs."""
        return self.numbers.get(id(frame.module), self.count)

    def place(self) -> str:
        """Where the forward pass is, in words."""
        layer = next((frame for frame in reversed(self.stack) if frame.is_layer), None)
        inner = type(self.stack[-1].module).__name__ if self.stack else "its inputs"
        return inner if layer is None else f"layer {self.number(layer)} ({inner})"

    def enter(self, module, args, kwargs) -> None:
        self.stack.append(_Frame(module, args, kwargs, id(module) in self.layers))

    def attended(self, module, heads: Tensor) -> None:
        if id(module) not in self.scope:
            return
        attention = next((frame for frame in reversed(self.stack) if frame.module is module), None)
        if attention is None:
            return
        layer = next((frame for frame in reversed(self.stack) if frame.is_layer and frame is not attention), None)
        if layer is None or layer.attention is not None or _is_cross(attention):
            return
        layer.attention, layer.heads, layer.since = attention, heads, len(layer.events)
        entering = hidden_states(module, attention.args, attention.kwargs)
        layer.norm = next((event for event in reversed(self.norms) if _same(event.y, entering)), None)

    def leave(self, module, args, kwargs, output) -> None:
        frame = self.stack.pop()
        y = _first_or_none(output)
        x = next((t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)), None)
        if frame.attention is not None:
            number = self.number(frame)
            if number in self.wanted:
                self.found[number] = _dissect(frame, frame.attention, y)
            self.seen.append(number)
            self.count += 1
            if self.wanted <= self.found.keys():
                raise _Done
        if x is None or y is None:
            return
        event = _Event(module, x, y, y, unary=len(args) + len(kwargs) == 1)
        layer = next((frame for frame in reversed(self.stack) if frame.is_layer), None)
        if layer is not None and self.number(layer) in self.wanted:
            event.copy = y.clone()
            layer.events.append(event)
        if is_norm(module):
            self.norms.append(event)


def _listed(numbers: list[int]) -> str:
    return f"layers {', '.join(map(str, numbers))}" if numbers else "no layers"


def _dissect(frame: _Frame, inside: _Frame, output: Tensor) -> Site:
    """The site of a layer that has returned its output; `inside` is the attention module that ran in it."""
    layer = Call(frame.module, frame.args, frame.kwargs)
    attention = Call(inside.module, inside.args, inside.kwargs)
    later = frame.events[frame.since :]
    projection = next((e for e in later if _is_matrix(e.module) and _same(e.x, frame.heads)), None)
    if projection is None:
        raise InputError(
            f"expected an output projection after the heads of {type(attention.module).__name__}, got none; this "
            "family needs an adapter"
        )
    # A wrapper (LoRA's, say) is given the heads, too, and returns after the matrix inside of it.
    inner = projection
    projection = next(
        (
            e
            for e in reversed(later)
            if e.unary
            and _same(e.x, frame.heads)
            and not _same(e.y, inner.y)
            and any(module is inner.module for module in e.module.modules())
        ),
        inner,
    )
    y, after = projection.y, []
    for event in later:
        if event.unary and _same(event.x, y) and event.y.shape == y.shape and not _same(event.y, y):
            after.append(event.module)
            y = event.copy
    norm, closing, seen_again = frame.norm, None, False
    norm_in_layer = norm is not None and _same(norm.x, layer.x)
    if y.numel() == layer.x.numel():  # MobileBERT's attention is narrower, Gemma 3n has several streams
        stream = layer.x + y.view_as(layer.x)
        if any(is_norm(e.module) and _same(e.y, output) for e in later):  # post-norm: the layer ends in a norm
            closing = next((e.module for e in later if is_norm(e.module) and _close(e.x, stream)), None)
            seen_again = closing is not None
        else:
            seen_again = any(_close(e.x, stream) or _close(e.copy, output - stream) for e in later)
    return Site(
        layer,
        attention,
        projection.module,
        projection.copy,
        None if norm is None else norm.module,
        None if norm is None else norm.x,
        norm_in_layer,
        tuple(after),
        closing,
        seen_again and (norm_in_layer or _same(attention.x, layer.x)),
        _elsewhere(attention),
    )


def _elsewhere(attention: Call) -> str:
    if getattr(attention.module, "is_kv_shared_layer", False):
        return "keys and values of a layer below"
    return " and ".join(attention.other_tokens())


def is_norm(module: torch.nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _is_matrix(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2


def _is_cross(frame: _Frame) -> bool:
    others = (frame.kwargs.get(name) for name in ("key_value_states", "encoder_hidden_states"))
    cross = getattr(frame.module, "is_cross_attention", False) or "Cross" in type(frame.module).__name__
    return bool(cross) or any(other is not None for other in others)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one, up to the way their axes are read."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and a.dtype == b.dtype


def _close(a: Tensor, b: Tensor) -> bool:
    if a.numel() != b.numel() or not a.is_floating_point():
        return False
    gap = (a.reshape(-1) - b.reshape(-1)).abs().max()
    return bool(gap <= 50 * torch.finfo(b.dtype).eps * (1 + b.abs().max()))
