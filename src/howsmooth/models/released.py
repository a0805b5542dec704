"""The maps that the released scripts of "How Smooth Is Attention?" differentiate, where they are not the described one.

BERT on text           the module `attention`: output projection, residual and LayerNorm, called without a mask,
                       even where the tokens come from BERT run as a decoder
GPT-2, random weights  attention with dropout on, in the layers below as well
other models           attention; the scripts know no others
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from howsmooth.attention import SelfAttention
from howsmooth.models.model import Model


def drops_out(model: Model) -> bool:
    """Whether the scripts run this model in training mode: they never leave it where weights are not loaded."""
    return model.family == "gpt2" and model.source.get("kind") == "random"


def script_map(model: Model, layer: int, n: int) -> tuple[Callable[[Tensor], Tensor], str]:
    """The map of one layer on n tokens, and what it is; without dropout."""
    f = model.attention(layer, n)
    if model.family != "bert":
        return f, "attention"
    g, closing = without_mask(f), model._adapter.closing(model.network, layer)
    return lambda x: closing(x + g(x)), "attention with residual and LayerNorm, no mask"


def without_mask(f: SelfAttention) -> SelfAttention:
    return f.replaced(causal=False)


def dropped_out(model: Model, ids: Tensor, layer: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens x (n, d) that enter attention of a GPT-2 in training mode, and Jᵀf₁, Jᵀf₂ (n, d) there.

    J is the derivative under one draw of dropout, f₁ and f₂ are outputs under two others: each call of the map draws
    anew, which the scripts take no notice of.
    """
    network, module, seen = model.network, model.network.h[layer].attn, []
    handle = module.register_forward_pre_hook(
        lambda _module, args, kwargs: seen.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network.train()
        try:
            with torch.no_grad():
                network(ids[None])
            x = seen[0].detach().requires_grad_()
            y = module(x)[0]
            with torch.no_grad():
                others = [module(x)[0] for _ in range(2)]
            first, second = (torch.autograd.grad(y, x, other, retain_graph=True)[0] for other in others)
        finally:
            handle.remove()
            network.eval()
    return x.detach()[0], first[0], second[0]
