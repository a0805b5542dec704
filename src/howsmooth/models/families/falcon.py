"""Falcon: pre-norm, causal, attention and MLP in parallel; rotary positions or ALiBi; shared or grouped keys.

Its attention does not use transformers' attention registry; `use_registry` makes it do so.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor
from transformers import FalconConfig, FalconModel
from transformers.models.falcon.modeling_falcon import apply_rotary_pos_emb, build_alibi_tensor

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.attention.rotary import Rotary
from howsmooth.models.hook import attention_forward

NETWORK = FalconModel
UNUSED = ()
TOKENIZER = "tiiuae/falcon-rw-1b"


def default_config() -> FalconConfig:
    """Return the shape of Falcon-RW-1B."""
    return FalconConfig(
        vocab_size=50304,
        hidden_size=2048,
        num_hidden_layers=24,
        num_attention_heads=32,
        alibi=True,
        bias=True,
        multi_query=False,
        parallel_attn=False,
        new_decoder_architecture=False,
    )


def attention_modules(network: FalconModel) -> list[torch.nn.Module]:
    """Return the attention module of each layer."""
    return [block.self_attention for block in network.h]


def self_attention(network: FalconModel, layer: int, positions: int | None) -> SelfAttention:
    """Return the attention map of a layer."""
    module, config = network.h[layer].self_attention, network.config
    fused, out = module.query_key_value, module.dense
    wq, wk, wv = _split(module, fused.weight)
    bq, bk, bv = (None, None, None) if fused.bias is None else _split(module, fused.bias)
    rotary = score_bias = None
    if config.alibi:
        two = torch.ones(1, 2, device=wq.device)
        slopes = build_alibi_tensor(two, module.num_heads, torch.float32)[:, :, 1:].bfloat16()

        def score_bias(_: Tensor, j: Tensor) -> Tensor:  # the model computes these in bfloat16, whatever its dtype
            return module.inv_norm_factor * (slopes.to(j.device) * j).float()
    else:
        position = torch.arange(positions or config.max_position_embeddings, device=wq.device)[None]
        cos, sin = network.rotary_emb(wq.new_empty(1), position)
        rotary = Rotary(cos[0], sin[0])
    return SelfAttention(
        wq,
        wk,
        wv,
        out.weight,
        bq=bq,
        bk=bk,
        bv=bv,
        bo=out.bias,
        heads=module.num_heads,
        kv_heads=wk.shape[0] // module.head_dim,
        scale=module.inv_norm_factor,
        causal=True,
        rotary=rotary,
        score_bias=score_bias,
    )


def _split(module: Any, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows of q, k and v in the fused weight or bias: groups of queries, each with its key and value."""
    h = module.num_heads
    groups = module.num_kv_heads if module.new_decoder_architecture else 1 if module.multi_query else h
    t = t.unflatten(0, (groups, h // groups + 2, module.head_dim))
    return t[:, :-2].flatten(0, 2), t[:, -2].flatten(0, 1), t[:, -1].flatten(0, 1)


def normalisation(network: FalconModel, layer: int) -> Normalisation:
    """Return the LayerNorm before attention."""
    block = network.h[layer]
    norm = block.ln_attn if hasattr(block, "ln_attn") else block.input_layernorm
    return Normalisation(norm.weight, norm.bias, norm.eps)


def use_registry(network: FalconModel) -> None:
    """Make the attention modules call `attention_forward`."""
    for module in attention_modules(network):
        module.forward = MethodType(_forward, module)


def _forward(
    self: Any,
    hidden_states: Tensor,
    alibi: Tensor | None,
    attention_mask: Tensor | None,
    position_embeddings: Any = None,
    **_: Any,
) -> tuple[Tensor, None]:
    q, k, v = (t.transpose(1, 2) for t in self._split_heads(self.query_key_value(hidden_states)))
    bias = None
    if alibi is None:
        q, k = apply_rotary_pos_emb(q, k, *position_embeddings)
    else:
        bias = self.inv_norm_factor * alibi.view(len(hidden_states), self.num_heads, 1, -1)
    heads, _weights = attention_forward(
        self, q, k, v, attention_mask, scaling=self.inv_norm_factor, is_causal=True, position_bias=bias
    )
    return self.dense(heads.flatten(2)), None
