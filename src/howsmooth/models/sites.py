"""Where a network computes attention, found by observing one forward pass instead of listing architectures.

`howsmooth.models.hook` reports each call of the attention function, and a mode of PyTorch each softmax in a module's
own code. The stack of running modules at that moment gives the attention module and the layer around it;
`howsmooth.models.parts` reads the other modules of the layer off its data flow. A call of a module is kept with all its
arguments (`ModuleCall`), as a function of its hidden states.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from howsmooth.errors import InputError
from howsmooth.models.calls import (
    CompletedCall,
    RunningCall,
    SoftmaxCall,
    first_or_none,
    first_tensor,
    is_cross_attention,
    is_norm,
)
from howsmooth.models.hook import observe_attention
from howsmooth.models.parts import MissingMap, Site, build_site
from howsmooth.models.tracing import edit_softmax


class StopForward(Exception):
    """Raised in a hook to end a forward pass early, once everything needed has been captured."""


class ForwardFailed(InputError):
    """The network's own code raised an exception during the forward pass."""


def find_sites(
    network: torch.nn.Module, inputs: dict[str, Any], layers: Iterable[int], scope: str = "", total: int | None = None
) -> dict[int, Site]:
    """Run a network once and return the sites of the given layers.

    Args:
        network: An `instrumented_copy` of a transformers network.
        inputs: Its keyword arguments.
        layers: Numbers of layers. They index the list of `total` modules that contains the layers, so that layers
            without attention count; the k-th call of a module that is in the list several times is its k-th place.
            Without such a list (ALBERT calls one module repeatedly) they count calls with attention or, if there are
            none, all calls.
        scope: The name of the submodule that contains the layers, for networks with several stacks of them.
        total: The number of layers of the network.

    Returns:
        The site of each layer.

    Raises:
        ForwardFailed: The network raised an exception.
        InputError: There is no such layer, or it returns something else when it is called again.
    """
    wanted = set(layers)
    first = _SiteRecorder(network, inputs, wanted, scope, total)
    if wanted <= _run(first).keys():
        return first.found
    second = _SiteRecorder(network, inputs, wanted, scope, total, first)
    if wanted <= _run(second).keys():
        return second.found
    raise InputError(
        f"expected layer {min(wanted - second.found.keys())} of {type(network).__name__} to be a module that takes "
        "tokens, got none; measure the model"
    )


