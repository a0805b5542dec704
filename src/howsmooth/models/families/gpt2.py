"""GPT-2: pre-norm, causal, learnt positions, q, k and v in one Conv1D."""

from __future__ import annotations

import torch
from transformers import GPT2Config, GPT2Model

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation

NETWORK = GPT2Model
UNUSED = ()
TOKENIZER = "openai-community/gpt2"


def default_config() -> GPT2Config:
    """Return the shape of GPT-2 small: 12 layers, d = 768, 12 heads, 1024 positions."""
    return GPT2Config()


def attention_modules(network: GPT2Model) -> list[torch.nn.Module]:
    """Return the attention module of each layer."""
    return [block.attn for block in network.h]


def self_attention(network: GPT2Model, layer: int, positions: int | None) -> SelfAttention:
    """Return the attention map of a layer."""
    module = network.h[layer].attn
    # Conv1D computes x @ weight: its weight is (in, out), the transpose of torch.nn.Linear's.
    wq, wk, wv = (part.T.contiguous() for part in module.c_attn.weight.chunk(3, dim=1))
    bq, bk, bv = module.c_attn.bias.chunk(3)
    return SelfAttention(
        wq,
        wk,
        wv,
        module.c_proj.weight.T.contiguous(),
        bq=bq,
        bk=bk,
        bv=bv,
        bo=module.c_proj.bias,
        heads=module.num_heads,
        scale=float(module.scaling),
        causal=getattr(network.config, "is_causal", True),
    )


def normalisation(network: GPT2Model, layer: int) -> Normalisation:
    """Return the LayerNorm before attention."""
    norm = network.h[layer].ln_1
    return Normalisation(norm.weight, norm.bias, norm.eps)
