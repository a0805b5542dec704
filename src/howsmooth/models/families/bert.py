"""BERT: post-norm encoder (or decoder), learnt positions.

The map is attention with its output projection. The residual and the LayerNorm after it belong to the block.
"""

from __future__ import annotations

import torch
from transformers import BertConfig, BertModel

from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.errors import InputError

NETWORK = BertModel
UNUSED = ("pooler.",)  # applied to the last hidden state; checkpoints of masked language models do not have it
TOKENIZER = "google-bert/bert-base-uncased"


def default_config() -> BertConfig:
    """Return the shape of BERT base: 12 layers, d = 768, 12 heads, 512 positions."""
    return BertConfig()


def attention_modules(network: BertModel) -> list[torch.nn.Module]:
    """Return the attention module of each layer."""
    return [block.attention.self for block in network.encoder.layer]


def self_attention(network: BertModel, layer: int, positions: int | None) -> SelfAttention:
    """Return the attention map of a layer."""
    kind = getattr(network.config, "position_embedding_type", "absolute")
    if kind != "absolute":
        raise InputError(
            f"expected a BERT with absolute positions, got position_embedding_type={kind!r}; "
            "relative scores are not supported in this family"
        )
    block = network.encoder.layer[layer].attention
    module, output = block.self, block.output
    return SelfAttention(
        module.query.weight,
        module.key.weight,
        module.value.weight,
        output.dense.weight,
        bq=module.query.bias,
        bk=module.key.bias,
        bv=module.value.bias,
        bo=output.dense.bias,
        heads=module.num_attention_heads,
        scale=float(module.scaling),
        causal=bool(network.config.is_decoder),
    )


def post_norm(network: BertModel, layer: int) -> Normalisation:
    """Return the LayerNorm after attention and its residual."""
    norm = network.encoder.layer[layer].attention.output.LayerNorm
    return Normalisation(norm.weight, norm.bias, norm.eps)


def normalisation(network: BertModel, layer: int) -> Normalisation:
    """Return the LayerNorm before attention, which belongs to the layer below or to the embeddings."""
    norm = network.encoder.layer[layer - 1].output.LayerNorm if layer else network.embeddings.LayerNorm
    return Normalisation(norm.weight, norm.bias, norm.eps)
