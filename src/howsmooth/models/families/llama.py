"""Llama: pre-norm (RMSNorm), causal, rotary positions, grouped key/value heads."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaModel

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.attention.rotary import Rotary
from howsmooth.errors import InputError

NETWORK = LlamaModel
UNUSED = ()
TOKENIZER = "HuggingFaceTB/SmolLM2-135M"


def default_config() -> LlamaConfig:
    """Return the shape of SmolLM2-135M; the library's default has seven billion parameters."""
    return LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 100000.0},
    )


def attention_modules(network: LlamaModel) -> list[torch.nn.Module]:
    """Return the attention module of each layer."""
    return [block.self_attn for block in network.layers]


def self_attention(network: LlamaModel, layer: int, positions: int | None) -> SelfAttention:
    """Return the attention map of a layer."""
    module, config = network.layers[layer].self_attn, network.config
    weight = module.q_proj.weight
    if positions is None and network.rotary_emb.rope_type == "longrope":
        raise InputError(
            "expected a length: this model's rotary frequencies (longrope) depend on it; "
            "call model.attention(layer, n) with the number of tokens"
        )
    positions = positions or config.max_position_embeddings
    # The model's own rotary embedding: all its scaling rules apply.
    position = torch.arange(positions, device=weight.device)[None]
    cos, sin = network.rotary_emb(weight.new_empty(1), position)
    return SelfAttention(
        weight,
        module.k_proj.weight,
        module.v_proj.weight,
        module.o_proj.weight,
        bq=module.q_proj.bias,
        bk=module.k_proj.bias,
        bv=module.v_proj.bias,
        bo=module.o_proj.bias,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        scale=float(module.scaling),
        causal=getattr(config, "is_causal", True),
        rotary=Rotary(cos[0], sin[0]),
    )


def normalisation(network: LlamaModel, layer: int) -> Normalisation:
    """Return the RMSNorm before attention."""
    norm = network.layers[layer].input_layernorm
    return Normalisation(norm.weight, eps=norm.variance_epsilon, centred=False)
