"""Adapters: one small module per family for which a formula is faster, or the attention registry is not used.

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

import sys
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from transformers import MODEL_MAPPING, PreTrainedModel

from howsmooth.errors import InputError
from howsmooth.models.families import bert, bloom, falcon, generic, gpt2, llama, mpnet

FAMILIES: dict[str, ModuleType] = {
    "gpt2": gpt2,
    "bert": bert,
    "llama": llama,
    "mpnet": mpnet,
    "bloom": bloom,
    "falcon": falcon,
}


def family_of(config: Any, name: str) -> ModuleType:
    """Return the adapter for a transformers config, the generic one if the family has none.

    Raises:
        InputError: The attention of the family cannot be observed.
    """
    kind = getattr(config, "model_type", "")
    if kind in FAMILIES:
        return FAMILIES[kind]
    network = MODEL_MAPPING.get(type(config), None)
    if isinstance(network, type) and not config.sub_configs:  # can be checked before any weight is read
        _refuse_without_registry([network.__module__], kind, name)
    return generic


def check_registry(network: PreTrainedModel, adapter: ModuleType, name: str) -> None:
    """Raise InputError for a network in which no module uses transformers' attention registry, such as Mamba."""
    if adapter is generic:
        _refuse_without_registry({type(m).__module__ for m in network.modules()}, network.config.model_type, name)


def _refuse_without_registry(files: Iterable[str], kind: str, name: str) -> None:
    if not any(hasattr(sys.modules.get(file), "ALL_ATTENTION_FUNCTIONS") for file in files):
        raise InputError(
            f"model {name!r}: expected softmax attention behind transformers' attention registry, or one of the "
            f"families with an adapter ({', '.join(FAMILIES)}), got {kind!r}, whose attention, if it has any, cannot "
            "be reached; choose another model (howsmooth models), or build howsmooth.SelfAttention from its weights"
        )
