"""One small adapter per architecture family: where its attention sits, and what weights it has.

An adapter is a module with
    NETWORK              the transformers class it understands
    UNUSED               parameter prefixes that no attention layer depends on
    TOKENIZER            the hub name of the tokenizer that goes with default_config()
    default_config()     the architecture at its real size, for models without weights
    attention_modules(network)          one module per layer; its first argument is what enters attention
    self_attention(network, layer, positions)   the same map as a `SelfAttention`, for that many positions
    normalisation(network, layer)       the `Normalisation` whose output enters attention at that layer
"""

from __future__ import annotations

from types import ModuleType

from howsmooth.errors import InputError
from howsmooth.models.families import bert, gpt2, llama

FAMILIES: dict[str, ModuleType] = {"gpt2": gpt2, "bert": bert, "llama": llama}


def family_of(config, name: str) -> ModuleType:
    """Return the adapter for a transformers config, or refuse it by name."""
    kind = getattr(config, "model_type", None)
    if kind not in FAMILIES:
        raise InputError(
            f"model {name!r}: expected one of the families {', '.join(FAMILIES)}, got {kind!r}; "
            "choose a model of a supported family, or build howsmooth.SelfAttention from its weights"
        )
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(
            f"model {name!r}: expected plain floating point weights, got a checkpoint with a "
            "quantization_config; give the unquantised checkpoint or a GGUF file"
        )
    return FAMILIES[kind]
