"""All layers of a model: as a chain of maps, or with other maps in place of attention.

A layer whose attention is replaced still runs its attention module, from which the input is taken; the output of its
output projection is then replaced by that of the new map. This works for any map x (b, n, d) ↦ (b, n, d_out) and in
every family.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.calls import first_tensor, hidden_states
from howsmooth.models.inputs import is_batch
from howsmooth.models.maps import LayerMap
from howsmooth.models.model import Model
from howsmooth.models.parts import is_norm


@dataclass(frozen=True, eq=False)
class Chain:
    """The layers of a model as maps of tokens: the last hidden state is `norm(layers[-1](… layers[0](x)))`.

    Masks and positions are those of one input.

    Attributes:
        x: The input of layer 0, (n, d).
        layers: The layers.
        norm: The final norm; None in post-norm families.
    """

    x: Tensor
    layers: tuple[LayerMap, ...]
    norm: torch.nn.Module | None

    @property
    def maps(self) -> list[torch.nn.Module]:
        """The layers, then the final norm if there is one."""
        return [*self.layers, *([] if self.norm is None else [self.norm])]

    def states(self) -> list[Tensor]:
        """Return x and the tokens after each map, each (n, d)."""
        found = [self.x]
        with torch.no_grad():
            for step in self.maps:
                found.append(step(found[-1]))
        return found


def layer_chain(model: Model, input: Any) -> Chain:
    """Return all layers of a model at one input, captured from one forward pass.

    Args:
        model: The model. If it is in half precision, maps and tokens are in float32.
        input: One input, as `Model.map_at` takes it.

    Returns:
        The layers as a chain.

    Raises:
        InputError: The input is a batch, or the model is not a chain of layers followed by a norm.

    Example:
        >>> import howsmooth
        >>> model = howsmooth.load("minilm")
        >>> chain = layer_chain(model, model.chunks("It was late.", 5, 1)[0])
        >>> len(chain.layers), chain.norm, chain.x.shape
        (6, None, torch.Size([5, 384]))
    """
    given = model._inputs(input)
    if is_batch(given):
        raise InputError("expected one input, got a batch; pass its members one by one")
    sites = model._sites(given, range(model.layers))
    for layer in range(1, model.layers):
        if (x := sites[layer].layer.x).shape != sites[layer - 1].layer.x.shape:
            raise InputError(
                f"expected layer {layer} of {model.name} to take the output of the layer before, got {tuple(x.shape)}: "
                "the network merges or pools tokens between its stages; measure its layers one by one, or the model"
            )
    layers = tuple(LayerMap(sites[layer]) for layer in range(model.layers))
    chain = Chain(sites[0].layer.x.squeeze(0).clone(), layers, None)
    last = chain.states()[-1]
    output, norms = _run(model.instrumented, given)
    if not _is_close(last, output):
        norm = next((module for module, y in reversed(norms) if _is_close(y, output)), None)
        with torch.no_grad():
            if norm is None or not _is_close(norm(last), output):
                raise InputError(
                    f"expected {model.name} to be its layers one after the other and a norm, got a last "
                    "hidden state that these do not give; measure its layers one by one"
                )
        chain = Chain(chain.x, layers, norm)
    if model.dtype.itemsize < 4:
        x, maps, norm = chain.x.float(), [copy.deepcopy(layer).float() for layer in layers], copy.deepcopy(chain.norm)
        chain = Chain(x, tuple(maps), None if norm is None else norm.float())
    return chain


def _run(network: torch.nn.Module, given: dict[str, Any]) -> tuple[Tensor, list[tuple[torch.nn.Module, Tensor]]]:
    """Return the last hidden state, and the output of each norm."""
    captured: list[tuple[torch.nn.Module, Tensor]] = []
    handles = [
        module.register_forward_hook(
            lambda module, _args, output: captured.append((module, first_tensor(output, module)))
        )
        for module in network.modules()
        if is_norm(module)
    ]
    try:
        with torch.no_grad():
            return first_tensor(network(**given), network).squeeze(0), [
                (module, y.squeeze(0)) for module, y in captured
            ]
    finally:
        for handle in handles:
            handle.remove()


def _is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors agree up to rounding."""
    gap = torch.linalg.vector_norm((a - b).double())
    return a.shape == b.shape and bool(gap <= 100 * torch.finfo(b.dtype).eps * torch.linalg.vector_norm(b.double()))


@contextmanager
def replace_attention(model: Model, maps: Mapping[int, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Replace attention by other maps inside the context.

    `model.map_at`, `model.activations` and `model.instrumented` then run with the new maps. `model.attention`, and the
    kinds "attention" and "head" of a family with an adapter, do not change: they are built from the weights.

    Args:
        model: The model.
        maps: For each layer, a map x (b, n, d) ↦ (b, n, d_out) to use in place of attention.

    Raises:
        InputError: A value of `maps` is not callable, there is no such layer, or other layers share its attention.

    Example:
        >>> import howsmooth, torch
        >>> model = howsmooth.load("minilm")
        >>> ids = torch.arange(5)
        >>> before = model.activations(ids, [1])[1]
        >>> with replace_attention(model, {0: torch.zeros_like}):
        ...     after = model.activations(ids, [1])[1]
        >>> torch.equal(before, after), torch.equal(before, model.activations(ids, [1])[1])
        (False, True)
    """
    with ExitStack() as stack, model.skip_adapter_check(maps):
        for layer, g in maps.items():
            if not callable(g):
                raise InputError(f"replace_attention: expected a map for layer {layer}, got {type(g).__name__}")
            given = model._inputs(model._placeholder_input(8))
            site = model._sites(given, [layer])[layer]
            if _count_calls(model.instrumented, given, site.projection) > 1:
                raise InputError(
                    f"replace_attention: expected a layer with an attention module of its own, got layer {layer} of "
                    f"{model.name}, whose module other layers use too (shared weights); choose another model"
                )
            _replace(stack, site.attention.module, site.projection, g)
        yield


def _count_calls(network: torch.nn.Module, given: dict[str, Any], module: torch.nn.Module) -> int:
    """Return how often a forward pass calls a module."""
    calls: list[None] = []
    handle = module.register_forward_hook(lambda _module, _args, _output: calls.append(None))
    try:
        with torch.no_grad():
            network(**given)
    finally:
        handle.remove()
    return len(calls)


def _replace(
    stack: ExitStack, attention: torch.nn.Module, projection: torch.nn.Module, g: Callable[[Tensor], Tensor]
) -> None:
    inputs: list[Tensor] = []

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        inputs[:] = [hidden_states(module, args, kwargs)]

    def leave(_module: torch.nn.Module, _args: tuple[Any, ...], output: Tensor) -> Tensor:
        x = inputs.pop()
        return g(x).to(output.dtype).view_as(output)

    # Prepended: other hooks see the replaced output.
    for handle in (
        attention.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
        projection.register_forward_hook(leave, prepend=True),
    ):
        stack.callback(handle.remove)
