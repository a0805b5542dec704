"""What the released scripts of "How Smooth Is Attention?" differentiate, and where; some differs from the paper's text.

    BERT on text           the module `attention`: output projection, residual and LayerNorm, called without a mask,
                           even if the tokens come from BERT run as a decoder
    GPT-2, random weights  attention with dropout active, in the layers below as well
    other models           attention; the scripts support no others

Adversarial inputs are built from an eigenvector of one head's A, for GPT-2 from a matrix sliced along the wrong axis.

Reference:
    castin2024, code released with the paper.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.models.model import Model


def uses_dropout(model: Model) -> bool:
    """Return whether the scripts run this model in training mode: they do if its weights are random."""
    return model.family == "gpt2" and model.source.get("origin") == "random"


def script_map(model: Model, layer: int, n: int) -> tuple[Callable[[Tensor], Tensor], str]:
    """Return the map of one layer on n tokens, without dropout, and its description for records."""
    f = model.attention(layer, n)
    if model.family != "bert":
        return f, "attention"
    g = without_causal_mask(f) if isinstance(f, SelfAttention) else f
    norm = model._adapter.post_norm(model.network, layer)
    return lambda x: norm(x + g(x)), "attention with residual and LayerNorm, no mask"


def without_causal_mask(f: SelfAttention) -> SelfAttention:
    """Return the same attention with every token visible to every other."""
    return f.replaced(causal=False)


def adversarial_map(family: str, f: SelfAttention) -> SelfAttention:
    """Return what they differentiate at adversarial input: of BERT `attention.self`, without a mask even as a decoder.

    Args:
        family: The family of the model.
        f: The layer.
    """
    if family != "bert":
        return f
    return without_causal_mask(SelfAttention(f.wq, f.wk, f.wv, bq=f.bq, bk=f.bk, bv=f.bv, heads=f.heads, scale=f.scale))


def adversarial_points(family: str, f: SelfAttention, head: int) -> tuple[Tensor, Tensor]:
    """Return the first token and the point of all others in the scripts' adversarial input, for R = 1.

    They are (−u, u) or (u, u/2) for a unit eigenvector u of A. NumPy computes u, as in the scripts: with a query bias
    its sign, which is arbitrary, matters. Of GPT-2 the scripts slice the rows of a matrix whose heads are columns.

    Args:
        family: The family of the model, "bert" or "gpt2".
        f: The layer.
        head: The head.

    Returns:
        Two vectors (d,), float64.
    """
    k = f.wq.shape[0] // f.heads
    rows = slice(head * k, (head + 1) * k)
    wq, wk = (f.wq.T, f.wk.T) if family == "gpt2" else (f.wq, f.wk)  # GPT-2: as if Conv1D were Linear
    values, vectors = np.linalg.eig((f.scale * wk[rows].T.float() @ wq[rows].float()).numpy())
    is_real = np.isreal(values)
    values, real_vectors = values[is_real].real, torch.from_numpy(vectors[:, is_real].real).double()
    use_largest = values.max() > -8 * values.min()
    u = real_vectors[:, int(values.argmax() if use_largest else values.argmin())]
    return (u, u / 2) if use_largest else (-u, u)


def vjps_under_dropout(model: Model, ids: Tensor, layer: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the input x of attention in a GPT-2 in training mode, and the products Jᵀf₁ and Jᵀf₂ at x.

    J is the derivative under one draw of dropout, f₁ and f₂ are outputs under two others: every call of the map draws a
    new dropout mask, which the scripts do not account for.

    Args:
        model: A GPT-2.
        ids: Token numbers, (n,).
        layer: The layer.
        seed: The seed of dropout.

    Returns:
        x, Jᵀf₁ and Jᵀf₂, each (n, d).
    """
    network, module, captured = model.network, model.network.h[layer].attn, []
    handle = module.register_forward_pre_hook(
        lambda _module, args, kwargs: captured.append(args[0] if args else kwargs["hidden_states"]), with_kwargs=True
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        network.train()
        try:
            with torch.no_grad():
                network(ids[None])
            x = captured[0].detach().requires_grad_()
            y = module(x)[0]
            with torch.no_grad():
                others = [module(x)[0] for _ in range(2)]
            first, second = (torch.autograd.grad(y, x, other, retain_graph=True)[0] for other in others)
        finally:
            handle.remove()
            network.eval()
    return x.detach()[0], first[0], second[0]
