"""The maps that can be measured, each as a function of its input tokens.

f is attention with its output projection, N the normalisation whose output is the input of attention.

    attention   f                                 input: of attention
    head        one head of f, without the bias of the projection
    normed      f ∘ N                             input: of N
    block       pre-norm   x + g(f(N(x)))         input: of the layer
                post-norm  M(x + g(f(x))), M the norm that follows
    layer       the whole Transformer layer       input: of the layer
    norm        N                                 input: of N
    mlp         the MLP of the layer              input: of the MLP, after its norm
    mixer       what mixes the tokens: f, as the modules compute it, also where there is a formula

g is what some families apply between attention and the residual stream (Gemma 2 and 3 a second norm, DINOv2 a scale).
In a post-norm family N belongs to the layer below, or to the embeddings. In families that compute attention and MLP
in parallel (GPT-NeoX, Phi, Falcon) the block is the stream plus attention. Maps of the whole model are in
`howsmooth.models.model_maps`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.errors import InputError
from howsmooth.lazy import deferred
from howsmooth.models.calls import ModuleCall, first_tensor
from howsmooth.models.hook import detach_keys_and_values, restrict_to_head
from howsmooth.models.map_types import MAPS, MapChoice, check_layers, parse_map
from howsmooth.models.parts import Attention, MissingMap, Site
from howsmooth.models.tracing import keep_head, projected

if TYPE_CHECKING:
    from jaxtyping import Float

    from howsmooth.models.model import Model


@dataclass(frozen=True, eq=False)
class MapAt:
    """A map of a model and its input tokens, as `Model.map_at` returns them: `local_lipschitz(at.f, at.x)`.

    Attributes:
        f: A `SelfAttention` if the family has an adapter and the map is "attention" or "head"; otherwise a module that
            shares its weights with the model. `copy.deepcopy` it before you convert or train it.
        x: The input tokens, (n, d).
        map: A key of `MAPS`, with its argument.
        layer: The layer; None for the whole model.
        head: The head; None unless the map is "head".
        module: The module of the network that computes the layer's attention, or what is in its place.
    """

    f: SelfAttention | torch.nn.Module
    x: Float[Tensor, "n d"]
    map: str
    layer: int | None = None
    head: int | None = None
    module: torch.nn.Module | None = None

    def __call__(self) -> Tensor:
        """Return f(x)."""
        with torch.no_grad():
            return self.f(self.x)


class AttentionMap(torch.nn.Module):
    """The attention of one layer as the network itself computes it: x (n, d) ↦ (n, d_out), or one head of it."""

    def __init__(self, attention: Attention, heads: int, head: int | None = None) -> None:
        """Take the attention of a site, the number of heads of the model, and the head if only one is wanted."""
        super().__init__()
        heads = attention.heads or heads
        if head is not None and not 0 <= head < heads:
            raise InputError(f"expected a head from 0 to {heads - 1}, got {head}")
        self.attention, self.heads, self.selected = attention, heads, head
        self.call, self.projection, self.attends = attention.call, attention.projection, attention.attends
        if head is not None and not attention.direct:
            self._check_head(head)

    def head(self, index: int) -> AttentionMap:
        """Return one head. The heads sum to f(x) minus the bias of the projection."""
        return AttentionMap(self.attention, self.heads, index)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at x (n, d)."""
        x = self.call.batch(x)
        if self.selected is None:
            return projected(self.call, self.projection, x).flatten(0, -2)
        with self._one_head(self.selected):
            y = projected(self.call, self.projection, x).flatten(0, -2)
        bias = getattr(self.projection, "bias", None)
        return y if bias is None else y - bias

    def _one_head(self, head: int) -> AbstractContextManager[None]:
        return restrict_to_head(head) if self.attends else keep_head(head, self.heads)

    def _check_head(self, head: int) -> None:
        """Raise InputError unless a head alone fills its own channels, with its values beside the others."""
        whole = self._projection_input()
        with self._one_head(head):
            alone = self._projection_input()
        width = whole.shape[-1] // self.heads
        expected = torch.zeros_like(whole)
        own = slice(head * width, (head + 1) * width)
        expected[..., own] = whole[..., own]
        if alone.shape != whole.shape or not torch.allclose(alone, expected, rtol=1e-3, atol=1e-5):
            raise InputError(
                f"head: expected {self.heads} heads that enter the output projection side by side, got something else "
                f"between softmax and projection in {type(self.call.module).__name__}; measure the attention"
            )

    def _projection_input(self) -> Tensor:
        inputs: list[Tensor] = []
        handle = self.projection.register_forward_pre_hook(lambda _module, args: inputs.append(args[0]))
        try:
            with torch.no_grad():
                projected(self.call, self.projection, self.call.x)
        finally:
            handle.remove()
        return inputs[0]


