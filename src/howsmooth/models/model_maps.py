"""Maps of a whole model: all layers, some of them in a row, and from the token embedding to the logits.

    model         all layers and the final norm      input: of layer 0, embeddings and positions included
    chain:i..j    the layers i to j                  input: of layer i; "chain" has all layers, without a final norm
    logits        embedding ↦ logits                 input: the token embedding, before positions

A chain calls its own layers alone, with the arguments that they had: a product costs what those of its layers cost
together. That nothing else passes between the layers is checked, by one pass of the network at other tokens.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.calls import first_tensor, hidden_states
from howsmooth.models.map_types import MapChoice
from howsmooth.models.maps import LayerMap, NetworkMap, check_tokens
from howsmooth.models.model import Model
from howsmooth.models.parts import MissingMap, Site
from howsmooth.models.sites import StopForward

CHECKED_STEP = 1e-2  # how far the tokens of the check are moved, relative to their size
CHECKED_ACCURACY = 1e-2  # of the change that the move makes


class ChainMap(torch.nn.Module):
    """Layers one after the other."""

    def __init__(self, sites: list[Site]) -> None:
        """Take the sites of the layers, in their order."""
        super().__init__()
        self.layers = torch.nn.ModuleList(LayerMap(site) for site in sites)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at x (n, d)."""
        for layer in self.layers:
            x = layer(x)
        return x


class LogitsMap(torch.nn.Module):
    """From the token embedding, before positions, to the logits of a causal language model."""

    def __init__(self, network: torch.nn.Module, head: torch.nn.Module, inputs: dict[str, Any]) -> None:
        """Take the network, its language head, and the other keyword arguments of a forward pass."""
        super().__init__()
        self.network, self.head, self.inputs = network, head, inputs

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at x (n, d)."""
        hidden = first_tensor(self.network(inputs_embeds=x.unsqueeze(0), **self.inputs), self.network)
        logits: Tensor = self.head(hidden.squeeze(0))
        return logits


def network_map(
    model: Model, given: dict[str, Any], sites: dict[int, Site], choice: MapChoice
) -> tuple[torch.nn.Module, Tensor]:
    """Return all layers with the final norm, and the input of layer 0."""
    check_tokens(sites[0], choice, f"layer 0 of {model.name}")
    return NetworkMap(model.instrumented, given, sites[0]), sites[0].layer.x


def logits_map(
    model: Model, given: dict[str, Any], sites: dict[int, Site], choice: MapChoice
) -> tuple[torch.nn.Module, Tensor]:
    """Return the map from the token embedding to the logits, and the embedding of the tokens."""
    try:
        head = model.language_head
    except InputError as error:
        raise MissingMap(f"logits: {error}") from None
    others = {key: value for key, value in given.items() if key != "input_ids"}
    with torch.no_grad():
        x = model.instrumented.get_input_embeddings()(given["input_ids"])
    return LogitsMap(model.instrumented, head, others), x


def chain_map(
    model: Model, given: dict[str, Any], sites: dict[int, Site], choice: MapChoice
) -> tuple[torch.nn.Module, Tensor]:
    """Return a range of layers, and the input of the first of them."""
    first, last = choice.layers or (0, model.layers - 1)
    for layer in (first, last):
        check_tokens(sites[layer], choice, f"layer {layer} of {model.name}")
    f, x = ChainMap([sites[layer] for layer in range(first, last + 1)]), sites[first].layer.x
    move = torch.randn(x.shape, generator=torch.Generator().manual_seed(0)).to(x)
    moved = x + CHECKED_STEP * x.square().mean().sqrt() * move
    with torch.no_grad():
        changed = f(moved.flatten(0, -2)).double()
        wanted = _run(model.instrumented, given, sites, first, last, moved).flatten(0, -2).double()
        change = torch.linalg.vector_norm(changed - f(x.flatten(0, -2)).double())
    if not torch.linalg.vector_norm(changed - wanted) <= CHECKED_ACCURACY * change:
        raise MissingMap(
            f"{choice}: expected layers that pass on nothing but their output, got layers of {model.name} that take "
            "more from those below; measure the model, or its layers one by one"
        )
    return f, x


def _run(
    network: torch.nn.Module, given: dict[str, Any], sites: dict[int, Site], first: int, last: int, x: Tensor
) -> Tensor:
    """Run the network with x as input of one layer, and return the output of another."""
    modules = [sites[layer].layer.module for layer in range(last + 1)]
    skipped = {layer: sum(module is modules[layer] for module in modules[:layer]) for layer in (first, last)}
    calls, captured = {"in": 0, "out": 0}, list[Tensor]()

    def enter(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        calls["in"] += 1
        if calls["in"] != skipped[first] + 1:
            return None
        hidden = hidden_states(module, args, kwargs)
        new = {id(hidden): x}
        return tuple(new.get(id(arg), arg) for arg in args), {k: new.get(id(v), v) for k, v in kwargs.items()}

    def leave(module: torch.nn.Module, _args: tuple[Any, ...], output: object) -> None:
        calls["out"] += 1
        if calls["out"] == skipped[last] + 1:
            captured.append(first_tensor(output, module))
            raise StopForward

    handles = [
        modules[first].register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
        modules[last].register_forward_hook(leave),
    ]
    try:
        network(**given)
    except StopForward:
        pass
    finally:
        for handle in handles:
            handle.remove()
    return captured[0]
