"""`load`: a model by name, from a folder or a file, or from a transformers network."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from transformers import (
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, cached_file

from howsmooth.errors import InputError, first_line
from howsmooth.models.families import FAMILIES, family_of
from howsmooth.models.identity import file_states, model_identity
from howsmooth.models.inputs import Processor, find_tokenizer
from howsmooth.models.locations import ModelLocation, commit_of, locate
from howsmooth.models.memory import check_device, free_memory
from howsmooth.models.model import Model
from howsmooth.models.network import choose_part, quiet_transformers
from howsmooth.models.weights import ADAPTER, adapter_error, check_counts, check_fits, shards
from howsmooth.quantised import quantised_error, refuse_quantised

_WRAPPED = ("_orig_mod", "module", "model")  # what torch.compile, parallel modules and others call what they wrap
_RANDOM = "random:"


def load(
    name: str | os.PathLike[str] | PreTrainedModel,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    seed: int = 0,
    cache_dir: str | os.PathLike[str] | None = None,
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None = None,
    part: str | None = None,
    causal: bool = False,
) -> Model:
    """Load a model in evaluation mode and without gradients.

    Args:
        name: One of, in this order: "minilm", "smollm2" or "mpnet" (from installed packages); "random:" followed by
            "gpt2", "bert", "llama" or any other name (that architecture with random weights); a .gguf file; a
            .safetensors file with attention layers of GPT-2; a folder with a config.json; a name on the Hugging Face
            Hub. Or a transformers model, which is used as it is and not modified.
        dtype: The dtype of the weights; float32 by default.
        device: The device; the CPU by default.
        revision: The branch, tag or commit of a model on the hub.
        trust_remote_code: Run code that comes with the model.
        allow_pickle: Load weights that are not safetensors.
        seed: The seed of random weights.
        cache_dir: The folder for dequantised GGUF files; by default $HOWSMOOTH_CACHE, or ~/.cache/howsmooth.
        tokenizer: A tokenizer, or the name or folder to read it from; by default the model's own.
        part: The stack of layers to use if there are two: "encoder" (the default) or "decoder" of an encoder-decoder,
            "vision" or "text" of a model of both.
        causal: Run a BERT as a decoder, with a causal mask.

    Returns:
        The model.

    Raises:
        InputError: The model does not exist, cannot be read, is not supported, or an argument does not apply to it.

    Example:
        >>> import howsmooth
        >>> howsmooth.load("minilm")
        Model('minilm', bert, 6 layers, d = 384, 12 heads, 512 positions, torch.float32, cpu)
    """
    if isinstance(name, PreTrainedModel):
        if causal:
            raise InputError(
                "expected causal only with a model that is loaded by name, got a transformers model; make "
                "it from a config with is_decoder=True"
            )
        given = name
        network, adapter, label, location = inspect_network(given, dtype=dtype, device=device, revision=revision)
        location = replace(location, trust_remote_code=trust_remote_code)  # of a tokenizer that is named
        return _build_model(network, adapter, label, location, tokenizer, cache_dir, part, given.state_dict)
    if not isinstance(name, (str, os.PathLike)) or not os.fspath(name):
        what = "an empty one" if isinstance(name, str) else f"an object of type {type(name).__name__}"
        raise InputError(
            f"expected the name of a model, a folder or a file, or a transformers model, got {what}; {_remedy(name)}"
        )
    name = os.fspath(name)
    dtype, device = check_dtype_and_device(dtype or torch.float32, device or "cpu")

    if name.endswith(".safetensors"):
        return _load_attention_file(name, dtype, device, revision=revision, tokenizer=tokenizer, part=part)

    read_head: Callable[[], dict[str, torch.Tensor]] = dict  # with random weights, a head must be tied to the embedding
    if name.startswith(_RANDOM):
        network, adapter, location = _random_network(name, seed, cache_dir, revision, trust_remote_code, causal)
        with torch.no_grad():
            for parameter in network.parameters():  # not .to(dtype): rotary frequencies must stay float32
                parameter.data = parameter.data.to(dtype)
    else:
        location = locate(name, revision, cache_dir, trust_remote_code=trust_remote_code)
        network, adapter = _pretrained_network(name, location, dtype, allow_pickle, causal)
        read_head = partial(_head_weights, name, location, dtype, allow_pickle)
    network = network.to(device).eval().requires_grad_(False)
    return _build_model(network, adapter, name, location, tokenizer, cache_dir, part, read_head)


def _remedy(given: object) -> str:
    """Return what to load in place of an object that is not a transformers model."""
    if not isinstance(given, torch.nn.Module):
        return "try 'minilm'"
    if hasattr(given, "get_base_model"):  # peft's low-rank updates are in the wrapped model
        inside = ".get_base_model()"
    else:
        inside = next((f".{name}" for name in _WRAPPED if isinstance(getattr(given, name, None), PreTrainedModel)), "")
    return (
        f"give {inside}, the transformers model inside of it" if inside else "give the transformers model inside of it"
    )


def _load_attention_file(name: str, dtype: torch.dtype, device: torch.device, **given: object) -> Model:
    from howsmooth.models.gpt2_file import AttentionFile

    not_allowed = [option for option, value in given.items() if value is not None]
    if not_allowed:
        raise InputError(f"expected no {not_allowed[0]} with a file of attention layers, which has none; leave it out")
    return AttentionFile(name, name, dtype=dtype, device=device)


def _build_model(
    network: PreTrainedModel,
    adapter: ModuleType,
    name: str,
    location: ModelLocation,
    tokenizer: str | os.PathLike[str] | PreTrainedTokenizerBase | None,
    cache_dir: str | os.PathLike[str] | None,
    part: str | None,
    read_head: Callable[[], dict[str, torch.Tensor]],
) -> Model:
    """Check the weights, find the tokenizer, and return the model."""
    _check_finite(network, name)
    chosen = choose_part(network, part, name)
    found, missing, origin = None, f"it takes {chosen.modality}", None
    if chosen.vocabulary is not None:
        found, missing, origin = find_tokenizer(tokenizer, location, chosen.vocabulary, cache_dir)
    source = {**location.source, "tokenizer": origin, **({} if part is None else {"part": part})}
    return Model(
        network,
        adapter,
        name=name,
        tokenizer=found,
        no_tokenizer=missing,
        source=source,
        part=part,
        processor=Processor(location),
        read_head=read_head,
    )


def _pretrained_network(
    name: str, location: ModelLocation, dtype: torch.dtype, allow_pickle: bool, causal: bool
) -> tuple[PreTrainedModel, ModuleType]:
    """Read a checkpoint."""
    config = _read_config(name, location)
    _check_files(name, location, config, allow_pickle)
    if getattr(config, "quantization_config", None) is not None:
        raise quantised_error("its config.json has a quantization_config", f"model {name!r}")
    adapter = family_of(config)
    if causal:
        _make_causal(config, name, location)
    _check_memory(config, name, location, dtype)
    with _loading(name, location, allow_pickle), quiet_transformers():
        network, report = location.read(
            AutoModel,
            config=config,
            dtype=dtype,
            use_safetensors=None if allow_pickle else True,
            output_loading_info=True,
        )
    absent = sorted(key for key in report["missing_keys"] if not key.startswith(adapter.UNUSED))
    if absent:  # transformers would use random numbers instead
        raise InputError(
            f"model {name!r}: expected all weights of a {config.model_type}, got none for {absent[0]} "
            f"({len(absent)} missing); the checkpoint is incomplete or of another model"
        )
    check_class(network, adapter, name)
    if location.is_hub:
        location.source["revision"] = commit_of(name, location.revision)
    return network, adapter


def _check_files(name: str, location: ModelLocation, config: PreTrainedConfig, allow_pickle: bool) -> None:
    """Raise InputError for an adapter, and for weights that are not safetensors: an index may name any file."""
    files: Sequence[Path] = location.weights
    if location.is_hub:
        named = getattr(config, "transformers_weights", None) or SAFE_WEIGHTS_INDEX_NAME
        with _loading(name, location), quiet_transformers():
            if _hub_file(location, ADAPTER) is not None:
                raise adapter_error(name)
            index = _hub_file(location, named) if named.endswith(".index.json") else Path(named)
            files = [] if index is None else [index] if index.suffix != ".json" else shards(index, index.parent)
    pickles = [] if allow_pickle else [file.name for file in files if file.suffix != ".safetensors"]
    if pickles:
        raise InputError(
            f"cannot load {name!r} ({location.tried}): expected weights in safetensors, got {pickles[0]}; convert "
            "them, or, if you trust them, give allow_pickle=True (--allow-pickle)"
        )


def _hub_file(location: ModelLocation, file: str) -> Path | None:
    """Return a file of a model on the hub, or None if it has no such file."""
    found = cached_file(
        location.path,
        file,
        revision=location.revision,
        local_files_only=location.local_only,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    return None if found is None else Path(found)


def _read_config(name: str, location: ModelLocation) -> PreTrainedConfig:
    """Read a config; its numbers are checked before a config object is made of them."""
    with _loading(name, location), quiet_transformers():
        raw, _ = PreTrainedConfig.get_config_dict(
            location.path, local_files_only=location.local_only, revision=location.revision
        )
        check_counts(raw, name)
        return location.read(AutoConfig)


def _check_memory(config: PreTrainedConfig, name: str, location: ModelLocation, dtype: torch.dtype) -> None:
    """Raise InputError if the weights that a config declares do not fit into the free memory of this machine."""
    with torch.random.fork_rng(devices=[]), _loading(name, location), quiet_transformers(), torch.device("meta"):
        network = AutoModel.from_config(copy.deepcopy(config), trust_remote_code=location.trust_remote_code)
    weights = sum(parameter.numel() for parameter in network.parameters())
    kind = str(dtype).removeprefix("torch.")
    check_fits(weights * dtype.itemsize, free_memory(), name, f"its {weights:,} weights in {kind}")


def _head_weights(
    name: str, location: ModelLocation, dtype: torch.dtype, allow_pickle: bool
) -> dict[str, torch.Tensor]:
    """Return the weights that a checkpoint has as a language model: `AutoModel` does not load the head."""
    with _loading(name, location, allow_pickle), quiet_transformers():
        whole, report = location.read(
            AutoModelForCausalLM, dtype=dtype, use_safetensors=None if allow_pickle else True, output_loading_info=True
        )
    return {key: value for key, value in whole.state_dict().items() if key not in report["missing_keys"]}


def _random_network(
    name: str,
    seed: int,
    cache_dir: str | os.PathLike[str] | None,
    revision: str | None,
    trust_remote_code: bool,
    causal: bool,
) -> tuple[PreTrainedModel, ModuleType, ModelLocation]:
    """Build an architecture with the library's own initialisation, drawn from `seed`."""
    inner = name.removeprefix(_RANDOM)
    if not inner:
        raise InputError(
            f"expected 'random:' and an architecture, got {name!r}; give random:{', random:'.join(FAMILIES)} "
            "or random: and the name or folder of a model"
        )
    if inner in FAMILIES:
        config = FAMILIES[inner].default_config()
        location = ModelLocation(
            None,
            {"origin": "random"},
            local_only=True,
            tokenizer=FAMILIES[inner].TOKENIZER,
            trust_remote_code=trust_remote_code,
        )
    else:
        location = locate(inner, revision, cache_dir, trust_remote_code=trust_remote_code, weights=False)
        config = _read_config(name, location)
        location.source.update(origin="random", architecture=location.source["origin"])
        location.source.pop("sha256", None)  # those weights are not the ones in use
    adapter = family_of(config)
    if causal:
        _make_causal(config, name, location)
    spread = getattr(config, "initializer_range", None)
    location.source.update(weights=f"random, seed {seed}", seed=seed, initializer_range=spread)
    _check_memory(config, name, location, torch.float32)
    # The library draws from the global generator: seed it here, and restore its state afterwards.
    with torch.random.fork_rng(devices=[]), _loading(name, location), quiet_transformers():
        torch.default_generator.manual_seed(seed)
        network = AutoModel.from_config(config, dtype=torch.float32, trust_remote_code=trust_remote_code)
    check_class(network, adapter, name)
    return network, adapter, location


