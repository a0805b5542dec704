"""A model whose attention is replaced in some layers, for one block: to try another map and see what it costs.

The attention module still runs, and hands over the tokens that enter it; what its output projection says is replaced by
what the new map says. So any map X (b, n, d) ↦ (b, n, d_out) can stand there, in every family.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from torch import Tensor

from howsmooth.errors import InputError
from howsmooth.models.calls import hidden_states
from howsmooth.models.model import Model


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

    # First in line: whoever else listens hears the replaced output.
    for handle in (attention.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
                   projection.register_forward_hook(leave, prepend=True)):
        stack.callback(handle.remove)
