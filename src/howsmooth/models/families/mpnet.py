"""MPNet: post-norm encoder, learnt positions, and a learnt bias per distance and head that all layers share.

Its attention does not use transformers' attention registry; `use_registry` makes it do so.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import MPNetConfig, MPNetModel

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.models.hook import attention_forward

NETWORK = MPNetModel
UNUSED = ("pooler.",)
TOKENIZER = "microsoft/mpnet-base"


def default_config() -> MPNetConfig:
    """Return the shape of MPNet base: 12 layers, d = 768, 12 heads."""
    return MPNetConfig(vocab_size=30527, max_position_embeddings=514)


def attention_modules(network: MPNetModel) -> list[torch.nn.Module]:
    """Return the attention module of each layer."""
    return [block.attention.attn for block in network.encoder.layer]


def self_attention(network: MPNetModel, layer: int, positions: int | None) -> SelfAttention:
    """Return the attention map of a layer."""
    module = network.encoder.layer[layer].attention.attn
    encoder = network.encoder
    table = encoder.relative_attention_bias.weight.detach()  # (buckets, heads)

    def score_bias(i: Tensor, j: Tensor) -> Tensor:
        return table[encoder.relative_position_bucket(j - i)].permute(2, 0, 1)

    return SelfAttention(
        module.q.weight,
        module.k.weight,
        module.v.weight,
        module.o.weight,
        bq=module.q.bias,
        bk=module.k.bias,
        bv=module.v.bias,
        bo=module.o.bias,
        heads=module.num_attention_heads,
        scale=module.attention_head_size**-0.5,
        score_bias=score_bias,
    )


def normalisation(network: MPNetModel, layer: int) -> Normalisation:
    """Return the LayerNorm before attention, which belongs to the layer below or to the embeddings."""
    norm = network.encoder.layer[layer - 1].output.LayerNorm if layer else network.embeddings.LayerNorm
    return Normalisation(norm.weight, norm.bias, norm.eps)


def use_registry(network: MPNetModel) -> None:
    """Make the attention modules call `attention_forward`."""
    for module in attention_modules(network):
        module.forward = MethodType(_forward, module)


def _forward(
    self: Any,
    hidden_states: Tensor,
    attention_mask: Tensor | None = None,
    position_bias: Tensor | None = None,
    output_attentions: bool = False,
    **_: Any,
) -> tuple[Tensor]:
    q, k, v = (
        project(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
        for project in (self.q, self.k, self.v)
    )
    heads, _weights = attention_forward(
        self,
        q,
        k,
        v,
        attention_mask,
        scaling=self.attention_head_size**-0.5,
        is_causal=False,
        position_bias=position_bias,
    )
    return (self.o(heads.flatten(2)),)