def _run(recorder: _SiteRecorder) -> dict[int, Site]:
    network = recorder.network
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
        with torch.no_grad(), observe_attention(recorder.attend), edit_softmax(recorder.see_softmax):
            network(**recorder.inputs)
    except StopForward:
        pass
    except (InputError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a family's code may raise anything if it expects another attention
        remedy = "choose another family (howsmooth models), or build howsmooth.SelfAttention from its weights"
        if isinstance(error, TypeError) and "missing" in str(error):
            remedy = "in Python, give a dict of its keyword arguments (model.map_at)"
        raise ForwardFailed(
            f"expected {type(network).__name__} to run with howsmooth's attention, got {type(error).__name__} in "
            f"{recorder.location()} ({(str(error) or 'no message').splitlines()[0]}); {remedy}"
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    return recorder.found


class _SiteRecorder:
    """Hooks that build the sites of the wanted layers during a forward pass."""

    def __init__(
        self,
        network: torch.nn.Module,
        inputs: dict[str, Any],
        wanted: set[int],
        scope: str,
        total: int | None,
        earlier: _SiteRecorder | None = None,
    ) -> None:
        """Take the arguments of `find_sites`, and the recorder of an earlier pass that missed some layers."""
        self.network, self.inputs, self.wanted, self.count = network, inputs, wanted, 0
        self.scope_name, self.total = scope, total
        self.found: dict[int, Site] = {}
        self.stack: list[RunningCall] = []
        self.norms: deque[CompletedCall] = deque(maxlen=8)
        self.paused = False  # while modules are called again
        within = network.get_submodule(scope) if scope else network
        self.scope = {id(module) for module in within.modules()}
        # Layers are what transformers can checkpoint; older families have no such class, only a list of layers.
        marked = {id(m) for m in within.modules() if isinstance(m, GradientCheckpointingLayer)}
        listed = {id(child) for m in within.modules() if isinstance(m, torch.nn.ModuleList) for child in m}
        self.layers = marked or listed
        lists = [m for m in within.modules() if isinstance(m, torch.nn.ModuleList) and len(m) == total]
        lists = [stack for stack in lists if any(id(child) in self.layers for child in stack)]
        if earlier is not None:  # of several lists, that with attention; the others are stages of convolutions, say
            lists = [s for s in lists if any(id(child) in earlier.attended for child in s)] or lists[-1:]
        self.places: dict[int, list[int]] = {}  # of each module, in ascending order: one may be in the list twice
        for stack in lists:
            for i, child in enumerate(stack):
                places = self.places.setdefault(id(child), [])
                if id(child) in self.layers and i not in places:
                    places.append(i)
        # Layers without attention have a number if their list is known, or if no layer has attention.
        self.number_listed = len(lists) == 1
        self.number_all = earlier is not None and not lists
        self.attended: set[int] = set()
        self.entered: Counter[int] = Counter()
        self.returned: Counter[int] = Counter()

    def number(self, call: RunningCall) -> int:
        """Return the number of a running layer."""
        return self.count if call.listed is None else call.listed

    def location(self) -> str:
        """Return in words which module is running."""
        layer = self.running_layer()
        inner = type(self.stack[-1].module).__name__ if self.stack else "its inputs"
        return inner if layer is None else f"layer {self.number(layer)} ({inner})"

    def running_layer(self) -> RunningCall | None:
        """Return the innermost layer that is running."""
        return next((call for call in reversed(self.stack) if call.is_layer), None)

    def enter(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of every module."""
        if self.paused:
            return
        places = self.places.get(id(module))
        listed = places[self.entered[id(module)] % len(places)] if places else None
        self.entered[id(module)] += 1
        self.stack.append(RunningCall(module, args, kwargs, id(module) in self.layers, listed))

    def attend(self, module: torch.nn.Module, heads: Tensor) -> None:
        """Observer of the attention function."""
        if not self.paused and any(call.module is module for call in self.stack):
            while_running = self.stack[: 1 + max(i for i, call in enumerate(self.stack) if call.module is module)]
            self._record_softmax(while_running, heads)

    def see_softmax(self, weights: Tensor) -> Tensor:
        """Observer of every softmax in a module's own code."""
        if not self.paused and self.stack:
            self._record_softmax(self.stack, None)
        return weights

    def _record_softmax(self, stack: list[RunningCall], heads: Tensor | None) -> None:
        """Keep the softmax of a module, the last of a stack, with the layer around it."""
        if id(stack[-1].module) not in self.scope:
            return
        index = next((i for i, call in reversed(list(enumerate(stack[:-1]))) if call.is_layer), None)
        around = [] if index is None else stack[:index:-1]
        if index is None or any(map(is_cross_attention, around)):
            return
        layer, used = stack[index], SoftmaxCall(around, len(stack[index].completed), list(self.norms), heads)
        if heads is None:
            layer.softmaxes.append(used)
        elif layer.attended is None:
            layer.attended = used

    def leave(self, module: torch.nn.Module, _args: tuple[Any, ...], output: object) -> None:
        """Forward hook of every module."""
        if self.paused:
            return
        call = self.stack.pop()
        earlier = self.returned[id(module)]
        self.returned[id(module)] += 1
        y = first_or_none(output)
        x = next((t for t in (*call.args, *call.kwargs.values()) if isinstance(t, Tensor)), None)
        if self._is_recorded(call):
            self._record_layer(call, first_tensor(output, module))
        if x is None or y is None:
            return
        layer = self.running_layer()
        completed = CompletedCall(module, earlier, x, y, y, call, layer is not None and self.stack[-1] is layer)
        if layer is not None and self.number(layer) in self.wanted:
            completed.copy = y.clone()
            layer.completed.append(completed)
        if is_norm(module):
            self.norms.append(completed)

    def _is_recorded(self, call: RunningCall) -> bool:
        """Return whether a call that has returned is a layer with a number."""
        if not call.is_layer or (call.has_layer and call.attended is None):
            return False
        if call.attended is not None or call.softmaxes:
            self.attended.add(id(call.module))
            return True
        return self.number_all or (self.number_listed and call.listed is not None)

    def _record_layer(self, call: RunningCall, output: Tensor) -> None:
        number = self.number(call)
        for outer in self.stack:
            outer.has_layer = True
        if number in self.wanted and number not in self.found:
            where = f"layer {number} of {type(self.network).__name__}"
            self.paused = True
            try:
                self.found[number] = build_site(call, output, where, partial(self._refuse, where))
            finally:
                self.paused = False
        self.count += 1
        if self.wanted <= self.found.keys():
            raise StopForward

    def _refuse(self, where: str, reason: str) -> MissingMap:
        """Return the error for a layer without softmax self-attention, which names the layers that have it."""
        try:
            sites = find_sites(self.network, self.inputs, range(self.total or 0), self.scope_name, self.total)
        except InputError:
            sites = {}
        others = [str(number) for number, site in sorted(sites.items()) if site.softmax is not None]
        remedy = f" (layers with it: {', '.join(others)})" if others else ""
        return MissingMap(f"expected softmax self-attention in {where}, got {reason}{remedy}")
