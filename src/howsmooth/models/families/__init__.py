"""Adapters: one small module per family for which a formula is faster.

An adapter has

    NETWORK             the transformers class that it supports
    UNUSED              prefixes of parameters that no attention layer depends on
    TOKENIZER           the name on the hub of the tokenizer for default_config()

and, unless it is the generic one,

    default_config()                            the architecture at its real size, for random weights
    attention_modules(network)                  the attention module of each layer; hidden states are its first argument
    self_attention(network, layer, positions)   the attention map as a `SelfAttention`, for that many positions
    normalisation(network, layer)               the `Normalisation` whose output is the input of attention
    use_registry(network)                       only if the family does not use transformers' attention registry
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from howsmooth.models.families import bert, bloom, falcon, generic, gpt2, llama, mpnet

FAMILIES: dict[str, ModuleType] = {
    "gpt2": gpt2,
    "bert": bert,
    "llama": llama,
    "mpnet": mpnet,
    "bloom": bloom,
    "falcon": falcon,
}


def family_of(config: Any) -> ModuleType:
    """Return the adapter for a transformers config, the generic one if the family has none."""
    return FAMILIES.get(getattr(config, "model_type", ""), generic)