def _make_causal(config: Any, name: str, location: ModelLocation) -> None:
    """Change the config of a BERT so that it runs as a decoder."""
    if config.model_type != "bert":
        raise InputError(
            f"expected a BERT to run under a causal mask, got {name!r}, a {config.model_type}; leave "
            "causal out: decoders have their mask anyway, other encoders cannot be given one"
        )
    config.is_decoder, config.use_cache = True, False
    location.source["causal"] = True


def _check_finite(network: PreTrainedModel, name: str) -> None:
    """Raise InputError if a weight is NaN or infinite."""
    for key, parameter in network.named_parameters():
        # One pass without a temporary tensor: if any entry is NaN or infinite, so is the minimum or the maximum.
        if parameter.numel() and not all(torch.isfinite(extreme) for extreme in parameter.aminmax()):
            raise InputError(
                f"model {name!r}: expected finite weights, got NaN or infinity in {key} ({parameter.dtype}); "
                "fetch the weights again, or load them in a wider dtype"
            )


def check_dtype_and_device(dtype: torch.dtype | str, device: torch.device | str) -> tuple[torch.dtype, torch.device]:
    """Return dtype and device as torch objects, after a small computation with them; raise InputError if it fails."""
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype.removeprefix("torch."), dtype)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"expected a floating point dtype, got {dtype!r}; give float64, float32, bfloat16 or float16")
    device = check_device(device)
    try:
        probe = torch.ones(2, 2, dtype=dtype, device=device)
        torch.softmax(probe @ probe, -1).sum().item()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"expected a dtype that the device can compute with, got {dtype} on {device}; use float32"
        ) from error
    return dtype, device


