"""BLOOM: pre-norm, causal, and instead of positions a bias that falls with distance (ALiBi), by head.

Its attention does not ask transformers' registry; here it is made to.
"""

from __future__ import annotations

from types import MethodType

import torch
from torch import Tensor
from transformers import BloomConfig, BloomModel
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from howsmooth.attention import Normalisation, SelfAttention
from howsmooth.models.hook import attention_forward

NETWORK = BloomModel
UNUSED = ()
TOKENIZER = "bigscience/bloom-560m"


def default_config() -> BloomConfig:
    return BloomConfig(hidden_size=1024, n_layer=24, n_head=16)  # the shape of BLOOM-560m


def attention_modules(network: BloomModel) -> list:
    return [block.self_attention for block in network.h]


def self_attention(network: BloomModel, layer: int, positions: int | None) -> SelfAttention:
    module = network.h[layer].self_attention
    wq, wk, wv = module.query_key_value.weight.unflatten(0, (module.num_heads, 3, -1)).unbind(1)
    bq, bk, bv = module.query_key_value.bias.unflatten(0, (module.num_heads, 3, -1)).unbind(1)
    # The bias at key 1 is the slope. Rows differ from true distances by a constant, which softmax drops.
    two = torch.ones(1, 2, device=wq.device)
    slopes = build_alibi_tensor(two, module.num_heads, torch.float32)[:, :, 1:]

    def score_bias(_: Tensor, j: Tensor) -> Tensor:
        return slopes.to(j.device) * j

    return SelfAttention(
        wq.flatten(0, 1),
        wk.flatten(0, 1),
        wv.flatten(0, 1),
        module.dense.weight,
        bq=bq.flatten(),
        bk=bk.flatten(),
        bv=bv.flatten(),
        bo=module.dense.bias,
        heads=module.num_heads,
        scale=module.inv_norm_factor,
        causal=True,
        score_bias=score_bias,
    )


def normalisation(network: BloomModel, layer: int) -> Normalisation:
    norm = network.h[layer].input_layernorm
    return Normalisation(norm.weight, norm.bias, norm.eps)


def through_registry(network: BloomModel) -> None:
    for module in attention_modules(network):
        module.forward = MethodType(_forward, module)


def _forward(self, hidden_states, residual, alibi, attention_mask, **_):
    q, k, v = self._reshape(self.query_key_value(hidden_states))
    heads, _ = attention_forward(
        self,
        q,
        k,
        v,
        attention_mask,
        scaling=self.inv_norm_factor,
        is_causal=True,
        position_bias=alibi.view(len(hidden_states), self.num_heads, 1, -1),
    )
    return self.dense(heads.flatten(2)) + residual, None
