"""Which map of a layer is measured: the kinds, each as a function of the tokens that enter it.

f is attention with its output projection, N the normalisation whose output enters it.

    attention   f                                 tokens: what enters attention
    head        one head of f, the others silent, no bias of the projection
    normed      f ∘ N                             tokens: what enters N
    block       pre-norm   x + g(f(N(x)))         tokens: what enters the layer
                post-norm  M(x + g(f(x))), M the norm that follows
    layer       the whole Transformer layer
    model       all layers and the final norm     tokens: what enters layer 0, embeddings and positions included

g is what a family puts between attention and the residual stream (Gemma 2 and 3 a second norm, DINOv2 a scale), most
nothing. In a post-norm family N belongs to the layer below, or to the embeddings. Where attention and MLP run side
by side (GPT-NeoX, Phi, Falcon) the block is the stream plus attention alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from howsmooth.attention import Normalisation, SelfAttention
from howsmooth.errors import InputError
from howsmooth.models.anatomy import Call, Site, first
from howsmooth.models.hook import only_head, what_is_seen_held

if TYPE_CHECKING:
    from jaxtyping import Float


KINDS = ("attention", "head", "normed", "block", "layer", "model")


@dataclass(frozen=True, eq=False)
class MapAt:
    """A map of a model and the tokens that enter it: `local_lipschitz(at.f, at.x)`.

    f: a `SelfAttention` where the family has an adapter and the kind is attention or head, else a module that shares
    its weights with the model: `copy.deepcopy` it before you convert or train it.
    x: (n, d). layer: None for the whole model. head: None unless the kind is head.
    """

    f: SelfAttention | torch.nn.Module
    x: Float[Tensor, "n d"]
    kind: str
    layer: int | None = None
    head: int | None = None

    def __call__(self) -> Tensor:
        """f(x)."""
        with torch.no_grad():
            return self.f(self.x)


class AttentionMap(torch.nn.Module):
    """f of one layer as the network itself computes it: x (n, d) ↦ (n, d_out), or one `head` of it."""

    def __init__(self, call: Call, projection: torch.nn.Module, heads: int, head: int | None = None):
        super().__init__()
        if head is not None and not 0 <= head < heads:
            raise InputError(f"expected a head from 0 to {heads - 1}, got {head}")
        self.call, self.projection, self.heads, self.one = call, projection, heads, head
        self.inside = any(module is projection for module in call.module.modules())

    def head(self, index: int) -> AttentionMap:
        """Head `index` alone. All heads add up to f(X) less the bias of the projection."""
        return AttentionMap(self.call, self.projection, self.heads, index)

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(0)
        if self.one is None:
            return self._project(x).squeeze(0)
        with only_head(self.one):
            y = self._project(x).squeeze(0)
        bias = getattr(self.projection, "bias", None)
        return y if bias is None else y - bias

    def _project(self, x: Tensor) -> Tensor:
        if not self.inside:
            return self.projection(self.call(x))
        # The module may add more to the projection's output (ALBERT: residual and norm): taken where it arises.
        seen: list[Tensor] = []
        handle = self.projection.register_forward_hook(lambda _module, _args, output: seen.append(output))
        try:
            self.call(x)
        finally:
            handle.remove()
        return seen[0]


class NormedMap(torch.nn.Module):
    """f ∘ N."""

    def __init__(self, f: AttentionMap, norm: torch.nn.Module):
        super().__init__()
        self.f, self.norm = f, norm

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.norm(x))


class BlockMap(torch.nn.Module):
    """x + g(f(N(x))), or M(x + g(f(x)))."""

    def __init__(self, f: torch.nn.Module, after: tuple[torch.nn.Module, ...], closing: torch.nn.Module | None):
        super().__init__()
        self.f, self.after, self.closing = f, torch.nn.Sequential(*after), closing

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.after(self.f(x))
        return y if self.closing is None else self.closing(y)


class LayerMap(torch.nn.Module):
    """The whole layer."""

    def __init__(self, site: Site):
        super().__init__()
        self.call = site.layer

    def forward(self, x: Tensor) -> Tensor:
        return self.call(x.unsqueeze(0)).squeeze(0)


class OwnMap(torch.nn.Module):
    """A map of one layer whose derivative is that of each output in its own token, what it sees held fixed.

    Values are those of the map. The stream, norms and the MLP work on each token alone, so that keys and values are all
    that has to be held: what is left of the derivative is one block (d_out, d) for each token.
    """

    def __init__(self, f: torch.nn.Module):
        super().__init__()
        if not isinstance(f, (AttentionMap, NormedMap, BlockMap, LayerMap)):
            raise InputError(f"expected a map of one layer as a module, got {type(f).__name__}")
        self.f = f

    def forward(self, x: Tensor) -> Tensor:
        with what_is_seen_held():
            return self.f(x)


class NetworkMap(torch.nn.Module):
    """From what enters layer 0 to the last hidden state."""

    def __init__(self, network: torch.nn.Module, inputs: dict, site: Site):
        super().__init__()
        self.network, self.entrance = network, site.layer.module
        self.inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        waiting = [x.unsqueeze(0)]

        def replace(_module, args, kwargs):
            if not waiting:  # ALBERT comes by here once per layer
                return None
            new = waiting.pop()
            return ((new, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": new})

        handle = self.entrance.register_forward_pre_hook(replace, with_kwargs=True)
        try:
            return first(self.network(**self.inputs), self.network).squeeze(0)
        finally:
            handle.remove()

    def _apply(self, fn, *more, **others):
        self.inputs = {
            key: fn(value) if isinstance(value, Tensor) and value.is_floating_point() else value
            for key, value in self.inputs.items()
        }
        return super()._apply(fn, *more, **others)


def map_at(site: Site, kind: str, heads: int, head: int | None, where: str) -> tuple[torch.nn.Module, Tensor]:
    """Return f and the tokens (b, n, d) that enter it, for every kind but "model". `where` names the layer."""
    check_tokens(site, kind, where)
    if kind == "layer":
        return LayerMap(site), site.layer.x
    attention = AttentionMap(site.attention, site.projection, heads, head)
    if kind in ("attention", "head"):
        return attention, site.attention.x
    if kind == "normed":
        if site.norm is None:
            raise InputError(
                f"normed: expected a normalisation whose output enters attention, got none in {where}; "
                "measure the attention or the block"
            )
        return NormedMap(attention, site.norm), site.before_norm
    if not site.residual:
        raise InputError(
            f"block: expected attention to be added to what enters the layer, got another way in {where}; "
            "measure the layer"
        )
    f = NormedMap(attention, site.norm) if site.norm_in_layer else attention
    return BlockMap(f, site.after, site.closing), site.layer.x


def check_tokens(site: Site, kind: str, where: str) -> None:
    """Refuse a map that is none of one sequence of tokens (1, n, d)."""
    x = site.layer.x if kind in ("layer", "block", "model") else site.attention.x
    if x.ndim != 3:
        raise InputError(
            f"{kind}: expected tokens (1, n, d) to enter {where}, got several streams of shape "
            f"{tuple(x.shape)}; measure the attention"
        )
    if site.elsewhere and kind not in ("layer", "model"):
        raise InputError(
            f"{kind}: expected an attention whose queries, keys and values come from the same tokens, got "
            f"{site.elsewhere} from elsewhere in {where}; measure the layer or the model"
        )


def check_kind(kind: str, layer: int | None, head: int | None) -> None:
    """Refuse what does not go together."""
    if kind not in KINDS:
        raise InputError(f"expected a kind of map among {', '.join(KINDS)}, got {kind!r}")
    if (head is None) == (kind == "head"):
        raise InputError(f'expected head= with kind "head" and only there, got kind {kind!r} and head {head!r}')
    if (layer is None) == (kind != "model"):
        raise InputError(f'expected a layer for every kind but "model", got kind {kind!r} and layer {layer!r}')


def read_norm(module: torch.nn.Module | None, x: Tensor, where: str) -> Normalisation:
    """Return the LayerNorm or RMSNorm that agrees with the module at x (b, n, d); refuse one that none agrees with."""
    if module is None:
        raise InputError(f"expected a normalisation whose output enters attention, got none at {where}")
    eps = next((e for name in ("eps", "variance_epsilon") if isinstance(e := getattr(module, name, None), float)), 0.0)
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    weight = x.new_ones(x.shape[-1]) if weight is None else weight
    want = module(x)
    for gain in (weight, 1 + weight):  # Gemma stores the gain less one
        for centred in (True, False):
            norm = Normalisation(gain.detach(), None if bias is None else bias.detach(), eps, centred)
            gap = (norm(x) - want).abs().max()
            # Some modules compute in float32 whatever they are given.
            if gap <= 1e3 * max(torch.finfo(x.dtype).eps, torch.finfo(torch.float32).eps / 10) * (1 + want.abs().max()):
                return norm
    raise InputError(
        f"expected a LayerNorm or an RMSNorm in front of attention, got a {type(module).__name__} that is neither, at "
        f"{where}"
    )
