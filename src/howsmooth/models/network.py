"""A transformers network as it is run here: the stack of layers that is measured, and a copy with `attend` inside.

The copy shares the weights and has its own config, so that the network that was given stays as it is.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from transformers import PreTrainedModel
from transformers.utils import logging

from howsmooth.errors import InputError
from howsmooth.models.hook import NAME, NAME_WITH_TABLES, register

# For networks that are two in one: what the part is called in the library's families.
_INNER = {"vision": ("vision_model", "vision_tower", "visual"), "text": ("text_model", "language_model")}
_MODALITY = {"input_ids": "text", "pixel_values": "vision", "input_features": "audio", "input_values": "audio"}
# A bias per distance or a falling one reaches any length.
UNLIMITED = 2**31 - 1


@dataclass(frozen=True, eq=False)
class Part:
    """network: what is run. scope: the submodule whose layers count, "" for all. positions: None where images or
    sounds decide the length.
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
    """Return the part that `asked` names; None is the whole network, or the encoder of an encoder-decoder."""
    inner = {
        part: found
        for part, names in _INNER.items()
        for n in names
        if isinstance(found := getattr(network, n, None), PreTrainedModel)
    }
    stacks = ("encoder", "decoder") if network.config.is_encoder_decoder else ()
    known = stacks or tuple(inner)
    if asked not in known and (asked is not None or inner):
        choice = " or ".join(f"part={part!r}" for part in known) or "no part, since it has one stack of layers"
        cross = "; cross attention between the two is no self-map of tokens" if stacks else ""
        raise InputError(f"model {name!r}: expected {choice}, got {asked!r}{cross}")
    if asked in inner:
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
        raise InputError(
            f"model {name!r}: expected one number of heads and one width for all layers of a "
            f"{config.model_type}, got {heads} and {width}; choose a model whose layers are alike"
        )
    if min(layers, heads, width) < 1:
        raise InputError(
            f"model {name!r}: expected at least one layer, one head and one channel, got {layers} layers, "
            f"{heads} heads and a width of {width}; repair the config"
        )
    vocabulary = getattr(config, "vocab_size", None) if modality == "text" else None
    return Part(
        network,
        "decoder" if stack == "decoder" else "",
        modality,
        layers,
        width,
        heads,
        _positions(network, stack) if modality == "text" else None,
        vocabulary,
    )


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


def fast_twin(network: PreTrainedModel, adapter=None) -> PreTrainedModel:
    """Return the network with the fast op inside, sharing its weights, in evaluation mode and without gradients.

    The network that was given keeps its config, its attention and its gradients. An adapter of a family that does not
    ask the attention registry has `through_registry(network)`, which makes the twin's modules do so.
    """
    register()
    # What deepcopy finds in the memo it takes as it is: tensors are shared, everything around them is new.
    memo: dict = {id(p): torch.nn.Parameter(p.detach(), requires_grad=False) for p in network.parameters()}
    memo |= {id(b): b.detach() for b in network.buffers()}
    twin = copy.deepcopy(network, memo).eval()
    with quiet_transformers():
        _use_plain_experts(twin)
        if hasattr(adapter, "through_registry"):
            twin.config._attn_implementation = NAME  # the family's own check would refuse what the adapter adds
            adapter.through_registry(twin)
        else:
            _choose_attention(twin, NAME)
    for module in twin.modules():  # sub-networks may have configs of their own
        config = getattr(module, "config", None)
        if config is not None and getattr(config, "use_cache", None):
            config.use_cache = False
    return twin


def spell_out_masks(twin: PreTrainedModel) -> bool:
    """Give a twin's attention its masks as tables; False where it has them already, or asks for no masks."""
    if twin.config._attn_implementation != NAME:
        return False
    with quiet_transformers():
        _choose_attention(twin, NAME_WITH_TABLES)
    return True


def _choose_attention(twin: PreTrainedModel, name: str) -> None:
    try:
        twin.set_attn_implementation(name)
    except (ValueError, NotImplementedError, ImportError) as error:
        raise InputError(
            f"expected a network whose attention can be chosen, got {type(twin).__name__} "
            f"({str(error).splitlines()[0]}); choose another family (howsmooth models)"
        ) from error


def _use_plain_experts(twin: PreTrainedModel) -> None:
    """Mixtures of experts as a loop: the grouped product knows no float64 and no forward mode."""
    if not hasattr(twin, "set_experts_implementation"):
        return
    try:
        twin.set_experts_implementation("eager")
    except RuntimeError as error:
        raise InputError(
            f"expected a network whose experts can be computed one by one, got {type(twin).__name__} "
            f'({str(error).splitlines()[0]}); load it with experts_implementation="eager"'
        ) from error


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence transformers and the hub's bars inside the block, and restore what was set before."""
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
            logging.enable_progress_bar()  # switches the hub's on as well
        (enable_progress_bars if hub_bars else disable_progress_bars)()
