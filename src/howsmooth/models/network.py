"""Transformers networks: the stack of layers that is measured, and a copy that computes attention by `attend`.

The copy shares the weights and has its own config: the given network is never modified.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers import PreTrainedModel
from transformers.utils import logging

from howsmooth.errors import InputError
from howsmooth.models.hook import NAME, NAME_WITH_TABLES, register

# Names of the parts of networks that consist of two, in the library's families.
_PARTS = {
    "vision": ("vision_model", "vision_tower", "visual", "vision_encoder", "image_encoder"),
    "text": ("text_model", "language_model", "text_encoder"),
    "audio": ("audio_model", "audio_tower", "audio_encoder"),
}
_MODALITY = {"input_ids": "text", "pixel_values": "vision", "input_features": "audio", "input_values": "audio"}
# Positions of a family whose bias depends on the distance and is defined for any length.
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Part:
    """A stack of layers of a network.

    Attributes:
        network: The network to run.
        scope: The name of the submodule that contains the layers; "" for the whole network.
        modality: "text", "vision" or "audio".
        layers: The number of layers.
        width: The width of the tokens, of the widest layer.
        heads: The number of attention heads that every layer has; 0 if there are none.
        positions: The largest number of tokens; None if the size of an image or a sound determines it.
        vocabulary: The number of tokens of the vocabulary; None unless the modality is text.
    """

    network: PreTrainedModel
    scope: str
    modality: str
    layers: int
    width: int
    heads: int
    positions: int | None
    vocabulary: int | None


def choose_part(network: PreTrainedModel, asked: str | None, name: str) -> Part:
    """Return one stack of layers of a network.

    Args:
        network: A transformers network.
        asked: "encoder" or "decoder", "vision" or "text"; None for the whole network, or for the encoder of an
            encoder-decoder.
        name: The name of the model, for error messages.

    Raises:
        InputError: The network has no such part, or its config does not give its sizes.
    """
    inner = {
        part: found
        for part, names in _PARTS.items()
        for n in names
        if isinstance(found := getattr(network, n, None), PreTrainedModel)
    }
    stacks = ("encoder", "decoder") if network.config.is_encoder_decoder else ()
    known = stacks or tuple(inner)
    whole = () if known else (_MODALITY.get(network.main_input_name),)  # the one part of a network without parts
    if asked not in known + whole and (asked is not None or inner):
        choice = " or ".join(f"part={part!r}" for part in known) or "no part, since it has one stack of layers"
        choice += f" (--part {' or '.join(known)})" if known else ""
        cross = "; cross attention is the map cross of the decoder" if stacks else ""
        raise InputError(f"model {name!r}: expected {choice}, got {asked!r}{cross}")
    if asked in inner:
        network = inner[asked]
        if network.get_output_embeddings() is not None:  # BLIP-2 has a whole language model, with its head
            network = network.base_model
    stack = (asked or "encoder") if stacks else None
    if stack == "encoder":
        encoder = getattr(network, "encoder", None) or network.get_encoder()
        if not isinstance(encoder, PreTrainedModel) or encoder is network:
            raise InputError(
                f"model {name!r}: expected an encoder that is a transformers model, got {type(encoder).__name__}; "
                "in Python, give the part that you want to measure"
            )
        network = encoder
    config = network.config
    modality = "text" if stack == "decoder" else _MODALITY.get(network.main_input_name, network.main_input_name)
    modality = asked if asked in inner and asked is not None else modality
    if stack == "decoder" and isinstance(own := network.get_decoder(), PreTrainedModel):
        config = config if _number_of_layers(config, stack) else own.config
    layers, heads, width = _sizes(config, stack, name)
    scope = ""
    if stack == "decoder":  # its name in the network: Florence-2 has its decoder inside a language model
        decoder = network.get_decoder()
        scope = next((key for key, module in network.named_modules() if module is decoder), "decoder")
    vocabulary = getattr(config, "vocab_size", None) if modality == "text" else None
    return Part(
        network,
        scope,
        modality,
        layers,
        width,
        heads,
        _positions(network, stack) if modality == "text" else None,
        vocabulary,
    )


def _sizes(config: Any, stack: str | None, name: str) -> tuple[int, int, int]:
    """Return the number of layers, the smallest number of heads and the largest number of channels of a stage.

    Raises:
        InputError: The config does not say how many layers there are, or how wide they are.
    """
    stages = getattr(config, "depths", None)
    layers = _first(
        config,
        f"{stack}_layers",
        f"num_{stack}_layers",
        "num_hidden_layers",
        "num_layers",
        "n_layers",
        "depth",
        "layers",
    )
    layers = sum(stages) if isinstance(stages, (list, tuple)) else layers
    heads = _first(config, f"{stack}_attention_heads", "num_attention_heads", "num_heads")
    width = _first(config, "hidden_size", "hidden_sizes", "embed_dims", "embed_dim", "d_model", "dim", "n_embd")
    heads = min(heads) if isinstance(heads, (list, tuple)) and heads else heads
    width = max(width) if isinstance(width, (list, tuple)) and width else width
    if not (_is_int(layers) and _is_int(width)):
        missing = "a number of layers" if not _is_int(layers) else "a width"
        raise InputError(
            f"model {name!r}: expected a config that gives its layers and their width, got {config.model_type!r} "
            f"without {missing}; choose another model (howsmooth models)"
        )
    heads = heads if _is_int(heads) else 0 if heads is None else -1
    if min(layers, width) < 1 or heads < 0 or (heads == 0 and getattr(config, "num_attention_heads", None) == 0):
        raise InputError(
            f"model {name!r}: expected at least one layer, one head and one channel, got {layers} layers, "
            f"{heads} heads and a width of {width}; repair the config"
        )
    return layers, heads, width


def _number_of_layers(config: Any, stack: str | None) -> Any:
    names = (f"{stack}_layers", f"num_{stack}_layers", "num_hidden_layers", "num_layers", "n_layers", "depth", "layers")
    return _first(config, *names)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _first(config: Any, *names: str) -> Any:
    """Return the first attribute of a config that is set; None if none is."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _positions(network: PreTrainedModel, stack: str | None) -> int:
    """Return the largest number of tokens."""
    config = network.config
    names = ("max_target_positions",) * (stack == "decoder") + ("max_position_embeddings", "n_positions")
    limit = next((v for name in names if isinstance(v := getattr(config, name, None), int)), UNLIMITED)
    if config.model_type in ("t5", "mt5", "umt5", "bloom"):
        limit = UNLIMITED
    # RoBERTa and similar families start positions after the padding index: their tables are longer than any text.
    tables = (m for key, m in network.named_modules() if key.endswith("position_embeddings"))
    padded = [m.padding_idx for m in tables if isinstance(m, torch.nn.Embedding) and m.padding_idx is not None]
    return limit - (padded[0] + 1 if padded else 0)


