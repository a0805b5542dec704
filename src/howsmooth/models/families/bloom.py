"""BLOOM: pre-norm, causal, and no positions but a bias per head that decreases with distance (ALiBi).

Its attention does not use transformers' attention registry; `use_registry` makes it do so.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import BloomConfig, BloomModel
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.models.hook import attention_forward

NETWORK = BloomModel
UNUSED = ()
TOKENIZER = "bigscience/bloom-560m"


def default_config() -> BloomConfig:
    """Return the shape of BLOOM-560m."""
    return BloomConfig(hidden_size=1024, n_layer=24, n_head=16)


def attention_modules(network: BloomModel) -> list[torch.nn.Module]:
    """Return the attention module of each layer."""
    return [block.self_attention for block in network.h]


def self_attention(network: BloomModel, layer: int, positions: int | None) -> SelfAttention:
    """Return the attention map of a layer."""
    module = network.h[layer].self_attention
    wq, wk, wv = module.query_key_value.weight.unflatten(0, (module.num_heads, 3, -1)).unbind(1)
    bq, bk, bv = module.query_key_value.bias.unflatten(0, (module.num_heads, 3, -1)).unbind(1)
    # The bias at key 1 is the slope. Biases differ from slope times distance by a constant in each row, which softmax
    # ignores.
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
    """Return the LayerNorm before attention."""
    norm = network.h[layer].input_layernorm
    return Normalisation(norm.weight, norm.bias, norm.eps)


def use_registry(network: BloomModel) -> None:
    """Make the attention modules call `attention_forward`."""
    for module in attention_modules(network):
        module.forward = MethodType(_forward, module)


def _forward(
    self: Any, hidden_states: Tensor, residual: Tensor, alibi: Tensor, attention_mask: Tensor | None, **_: Any
) -> tuple[Tensor, None]:
    q, k, v = self._reshape(self.query_key_value(hidden_states))
    heads, _weights = attention_forward(
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
