"""Which stack of layers of a network is measured, and its sizes: encoder or decoder, vision or text."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from howsmooth.errors import InputError

# For networks that are two in one: what the part is called in the library's families.
_INNER = {"vision": ("vision_model", "vision_tower", "visual"), "text": ("text_model", "language_model")}
_MODALITY = {"input_ids": "text", "pixel_values": "vision", "input_features": "audio", "input_values": "audio"}
# A bias per distance or a falling one reaches any length.
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Part:
    """network: what is run. scope: the submodule whose layers count, "" for all. positions: None where images or
    sounds decide the length."""

    network: PreTrainedModel
    scope: str
    modality: str
    layers: int
    width: int
    heads: int
    positions: int | None
    vocabulary: int | None


def choose_part(network: PreTrainedModel, asked: str | None, name: str) -> Part:
    """Return the part that `asked` names; None is the whole network, or the encoder of an encoder-decoder."""
    inner = {part: found for part, names in _INNER.items() for n in names
             if isinstance(found := getattr(network, n, None), PreTrainedModel)}
    stacks = ("encoder", "decoder") if network.config.is_encoder_decoder else ()
    known = stacks or tuple(inner)
    if asked not in known and (asked is not None or inner):
        choice = " or ".join(f"part={part!r}" for part in known) or "no part, since it has one stack of layers"
        cross = "; cross attention between the two is no self-map of tokens" if stacks else ""
        raise InputError(f"model {name!r}: expected {choice}, got {asked!r}{cross}")
    if inner:
        network = inner[asked]
    stack = (asked or "encoder") if stacks else None
    if stack == "encoder":
        network = network.encoder
    config = network.config
    modality = "text" if stack == "decoder" else _MODALITY.get(network.main_input_name, network.main_input_name)
    try:
        layers = _first(config, f"{stack}_layers", f"num_{stack}_layers", "num_hidden_layers")
        heads = _first(config, f"{stack}_attention_heads", "num_attention_heads")
        width = _first(config, "hidden_size")
    except AttributeError as error:
        raise InputError(
            f"model {name!r}: expected a config with layers, heads and a width, got {config.model_type!r} ({error}); "
            "this family has stages of different sizes and is not supported"
        ) from None
    if not all(isinstance(size, int) for size in (layers, heads, width)):
        raise InputError(f"model {name!r}: expected one number of heads and one width for all layers of a "
                         f"{config.model_type}, got {heads} and {width}; choose a model whose layers are alike")
    if min(layers, heads, width) < 1:
        raise InputError(f"model {name!r}: expected at least one layer, one head and one channel, got {layers} layers, "
                         f"{heads} heads and a width of {width}; repair the config")
    vocabulary = getattr(config, "vocab_size", None) if modality == "text" else None
    return Part(network, "decoder" if stack == "decoder" else "", modality, layers, width, heads,
                _positions(network, stack) if modality == "text" else None, vocabulary)


def _first(config, *names: str):
    for name in names:
        if getattr(config, name, None) is not None:
            return getattr(config, name)
    raise AttributeError(f"no {names[-1]}")


def _positions(network: PreTrainedModel, stack: str | None) -> int:
    config = network.config
    names = ("max_target_positions",) * (stack == "decoder") + ("max_position_embeddings", "n_positions")
    limit = next((v for name in names if isinstance(v := getattr(config, name, None), int)), UNLIMITED)
    if config.model_type in ("t5", "mt5", "umt5", "bloom"):
        limit = UNLIMITED
    # RoBERTa and its kin count positions from the one after padding: the table is longer than the longest text.
    tables = (m for key, m in network.named_modules() if key.endswith("position_embeddings"))
    padded = [m.padding_idx for m in tables if isinstance(m, torch.nn.Embedding) and m.padding_idx is not None]
    return limit - (padded[0] + 1 if padded else 0)
