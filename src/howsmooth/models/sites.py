"""Where a network computes attention, found by observing one forward pass instead of listing architectures.

`howsmooth.models.hook` reports each call of the attention function, so the stack of running modules at that moment
gives the attention module and the layer around it. The other modules of a layer follow from its data flow:

    normalisation   the module with "norm" in its class name whose output is the input of attention
    projection      the first matrix applied to the heads' output, with any wrapper around it (LoRA)
    after           modules that are applied to the projection's output alone, before it is added to the residual
                    stream (Gemma's second norm, DINOv2's layer scale)
    post_norm       the norm of a post-norm layer, applied to the sum of the stream and attention

A call of a module is kept with all its arguments (`ModuleCall`), as a function of its hidden states. Tensors are
identified by their address: all of them are kept alive while a layer runs, so that no address is used twice.
"""

from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from transformers.modeling_layers import GradientCheckpointingLayer

from howsmooth.errors import InputError
from howsmooth.models.hook import observe_attention


class StopForward(Exception):
    """Raised in a hook to end a forward pass early, once everything needed has been captured."""


class ForwardFailed(InputError):
    """The network's own code raised an exception during the forward pass."""


class ModuleCall(torch.nn.Module):
    """A captured call as a function of its hidden states: x (b, n, d) ↦ module(x, …), all other arguments fixed.

    If the module was given the hidden states more than once (as queries, keys and values), all of these arguments are
    replaced.

    Attributes:
        module: The module that was called.
        x: Its hidden states in the captured call.
    """

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Capture module(*args, **kwargs)."""
        super().__init__()
        self.module = module
        self.x = hidden_states(module, args, kwargs)
        self.positional = tuple(i for i, arg in enumerate(args) if arg is self.x)
        self.keywords = tuple(key for key, value in kwargs.items() if value is self.x)
        self.args = tuple(None if i in self.positional else arg for i, arg in enumerate(args))
        self.kwargs = {key: value for key, value in kwargs.items() if key not in self.keywords}

    def forward(self, x: Tensor) -> Tensor:
        """Return the module's output, the first of several."""
        args = (x if i in self.positional else arg for i, arg in enumerate(self.args))
        return first_tensor(self.module(*args, **self.kwargs, **dict.fromkeys(self.keywords, x)), self.module)

    def other_sources(self) -> list[str]:
        """Return the names of arguments that are keys or values of other tokens than x."""
        try:
            given = inspect.signature(self.module.forward).bind_partial(*self.args, **self.kwargs).arguments
        except TypeError:  # a forward without a signature of its own
            given = self.kwargs
        return [
            name
            for name, value in given.items()
            if name.startswith(("key_", "value_")) and isinstance(value, Tensor) and value.is_floating_point()
        ]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ModuleCall:
        """Convert the captured tensors together with the weights; a mask keeps its attributes (`MaskPattern`)."""

        def convert(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            converted = fn(leaf)
            converted.__dict__.update(leaf.__dict__)
            return converted

        self.args, self.kwargs = pytree.tree_map(convert, (self.args, self.kwargs))
        self.x = fn(self.x)
        return super()._apply(fn, recurse)


def hidden_states(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """Return the hidden states among the arguments of a call: the first positional one, or `hidden_states`."""
    x = args[0] if args else kwargs.get("hidden_states")
    if not isinstance(x, Tensor):
        raise InputError(
            f"expected {type(module).__name__} to take hidden states first, got {type(x).__name__}; this family "
            "needs an adapter"
        )
    return x


def first_tensor(output: object, module: torch.nn.Module) -> Tensor:
    """Return the output of a module if it is a tensor, or else the first tensor in it."""
    y = _first_or_none(output)
    if y is None:
        raise InputError(
            f"expected {type(module).__name__} to return a tensor first, got something else; this family "
            "needs an adapter"
        )
    return y


def _first_or_none(output: object) -> Tensor | None:
    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, Tensor) else getattr(output, "last_hidden_state", None)


@dataclass(frozen=True, eq=False)
class Mlp:
    """The MLP of a layer: modules that are applied one after the other, and what the first was given, (b, n, d)."""

    modules: tuple[torch.nn.Module, ...]
    x: Tensor


@dataclass(frozen=True, eq=False)
class Site:
    """One layer of a network, as it ran on one input. Tensors are (b, n, d).

    Attributes:
        layer: The call of the layer.
        attention: The call of the attention module in it.
        projection: The output projection.
        projection_calls: How often the projection had been called before in the forward pass, by layers that share it.
        output: What the projection returned: the value of the attention map at `attention.x`.
        norm: The normalisation whose output is the input of attention, if there is one.
        norm_input: What that normalisation was applied to.
        norm_in_layer: Whether it was applied to the input of the layer.
        after: Modules between the projection and the residual stream.
        post_norm: The norm of a post-norm layer.
        has_residual: Whether the layer computes the sum of its input and attention.
        other_sources: What attention takes from other tokens than `attention.x`, in words; "" for nothing.
        mlp: The MLP of the layer, where it was recognised.
    """

    layer: ModuleCall
    attention: ModuleCall
    projection: torch.nn.Module
    projection_calls: int
    output: Tensor
    norm: torch.nn.Module | None
    norm_input: Tensor | None
    norm_in_layer: bool
    after: tuple[torch.nn.Module, ...]
    post_norm: torch.nn.Module | None
    has_residual: bool
    other_sources: str
    mlp: Mlp | None


def find_sites(
    network: torch.nn.Module, inputs: dict[str, Any], layers: Iterable[int], scope: str = "", total: int | None = None
) -> dict[int, Site]:
    """Run a network once and return the sites of the given layers.

    Args:
        network: An `instrumented_copy` of a transformers network.
        inputs: Its keyword arguments.
        layers: Numbers of layers. They index the list of `total` modules that contains the layers, so that layers
            without attention count; the k-th call of a module that is in the list several times is its k-th place.
            Without such a list (ALBERT calls one module repeatedly) they count calls.
        scope: The name of the submodule that contains the layers, for networks with several stacks of them.
        total: The number of layers of the network.

    Returns:
        The site of each layer.

    Raises:
        ForwardFailed: The network raised an exception.
        InputError: A layer has no softmax self-attention that can be observed, or its output projection was not found.
    """
    recorder = _SiteRecorder(network, set(layers), scope, total)
    handles = [
        handle
        for module in network.modules()
        for handle in (
            # Prepended: a call is kept with the arguments that the network gave, and its own pre-hooks run again.
            module.register_forward_pre_hook(recorder.enter, with_kwargs=True, prepend=True),
            module.register_forward_hook(recorder.leave),
        )
    ]
    try:
        with torch.no_grad(), observe_attention(recorder.attend):
            network(**inputs)
    except StopForward:
        pass
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a family's code may raise anything if it expects another attention
        raise ForwardFailed(
            f"expected {type(network).__name__} to run with howsmooth's attention, got {type(error).__name__} in "
            f"{recorder.location()} ({(str(error) or 'no message').splitlines()[0]}); choose another family "
            "(howsmooth models), or build howsmooth.SelfAttention from its weights"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if missing := sorted(recorder.wanted - recorder.found.keys()):
        raise InputError(
            f"expected softmax self-attention in layer {missing[0]} of {type(network).__name__}, got "
            f"{_list_layers(recorder.seen)} that use transformers' attention registry; choose among them or, if there "
            "are none, another family"
        )
    return recorder.found


@dataclass(eq=False)
class _CompletedCall:
    """A call that has returned. `copy` is the output as it was returned: later code may modify it in place.

    `earlier` is how many calls of the module had returned before.
    """

    module: torch.nn.Module
    earlier: int
    x: Tensor
    y: Tensor
    copy: Tensor
    unary: bool


class _RunningCall:
    """A call that has not returned yet, with the calls that completed inside it."""

    def __init__(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], is_layer: bool, listed: int | None
    ) -> None:
        self.module, self.args, self.kwargs, self.is_layer = module, args, kwargs, is_layer
        self.listed = listed  # its number by its place in the list of layers
        self.completed: list[_CompletedCall] = []
        self.attention: _RunningCall | None = None
        self.heads: Tensor | None = None
        self.before_attention = 0  # how many calls had completed when attention was computed
        self.norm: _CompletedCall | None = None


class _SiteRecorder:
    """Hooks that build the sites of the wanted layers during a forward pass."""

    def __init__(self, network: torch.nn.Module, wanted: set[int], scope: str, total: int | None) -> None:
        self.wanted, self.count = wanted, 0
        self.found: dict[int, Site] = {}
        self.seen: list[int] = []
        self.stack: list[_RunningCall] = []
        self.norms: deque[_CompletedCall] = deque(maxlen=8)
        within = network.get_submodule(scope) if scope else network
        self.scope = {id(module) for module in within.modules()}
        # Layers are what transformers can checkpoint; older families have no such class, only a list of layers.
        marked = {id(m) for m in within.modules() if isinstance(m, GradientCheckpointingLayer)}
        listed = {id(child) for m in within.modules() if isinstance(m, torch.nn.ModuleList) for child in m}
        self.layers = marked or listed
        self.places: dict[int, list[int]] = {}  # of each module, in ascending order: one may be in the list twice
        for stack in (m for m in within.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == total):
            for i, child in enumerate(stack):
                places = self.places.setdefault(id(child), [])
                if id(child) in self.layers and i not in places:
                    places.append(i)
        self.entered: Counter[int] = Counter()
        self.returned: Counter[int] = Counter()

    def number(self, call: _RunningCall) -> int:
        """Return the number of a running layer."""
        return self.count if call.listed is None else call.listed

    def location(self) -> str:
        """Return in words which module is running."""
        layer = self.running_layer()
        inner = type(self.stack[-1].module).__name__ if self.stack else "its inputs"
        return inner if layer is None else f"layer {self.number(layer)} ({inner})"

    def running_layer(self) -> _RunningCall | None:
        """Return the innermost layer that is running."""
        return next((call for call in reversed(self.stack) if call.is_layer), None)

    def enter(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of every module."""
        places = self.places.get(id(module))
        listed = places[self.entered[id(module)] % len(places)] if places else None
        self.entered[id(module)] += 1
        self.stack.append(_RunningCall(module, args, kwargs, id(module) in self.layers, listed))

    def attend(self, module: torch.nn.Module, heads: Tensor) -> None:
        """Observer of the attention function."""
        if id(module) not in self.scope:
            return
        attention = next((call for call in reversed(self.stack) if call.module is module), None)
        if attention is None:
            return
        layer = next((call for call in reversed(self.stack) if call.is_layer and call is not attention), None)
        if layer is None or layer.attention is not None or _is_cross_attention(attention):
            return
        layer.attention, layer.heads, layer.before_attention = attention, heads, len(layer.completed)
        x = hidden_states(module, attention.args, attention.kwargs)
        layer.norm = next((call for call in reversed(self.norms) if _is_same(call.y, x)), None)

    def leave(self, module: torch.nn.Module, _args: tuple[Any, ...], output: object) -> None:
        """Forward hook of every module."""
        call = self.stack.pop()
        earlier = self.returned[id(module)]
        self.returned[id(module)] += 1
        y = _first_or_none(output)
        x = next((t for t in (*call.args, *call.kwargs.values()) if isinstance(t, Tensor)), None)
        if call.attention is not None and call.heads is not None:
            number = self.number(call)
            if number in self.wanted and number not in self.found:
                self.found[number] = _build_site(call, call.attention, call.heads, first_tensor(output, module))
            self.seen.append(number)
            self.count += 1
            if self.wanted <= self.found.keys():
                raise StopForward
        if x is None or y is None:
            return
        completed = _CompletedCall(module, earlier, x, y, y, unary=len(call.args) + len(call.kwargs) == 1)
        layer = self.running_layer()
        if layer is not None and self.number(layer) in self.wanted:
            completed.copy = y.clone()
            layer.completed.append(completed)
        if is_norm(module):
            self.norms.append(completed)


def _list_layers(numbers: list[int]) -> str:
    return f"layers {', '.join(map(str, numbers))}" if numbers else "no layers"


def _build_site(running: _RunningCall, inside: _RunningCall, heads: Tensor, output: Tensor) -> Site:
    """Return the site of a layer that has returned `output`; `inside` is the attention module's call."""
    layer = ModuleCall(running.module, running.args, running.kwargs)
    attention = ModuleCall(inside.module, inside.args, inside.kwargs)
    later = running.completed[running.before_attention :]
    projection = _find_projection(later, heads, attention.module)
    after, y = _applied_to(projection, later)
    norm, post_norm, sum_found = running.norm, None, False
    norm_in_layer = norm is not None and _is_same(norm.x, layer.x)
    if y.numel() == layer.x.numel():  # MobileBERT's attention is narrower, Gemma 3n has several streams
        stream = layer.x + y.view_as(layer.x)
        if any(is_norm(call.module) and _is_same(call.y, output) for call in later):  # post-norm: a norm comes last
            post_norm = next(
                (call.module for call in later if is_norm(call.module) and _is_close(call.x, stream)), None
            )
            sum_found = post_norm is not None
        else:
            sum_found = any(_is_close(call.x, stream) or _is_close(call.copy, output - stream) for call in later)
    return Site(
        layer,
        attention,
        projection.module,
        projection.earlier,
        projection.copy,
        None if norm is None else norm.module,
        None if norm is None else norm.x,
        norm_in_layer,
        tuple(after),
        post_norm,
        sum_found and (norm_in_layer or _is_same(attention.x, layer.x)),
        _describe_other_sources(attention),
        _find_mlp(running, layer.x, y, output),
    )


def _applied_to(call: _CompletedCall, later: list[_CompletedCall]) -> tuple[list[torch.nn.Module], Tensor]:
    """Return the modules that are applied to the output of a call alone, one after the other, and the last output.

    `call` itself may be among the later calls.
    """
    y, copied, modules = call.y, call.copy, list[torch.nn.Module]()
    for following in later:
        is_applied = following.unary and _is_same(following.x, y) and following.y.shape == y.shape
        if is_applied and not _is_same(following.y, y):
            modules.append(following.module)
            y, copied = following.y, following.copy
    return modules, copied


def _find_mlp(running: _RunningCall, x: Tensor, attended: Tensor, output: Tensor) -> Mlp | None:
    """Return the MLP of a layer: the last modules with matrices whose output is added to the stream.

    The sum is checked: what the layer returned, or what its last norm was applied to, is the stream plus a multiple of
    the MLP's output, after the modules that are applied to it alone.

    Args:
        running: The call of the layer, with those inside it.
        x: The input of the layer.
        attended: What attention adds to the stream.
        output: What the layer returned.
    """
    calls = running.completed
    norms = [call for call in calls if is_norm(call.module)]
    sums = [output, *(call.x for call in norms if _is_same(call.y, output))]
    for steps in reversed(_sequences(calls)):
        entered = steps[0].x
        _, added = _applied_to(steps[-1], calls)
        streams = [entered, *(call.x for call in norms if _is_same(call.y, entered))]
        if attended.numel() == x.numel():
            streams.append(x + attended.view_as(x))  # attention and MLP in parallel
        if any(_is_sum(total, stream, added) for total in sums for stream in streams):
            return Mlp(tuple(step.module for step in steps), entered.reshape(*x.shape[:-1], -1))
    return None


def _sequences(calls: list[_CompletedCall]) -> list[list[_CompletedCall]]:
    """Return the sequences of modules in a layer that are applied one after the other, from matrix to matrix.

    A module with a norm in it, or with several arguments, is taken apart.
    """
    steps: list[_CompletedCall] = []
    for call in reversed(calls):  # a module before those inside it
        inside = any(module is call.module for step in steps for module in step.module.modules())
        has_norm = any(is_norm(module) for module in call.module.modules() if module is not call.module)
        if call.unary and not inside and not has_norm:
            steps.insert(0, call)
    sequences: list[list[_CompletedCall]] = []
    previous: _CompletedCall | None = None
    for step in steps:
        follows = previous is not None and not is_norm(previous.module) and _is_same(step.x, previous.y)
        if not is_norm(step.module) and follows and sequences:
            sequences[-1].append(step)
        elif not is_norm(step.module):
            sequences.append([step])
        previous = step
    found = []
    for sequence in sequences:
        matrices = [i for i, step in enumerate(sequence) if any(p.ndim >= 2 for p in step.module.parameters())]
        if matrices:
            found.append(sequence[matrices[0] : matrices[-1] + 1])
    return found


def _is_sum(total: Tensor, stream: Tensor, added: Tensor) -> bool:
    """Return whether total = stream + c · added for a number c ≠ 0."""
    if not total.numel() == stream.numel() == added.numel():
        return False
    flat = [t.reshape(-1).double() for t in (total, stream, added)]
    c = torch.dot(flat[0] - flat[1], flat[2]) / torch.dot(flat[2], flat[2])
    return bool(c.abs() > 0) and _is_close((flat[1] + c * flat[2]).to(total.dtype), total)


def _find_projection(later: list[_CompletedCall], heads: Tensor, attention: torch.nn.Module) -> _CompletedCall:
    """Return the call of the output projection, among the calls that completed after attention."""
    matrix = next((call for call in later if _is_matrix(call.module) and _is_same(call.x, heads)), None)
    if matrix is None:
        raise InputError(
            f"expected an output projection after the heads of {type(attention).__name__}, got none; this "
            "family needs an adapter"
        )
    # A wrapper (LoRA's, say) is also applied to the heads, and returns after the matrix inside it.
    wrappers = (
        call
        for call in reversed(later)
        if call.unary
        and _is_same(call.x, heads)
        and not _is_same(call.y, matrix.y)
        and any(module is matrix.module for module in call.module.modules())
    )
    return next(wrappers, matrix)


def _describe_other_sources(attention: ModuleCall) -> str:
    if getattr(attention.module, "is_kv_shared_layer", False):
        return "keys and values of a layer below"
    return " and ".join(attention.other_sources())


def is_norm(module: torch.nn.Module) -> bool:
    """Return whether a module is a normalisation, by the name of its class."""
    return "norm" in type(module).__name__.lower()


def _is_matrix(module: torch.nn.Module) -> bool:
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.ndim == 2


def _is_cross_attention(call: _RunningCall) -> bool:
    others = (call.kwargs.get(name) for name in ("key_value_states", "encoder_hidden_states"))
    cross = getattr(call.module, "is_cross_attention", False) or "Cross" in type(call.module).__name__
    return bool(cross) or any(other is not None for other in others)


def _is_same(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are the same memory, up to their shape."""
    return a.data_ptr() == b.data_ptr() and a.numel() == b.numel() and a.dtype == b.dtype


def _is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors agree up to rounding and up to their shape."""
    if a.numel() != b.numel() or not a.is_floating_point():
        return False
    gap = (a.reshape(-1) - b.reshape(-1)).abs().max()
    return bool(gap <= 50 * torch.finfo(b.dtype).eps * (1 + b.abs().max()))