class NormedMap(torch.nn.Module):
    """Attention after its normalisation: f ∘ N."""

    def __init__(self, f: AttentionMap, norm: torch.nn.Module) -> None:
        """Take f and N."""
        super().__init__()
        self.f, self.norm, self.attends = f, norm, f.attends

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at x (n, d)."""
        return self.f(self.norm(x))


class BlockMap(torch.nn.Module):
    """Attention with its residual connection: x + g(f(N(x))), or M(x + g(f(x)))."""

    def __init__(
        self, f: AttentionMap | NormedMap, after: tuple[torch.nn.Module, ...], post_norm: torch.nn.Module | None
    ) -> None:
        """Take f (or f ∘ N), the modules of g, and M."""
        super().__init__()
        self.f, self.after, self.post_norm = f, torch.nn.Sequential(*after), post_norm
        self.attends = f.attends

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at x (n, d)."""
        y = x + self.after(self.f(x))
        return y if self.post_norm is None else self.post_norm(y)


class CallMap(torch.nn.Module):
    """A captured call of a module: x (n, d) ↦ (n, d_out)."""

    def __init__(self, call: ModuleCall) -> None:
        """Take the call."""
        super().__init__()
        self.call = call

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at x (n, d)."""
        return self.call(self.call.batch(x)).flatten(0, -2)


class LayerMap(CallMap):
    """The whole Transformer layer."""

    def __init__(self, site: Site) -> None:
        """Take the site of the layer."""
        super().__init__(site.layer)
        self.attends = site.softmax is not None and site.softmax.attends


class TokenwiseMap(torch.nn.Module):
    """Modules that are applied to tokens one after the other: a normalisation, or an MLP."""

    def __init__(self, *modules: torch.nn.Module) -> None:
        """Take the modules, in their order."""
        super().__init__()
        self.steps = torch.nn.ModuleList(modules)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at x (n, d)."""
        y = x.unsqueeze(0)
        for step in self.steps:
            y = first_tensor(step(y), step)
        return y.reshape(x.shape[0], -1)


