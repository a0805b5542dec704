"""One small adapter per architecture family, where its own modules are not enough or a formula is faster.

An adapter is a module with
    NETWORK              the transformers class it understands
    UNUSED               parameter prefixes that no attention layer depends on
    TOKENIZER            the hub name of the tokenizer that goes with default_config()
and, unless it is the generic one,
    default_config()     the architecture at its real size, for models without weights
    attention_modules(network)          one module per layer; its first argument is what enters attention
    self_attention(network, layer, positions)   the same map as a `SelfAttention`, for that many positions
    normalisation(network, layer)       the `Normalisation` whose output enters attention at that layer
    through_registry(network)           only where the family does not ask transformers' attention registry by itself
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import ModuleType

from transformers import MODEL_MAPPING

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


def family_of(config, name: str) -> ModuleType:
    """Return the adapter for a transformers config, the generic one where there is no other."""
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(
            f"model {name!r}: expected plain floating point weights, got a checkpoint with a "
            "quantization_config; give the unquantised checkpoint or a GGUF file"
        )
    kind = getattr(config, "model_type", "")
    if kind in FAMILIES:
        return FAMILIES[kind]
    network = MODEL_MAPPING.get(type(config), None)
    if isinstance(network, type) and not config.sub_configs:  # known before any weight is read
        _refuse_without_registry([network.__module__], kind, name)
    return generic


def check_registry(network, adapter: ModuleType, name: str) -> None:
    """Refuse by name a network in which nothing asks transformers' attention registry, such as Mamba."""
    if adapter is generic:
        _refuse_without_registry({type(m).__module__ for m in network.modules()}, network.config.model_type, name)


def _refuse_without_registry(files: Iterable[str], kind: str, name: str) -> None:
    if not any(hasattr(sys.modules.get(file), "ALL_ATTENTION_FUNCTIONS") for file in files):
        raise InputError(
            f"model {name!r}: expected softmax attention behind transformers' attention registry, or one of the "
            f"families with an adapter ({', '.join(FAMILIES)}), got {kind!r}, whose attention, if it has any, cannot "
            "be reached; choose another model (howsmooth models), or build howsmooth.SelfAttention from its weights"
        )
