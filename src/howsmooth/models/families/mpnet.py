"""MPNet: post-norm encoder, learnt positions, and a learnt bias per distance and head that all layers share.

Its attention does not ask transformers' registry; here it is made to.
"""

from __future__ import annotations

from types import MethodType

from torch import Tensor
from transformers import MPNetConfig, MPNetModel

from howsmooth.attention import Normalisation, SelfAttention
from howsmooth.models.hook import attention_forward

NETWORK = MPNetModel
UNUSED = ("pooler.",)
TOKENIZER = "microsoft/mpnet-base"


def default_config() -> MPNetConfig:
    return MPNetConfig(vocab_size=30527, max_position_embeddings=514)  # MPNet base: 12 layers, d = 768, 12 heads


def attention_modules(network: MPNetModel) -> list:
    return [block.attention.attn for block in network.encoder.layer]


def self_attention(network: MPNetModel, layer: int, positions: int | None) -> SelfAttention:
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
    norm = network.encoder.layer[layer - 1].output.LayerNorm if layer else network.embeddings.LayerNorm
    return Normalisation(norm.weight, norm.bias, norm.eps)


def through_registry(network: MPNetModel) -> None:
    for module in attention_modules(network):
        module.forward = MethodType(_forward, module)


def _forward(self, hidden_states, attention_mask=None, position_bias=None, output_attentions=False, **_):
    q, k, v = (
        project(hidden_states).unflatten(-1, (self.num_attention_heads, -1)).transpose(1, 2)
        for project in (self.q, self.k, self.v)
    )
    heads, _ = attention_forward(
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