class OwnTokenMap(torch.nn.Module):
    """A map of one layer, with keys and values detached: its derivative is that of each output in its own token.

    The values are those of the map. The residual stream, norms and the MLP act on each token separately, so that only
    keys and values couple the tokens; without them the derivative is one block (d_out, d) per token.
    """

    def __init__(self, f: torch.nn.Module) -> None:
        """Take a map of one layer, as `Model.map_at` returns it for a family without an adapter."""
        super().__init__()
        if not isinstance(f, (AttentionMap, NormedMap, BlockMap, LayerMap)):
            raise InputError(f"expected a map of one layer as a module, got {type(f).__name__}")
        if not f.attends:
            raise InputError(
                "expected a layer whose attention goes through transformers' attention registry, got one that computes "
                "it by its own code, or has none: its keys and values cannot be held fixed; measure the map itself"
            )
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at x (n, d)."""
        with detach_keys_and_values():
            return self.f(x)


class NetworkMap(torch.nn.Module):
    """All layers: from the input of layer 0 to the last hidden state."""

    def __init__(self, network: torch.nn.Module, inputs: dict[str, Any], site: Site) -> None:
        """Take the network, the keyword arguments of its forward pass, and the site of layer 0."""
        super().__init__()
        self.network, self.first, self.first_layer = network, site.layer, site.layer.module
        self.inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        """Compute the map at x (n, d)."""
        pending = [self.first.batch(x)]

        def replace(_module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not pending:  # ALBERT calls this module once per layer: only the first input is replaced
                return None
            new = pending.pop()
            return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": new})

        # Prepended: pre-hooks of the layer itself are part of the map.
        handle = self.first_layer.register_forward_pre_hook(replace, with_kwargs=True, prepend=True)
        try:
            return first_tensor(self.network(**self.inputs), self.network).squeeze(0)
        finally:
            handle.remove()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> NetworkMap:
        """Convert the floating inputs together with the weights."""
        self.inputs = {
            key: fn(value) if isinstance(value, Tensor) and value.is_floating_point() else value
            for key, value in self.inputs.items()
        }
        return super()._apply(fn, recurse)


def map_at(
    model: Model, given: dict[str, Any], sites: dict[int, Site], choice: MapChoice, layer: int | None, head: int | None
) -> tuple[torch.nn.Module, Tensor]:
    """Return a map and its input tokens.

    Args:
        model: The model.
        given: The keyword arguments that the network ran on.
        sites: The sites of its layers: that of `layer`, or those that `site_numbers` names.
        choice: The map.
        layer: The layer; None for a map of the whole model.
        head: The head, for the map "head".

    Returns:
        f, and its input (b, n, d).

    Raises:
        InputError: The layer has no such map.
    """
    take = deferred(choice.type.take)
    if layer is None:
        return cast(tuple[torch.nn.Module, Tensor], take(model, given, sites, choice))
    where = f"layer {layer} of {model.name}"
    check_tokens(sites[layer], choice, where)
    return cast(tuple[torch.nn.Module, Tensor], take(sites[layer], model.heads, head, where, choice.argument))


def site_numbers(model: Model, choice: MapChoice, layer: int | None) -> list[int]:
    """Return the layers whose sites a map needs."""
    if layer is not None:
        return [layer]
    first, last = (0, model.layers - 1) if choice.name == "chain" else (0, 0)
    last = choice.layers[1] if choice.layers else last
    check_layers(choice, model.layers, model.name)
    return list(range(first, last + 1))


def attention_map(site: Site, heads: int, head: int | None, where: str, _: str) -> tuple[torch.nn.Module, Tensor]:
    """Return attention with its output projection, or one head of it, and its input."""
    return AttentionMap(site.require_softmax(), heads, head), site.attention.x


def normed_map(site: Site, heads: int, head: int | None, where: str, _: str) -> tuple[torch.nn.Module, Tensor]:
    """Return attention after its normalisation, and its input."""
    attention = site.require_softmax()
    if site.norm is None or site.norm_input is None:
        raise _missing_norm("normed", where)
    return NormedMap(AttentionMap(attention, heads, head), site.norm), site.norm_input


def layer_map(site: Site, heads: int, head: int | None, where: str, _: str) -> tuple[torch.nn.Module, Tensor]:
    """Return the whole Transformer layer, and its input."""
    return LayerMap(site), site.layer.x


def block_map(site: Site, heads: int, head: int | None, where: str, _: str) -> tuple[torch.nn.Module, Tensor]:
    """Return attention with its residual connection, and its input."""
    softmax = site.require_softmax()
    attention = AttentionMap(softmax, heads, head)
    if not softmax.has_residual:
        raise MissingMap(f"block: expected attention to be added to what enters the layer, got another way in {where}")
    f = NormedMap(attention, site.norm) if site.norm is not None and site.norm_in_layer else attention
    return BlockMap(f, softmax.after, softmax.post_norm), site.layer.x


def norm_map(site: Site, heads: int, head: int | None, where: str, _: str) -> tuple[torch.nn.Module, Tensor]:
    """Return the normalisation whose output enters attention, and its input."""
    if site.norm is None or site.norm_input is None:
        raise _missing_norm("norm", where)
    return TokenwiseMap(site.norm), site.norm_input


def mlp_map(site: Site, heads: int, head: int | None, where: str, _: str) -> tuple[torch.nn.Module, Tensor]:
    """Return the MLP of the layer, and its input."""
    if site.mlp is None:
        raise MissingMap(f"mlp: expected modules whose output is added to the tokens, got none in {where}")
    return TokenwiseMap(*site.mlp.modules), site.mlp.x


def mixer_map(site: Site, heads: int, head: int | None, where: str, _: str) -> tuple[torch.nn.Module, Tensor]:
    """Return what mixes the tokens of a layer, as its modules compute it, and its input."""
    if site.softmax is not None:
        return AttentionMap(site.softmax, heads), site.attention.x
    if site.mixer is None:
        raise MissingMap(f"mixer: expected a module of the layer that mixes its tokens, got none in {where}")
    return CallMap(site.mixer), site.mixer.x


def _missing_norm(name: str, where: str) -> MissingMap:
    return MissingMap(f"{name}: expected a normalisation whose output enters attention, got none in {where}")


def check_tokens(site: Site, choice: MapChoice, where: str) -> None:
    """Raise InputError unless the map takes tokens (1, n, d) or (n, d), and depends on no others."""
    inner = site.mixer if choice.name == "mixer" else None if choice.type.enters == "layer" else site.attention
    x = (inner or site.layer).x
    if x.ndim not in (2, 3):
        raise MissingMap(
            f"{choice}: expected tokens (1, n, d) to enter {where}, got a tensor of shape {tuple(x.shape)}"
        )
    others = site.softmax.other_sources if site.softmax is not None and choice.type.own_tokens else ""
    if others:
        raise MissingMap(
            f"{choice}: expected an attention whose queries, keys and values come from the same tokens, got "
            f"{others} from elsewhere in {where}; measure the layer or the model"
        )


def check_map(map: str, layer: int | None, head: int | None) -> MapChoice:
    """Return the map that a name means; raise InputError unless layer and head go with it."""
    choice = parse_map(map)
    if (head is None) == (choice.name == "head"):
        raise InputError(f'expected head= with map "head" and only there, got map {map!r} and head {head!r}')
    if (layer is None) == choice.type.per_layer:
        whole = " and ".join(f'"{name}"' for name, found in MAPS.items() if not found.per_layer)
        raise InputError(f"expected a layer for every map but {whole}, got map {map!r} and layer {layer!r}")
    return choice


def read_norm(module: torch.nn.Module | None, x: Tensor | None, where: str) -> Normalisation:
    """Return the LayerNorm or RMSNorm that a module computes, checked at x (b, n, d).

    Raises:
        InputError: There is no module, or it computes neither.
    """
    if module is None or x is None:
        raise InputError(f"expected a normalisation whose output enters attention, got none at {where}")
    eps = next((e for name in ("eps", "variance_epsilon") if isinstance(e := getattr(module, name, None), float)), 0.0)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    expected = module(x)
    for gain in (weight, 1 + weight):  # Gemma stores the gain minus one
        for centred in (True, False):
            norm = Normalisation(gain.detach(), None if bias is None else bias.detach(), eps, centred)
            gap = (norm(x) - expected).abs().max()
            # Some modules compute in float32 whatever their input is.
            if gap <= 1e3 * max(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps / 10) * (
                1 + expected.abs().max()
            ):
                return norm
    raise InputError(
        f"expected a LayerNorm or an RMSNorm in front of attention, got a {type(module).__name__} that is neither, at "
        f"{where}"
    )
