"""All layers of a model at once: as a chain of maps, one after the other, or with other maps in place of attention.

A layer whose attention is replaced still runs its attention module, which hands over the tokens that enter it; what its
output projection returns is replaced by what the new map returns. So any map X (b, n, d) ↦ (b, n, d_out) can stand
there, in every family.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.anatomy import first, hidden_states, is_norm
from howsmooth.models.maps import LayerMap
from howsmooth.models.model import Model


@dataclass(frozen=True, eq=False)
class Chain:
    """The layers as maps of tokens (n, d), what enters the first, and the final norm (None in post-norm families).

    The last hidden state of the model is norm(layers[-1](… layers[0](x))). Masks and positions are those of one input.
    """

    x: Tensor
    layers: tuple[LayerMap, ...]
    norm: torch.nn.Module | None

    @property
    def maps(self) -> list[torch.nn.Module]:
        """Layers and norm, in the order in which tokens pass them."""
        return [*self.layers, *([] if self.norm is None else [self.norm])]

    def states(self) -> list[Tensor]:
        """x, then the tokens after each map."""
        found = [self.x]
        with torch.no_grad():
            for step in self.maps:
                found.append(step(found[-1]))
        return found


def layer_chain(model: Model, input) -> Chain:
    """All layers of a model at one input (as `Model.map_at` takes it), read off one forward pass.

    A model in half precision gives maps and tokens in float32.
    """
    given = model._inputs(input)
    if any(len(value) != 1 for value in given.values() if isinstance(value, Tensor)):
        raise InputError("expected one input, got a batch; pass its members one by one")
    sites = model._sites(given, range(model.layers))
    layers = tuple(LayerMap(sites[layer]) for layer in range(model.layers))
    chain = Chain(sites[0].layer.x.squeeze(0).clone(), layers, None)
    last = chain.states()[-1]
    output, norms = _run(model.twin, given)
    if not _close(last, output):
        norm = next((module for module, y in reversed(norms) if _close(y, output)), None)
        with torch.no_grad():
            if norm is None or not _close(norm(last), output):
                raise InputError(
                    f"expected {model.name} to be its layers one after the other and a norm, got a last "
                    "hidden state that these do not give; measure its layers one by one"
                )
        chain = Chain(chain.x, layers, norm)
    if model.dtype.itemsize < 4:
        x, maps, norm = chain.x.float(), [copy.deepcopy(layer).float() for layer in layers], copy.deepcopy(chain.norm)
        chain = Chain(x, tuple(maps), None if norm is None else norm.float())
    return chain


def _run(network, given: dict) -> tuple[Tensor, list[tuple[torch.nn.Module, Tensor]]]:
    """The last hidden state, and what came out of each norm on the way."""
    seen: list[tuple[torch.nn.Module, Tensor]] = []
    handles = [
        module.register_forward_hook(lambda module, _args, output: seen.append((module, first(output, module))))
        for module in network.modules()
        if is_norm(module)
    ]
    try:
        with torch.no_grad():
            return first(network(**given), network).squeeze(0), [(module, y.squeeze(0)) for module, y in seen]
    finally:
        for handle in handles:
            handle.remove()


def _close(a: Tensor, b: Tensor) -> bool:
    gap = torch.linalg.vector_norm((a - b).double())
    return a.shape == b.shape and bool(gap <= 100 * torch.finfo(b.dtype).eps * torch.linalg.vector_norm(b.double()))


@contextmanager
def replaced(model: Model, maps: Mapping[int, Callable[[Tensor], Tensor]]) -> Iterator[None]:
    """Inside the block `model.map_at`, `model.activations` and `model.twin` run with these maps as attention, by layer.

    `model.attention` and the kinds "attention" and "head" of a family with an adapter stay what they were: they are
    read off the weights.
    """
    with ExitStack() as stack, model.unchecked(maps):
        for layer, g in maps.items():
            if not callable(g):
                raise InputError(f"replaced: expected a map for layer {layer}, got {type(g).__name__}")
            site = model._sites(model._inputs(model._any_input(8)), [layer])[layer]
            _replace(stack, site.attention.module, site.projection, g)
        yield


def _replace(stack: ExitStack, attention, projection, g: Callable[[Tensor], Tensor]) -> None:
    entering: list[Tensor] = []

    def enter(module, args, kwargs) -> None:
        entering[:] = [hidden_states(module, args, kwargs)]

    def leave(_module, _args, output: Tensor) -> Tensor:
        x = entering.pop()
        return g(x).to(output.dtype).view_as(output)

    # Prepended: other hooks see the replaced output.
    for handle in (
        attention.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
        projection.register_forward_hook(leave, prepend=True),
    ):
        stack.callback(handle.remove)