@contextmanager
def _loading(name: str, location: ModelLocation, allow_pickle: bool = True) -> Iterator[None]:
    """Turn any exception of the loading libraries into an InputError that names what was tried."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # loaders raise OSError, ValueError, RuntimeError, KeyError, their own…
        reason = first_line(error)
        if location.is_hub and location.local_only:
            reason = "nothing there"  # the library's message is about a connection that was not attempted
        remedy = location.remedy
        pickled = not location.is_hub and location.path and not any(Path(location.path).glob("*.safetensors"))
        if not allow_pickle and (pickled or "safetensors" in reason):
            remedy = (
                "convert the weights to safetensors, or, if you trust them, give allow_pickle=True "
                "(--allow-pickle)"
                f"{'; ' + remedy if location.is_hub else ''}"
            )
        raise InputError(f"cannot load {name!r} ({location.tried}): {reason}; {remedy}") from error


def inspect_network(
    network: PreTrainedModel,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    revision: str | None = None,
) -> tuple[PreTrainedModel, ModuleType, str, ModelLocation]:
    """Return the base model of a transformers model, without a head, with its adapter, name and location.

    Raises:
        InputError: It is quantised, in training mode or spread over devices, its class is not supported, or dtype,
            device or revision is given.
    """
    kind = type(network).__name__
    name = getattr(network.config, "_name_or_path", "") or kind
    refuse_quantised(network, f"a {kind}")
    if any(module.training for module in network.modules()):
        raise InputError(f"expected a {kind} in evaluation mode, got one in training mode; call its .eval() first")
    if (dtype, device, revision) != (None, None, None):
        raise InputError(
            f"expected no dtype, device or revision beside a {kind}, which has its own, got "
            f"{', '.join(str(given) for given in (dtype, device, revision) if given is not None)}; "
            "leave it out, and move or convert the model yourself (its .to)"
        )
    adapter = family_of(network.config)
    base = _without_head(network)
    check_class(base, adapter, name)
    _check_single_device(base, name)
    source = {"origin": "object", "class": kind, "weights": "as given"}
    return base, adapter, name, ModelLocation(None, source, local_only=True)


def _without_head(network: PreTrainedModel) -> PreTrainedModel:
    """Return the network if `AutoModel` builds its class (DINOv3's `base_model` lacks embeddings), else its base."""
    bare = MODEL_MAPPING.get(type(network.config), ())
    return network if type(network) in (bare if isinstance(bare, tuple) else (bare,)) else network.base_model


def check_class(network: PreTrainedModel, adapter: ModuleType, name: str) -> None:
    """Raise InputError unless the network is of the class that the adapter supports."""
    if not isinstance(network, adapter.NETWORK):
        raise InputError(
            f"model {name!r}: expected a {adapter.NETWORK.__name__}, got a {type(network).__name__}; "
            "its code is not the family's own, so its attention cannot be read"
        )


def _check_single_device(network: PreTrainedModel, name: str) -> None:
    """Raise InputError unless all weights are on one device."""
    devices = sorted({str(parameter.device) for parameter in network.parameters()})
    if len(devices) > 1 or devices == ["meta"]:
        raise InputError(
            f"model {name!r}: expected all weights on one device, got them on {', '.join(devices)}; load it "
            "without a device_map"
        )


_model_cache: dict[str, Model] = {}  # load arguments -> model; at most one entry, or two that are compared


def _cache_key(load_arguments: dict[str, Any]) -> str:
    names = [name for name in (load_arguments["name"], load_arguments.get("tokenizer")) if name]
    return repr((sorted(load_arguments.items()), [file_states(name) for name in names]))


def cached_model(
    load_arguments: dict[str, Any], identity: dict[str, Any] | None = None, *, beside: dict[str, Any] | None = None
) -> Model:
    """Load a model, or return it if it is the last one that this process loaded.

    Args:
        load_arguments: Keyword arguments of `howsmooth.load`.
        identity: What `model_identity` has to return for it.
        beside: The `load_arguments` of a model that it is compared with, which stays in memory.

    Raises:
        InputError: The loaded model differs from `identity`.
    """
    key = _cache_key(load_arguments)
    if key not in _model_cache:
        kept = None if beside is None else _cache_key(beside)
        for other in [other for other in _model_cache if other != kept]:
            del _model_cache[other]  # before loading: two models may not fit in memory
        model = load(**load_arguments)
        found, expected = ({}, {}) if identity is None else (model_identity(model), identity)
        for name in expected.keys() - {"unique"}:
            if found.get(name) != expected[name]:
                raise InputError(
                    f"expected {load_arguments['name']!r} as it was when the study was planned, got another {name}; "
                    "bring the same files to every machine"
                )
        _model_cache[key] = model
    return _model_cache[key]