def instrumented_copy(network: PreTrainedModel, adapter: ModuleType | None = None) -> PreTrainedModel:
    """Return a copy of a network that computes attention by `attend`, in evaluation mode and without gradients.

    The copy shares the weights. The given network keeps its config, its attention and its gradients.

    Args:
        network: A transformers network.
        adapter: The adapter of its family. If the family does not use transformers' attention registry, the adapter has
            a function `use_registry(network)` that makes the modules of the copy use it.
    """
    register()
    # deepcopy takes what is in the memo as it is: tensors are shared, everything else is copied.
    memo: dict[int, Any] = {id(p): torch.nn.Parameter(p.detach(), requires_grad=False) for p in network.parameters()}
    memo |= {id(b): b.detach() for b in network.buffers()}
    copied = copy.deepcopy(network, memo).eval()
    with quiet_transformers():
        _use_eager_experts(copied)
        if adapter is not None and hasattr(adapter, "use_registry"):
            copied.config._attn_implementation = NAME  # set directly: the family's own setter refuses all names
            adapter.use_registry(copied)
        else:
            _set_attention(copied, NAME)
    for module in copied.modules():  # sub-networks may have configs of their own
        config = getattr(module, "config", None)
        if config is not None and getattr(config, "use_cache", None):
            config.use_cache = False
    return copied


def use_4d_masks(network: PreTrainedModel) -> bool:
    """Let an instrumented copy use 4D masks only; return False if it does so already, or has no choice of masks."""
    if network.config._attn_implementation != NAME:
        return False
    with quiet_transformers():
        _set_attention(network, NAME_WITH_TABLES)
    return True


def _set_attention(network: PreTrainedModel, name: str) -> None:
    try:
        network.set_attn_implementation(name)
    except (ValueError, NotImplementedError, ImportError) as error:
        raise InputError(
            f"expected a network whose attention can be chosen, got {type(network).__name__} "
            f"({str(error).splitlines()[0]}); choose another family (howsmooth models)"
        ) from error
    # A layer that was copied into the network (`copy.deepcopy`) has a config of its own.
    configs = [module.config for module in network.modules() if isinstance(module, PreTrainedModel)]
    chosen = {type(config) for config in configs if config._attn_implementation == name}
    for module in network.modules():
        config: Any = getattr(module, "config", None)
        if type(config) in chosen:
            config._attn_implementation = name


def _use_eager_experts(network: PreTrainedModel) -> None:
    """Compute mixtures of experts in a loop: the grouped product supports neither float64 nor forward mode."""
    if not hasattr(network, "set_experts_implementation"):
        return
    try:
        network.set_experts_implementation("eager")
    except RuntimeError as error:
        raise InputError(
            f"expected a network whose experts can be computed one by one, got {type(network).__name__} "
            f'({str(error).splitlines()[0]}); in Python, load it with experts_implementation="eager"'
        ) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence the logs, warnings and progress bars of transformers and the hub inside the context."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()  # enables the hub's as well
        (enable_progress_bars if hub_bars else disable_progress_bars)()
