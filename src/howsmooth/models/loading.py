"""load(name): an embedded model, a local folder, a GGUF file, a random architecture, a hub model; or load(network)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType

import torch
from transformers import (
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from howsmooth.errors import InputError
from howsmooth.models.families import FAMILIES, check_registry, family_of
from howsmooth.models.inputs import Processor, find_tokenizer
from howsmooth.models.locations import Place, commit_of, locate
from howsmooth.models.model import Model
from howsmooth.models.network import choose_part, quiet_transformers

_RANDOM = "random:"


def load(
    name: str | os.PathLike | PreTrainedModel,
    *,
    dtype: torch.dtype | str | None = None,
    device: torch.device | str | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    seed: int = 0,
    cache_dir: str | os.PathLike | None = None,
    tokenizer: str | os.PathLike | PreTrainedTokenizerBase | None = None,
    part: str | None = None,
    causal: bool = False,
) -> Model:
    """Load a model for measuring: evaluation mode, no gradients; float32 on the CPU unless told otherwise.

    `name` is, in this order: "minilm", "smollm2" or "mpnet" (installed packages), "random:gpt2|bert|llama" or
    "random:" before any other name (that architecture with weights drawn from `seed`), a .gguf file, a
    folder with a config.json, a .safetensors file with some of GPT-2's attention layers, or a name on the hub
    (`revision` applies there). A transformers model that is in memory already may stand in its place: it is read as it
    is, and nothing about it is changed.

    Weights are read from safetensors unless `allow_pickle`; code from the repository is never run unless
    `trust_remote_code`. `part` chooses the stack of layers where there are two: "encoder" (the default) or
    "decoder" of an encoder-decoder, "vision" or "text" of a model of both. `causal` runs a BERT as a decoder, under a
    causal mask. `tokenizer` names another place to take the tokenizer from, or is one. `cache_dir` holds dequantised
    GGUF files (else $HOWSMOOTH_CACHE, else ~/.cache/howsmooth).
    """
    remote = {"revision": revision, "trust_remote_code": trust_remote_code}
    if isinstance(name, PreTrainedModel):
        if causal:
            raise InputError(
                "expected causal only with a model that is loaded by name, got a transformers model; make "
                "it from a config with is_decoder=True"
            )
        given = name
        network, adapter, name, place = read_network(given, dtype=dtype, device=device, revision=revision)
        return _complete(network, adapter, name, place, tokenizer, cache_dir, remote, part, given.state_dict)
    if not isinstance(name, (str, os.PathLike)) or not os.fspath(name):
        what = "an empty one" if isinstance(name, str) else f"an object of type {type(name).__name__}"
        wrapped = isinstance(name, torch.nn.Module)  # peft's, say, whose low-rank updates are in the model inside
        raise InputError(
            f"expected the name of a model, a folder or a file, or a transformers model, got {what}; "
            + ("give the transformers model inside of it (of peft: .get_base_model())" if wrapped else "try 'minilm'")
        )
    name = os.fspath(name)
    dtype, device = working_type(dtype or torch.float32, device or "cpu")

    if name.endswith(".safetensors"):
        return _attention_file(name, dtype, device, revision=revision, tokenizer=tokenizer, part=part)

    read_head: Callable[[], dict] = dict  # weights drawn at random have a head only where it is the embedding
    if name.startswith(_RANDOM):
        network, adapter, place = _random_network(name, seed, cache_dir, remote, causal)
        with torch.no_grad():
            for parameter in network.parameters():  # not .to(dtype): rotary frequencies stay float32
                parameter.data = parameter.data.to(dtype)
    else:
        place = locate(name, revision, cache_dir)
        network, adapter = _pretrained_network(name, place, dtype, allow_pickle, remote, causal)
        read_head = partial(_head_weights, name, place, dtype, allow_pickle, remote)
    network = network.to(device).eval().requires_grad_(False)
    return _complete(network, adapter, name, place, tokenizer, cache_dir, remote, part, read_head)


def _attention_file(name: str, dtype: torch.dtype, device: torch.device, **given: object) -> Model:
    from howsmooth.models.gpt2_file import AttentionFile

    said = [option for option, value in given.items() if value is not None]
    if said:
        raise InputError(f"expected no {said[0]} with a file of attention layers, which has none; leave it out")
    return AttentionFile(name, name, dtype=dtype, device=device)


def _complete(
    network, adapter, name: str, place: Place, tokenizer, cache_dir, remote: dict, part, read_head: Callable[[], dict]
) -> Model:
    """Check the weights and add the tokenizer."""
    check_registry(network, adapter, name)
    _refuse_non_finite(network, name)
    chosen = choose_part(network, part, name)
    found, missing, origin = None, f"it takes {chosen.modality}", None
    if chosen.vocabulary is not None:
        found, missing, origin = find_tokenizer(tokenizer, place, chosen.vocabulary, cache_dir, remote)
    source = {**place.source, "tokenizer": origin, **({} if part is None else {"part": part})}
    return Model(
        network,
        adapter,
        name=name,
        tokenizer=found,
        no_tokenizer=missing,
        source=source,
        part=part,
        processor=Processor(place.path, place.local_only, remote),
        read_head=read_head,
    )


def _pretrained_network(name: str, place: Place, dtype: torch.dtype, allow_pickle: bool, remote: dict, causal: bool):
    with _loading(name, place), quiet_transformers():
        config = AutoConfig.from_pretrained(place.path, local_files_only=place.local_only, **remote)
    adapter = family_of(config, name)
    if causal:
        _as_decoder(config, name, place)
    with _loading(name, place, allow_pickle), quiet_transformers():
        network, report = AutoModel.from_pretrained(
            place.path,
            config=config,
            dtype=dtype,
            use_safetensors=None if allow_pickle else True,
            local_files_only=place.local_only,
            output_loading_info=True,
            **remote,
        )
    absent = sorted(key for key in report["missing_keys"] if not key.startswith(adapter.UNUSED))
    if absent:  # transformers would go on with random numbers in their place
        raise InputError(
            f"model {name!r}: expected all weights of a {config.model_type}, got none for {absent[0]} "
            f"({len(absent)} missing); the checkpoint is incomplete or of another model"
        )
    check_class(network, adapter, name)
    if place.is_hub:
        place.source["revision"] = commit_of(name, remote["revision"])
    return network, adapter


def _head_weights(name: str, place: Place, dtype: torch.dtype, allow_pickle: bool, remote: dict) -> dict:
    """Read a checkpoint once more, as a language model: `AutoModel` leaves the head behind. What it lacks is absent."""
    with _loading(name, place, allow_pickle), quiet_transformers():
        whole, report = AutoModelForCausalLM.from_pretrained(
            place.path,
            dtype=dtype,
            use_safetensors=None if allow_pickle else True,
            local_files_only=place.local_only,
            output_loading_info=True,
            **remote,
        )
    return {key: value for key, value in whole.state_dict().items() if key not in report["missing_keys"]}


def _random_network(name: str, seed: int, cache_dir, remote: dict, causal: bool):
    """Build an architecture with the library's own initialisation, drawn from `seed`."""
    inner = name.removeprefix(_RANDOM)
    if not inner:
        raise InputError(
            f"expected 'random:' and an architecture, got {name!r}; give random:{', random:'.join(FAMILIES)} "
            "or random: and the name or folder of a model"
        )
    if inner in FAMILIES:
        config = FAMILIES[inner].default_config()
        place = Place(None, {"kind": "random"}, local_only=True, tokenizer=FAMILIES[inner].TOKENIZER)
    else:
        place = locate(inner, remote["revision"], cache_dir)
        with _loading(name, place), quiet_transformers():
            config = AutoConfig.from_pretrained(place.path, local_files_only=place.local_only, **remote)
        place.source.update(kind="random", architecture=place.source["kind"])
        place.source.pop("sha256", None)  # those weights are not the ones in use
    adapter = family_of(config, name)
    if causal:
        _as_decoder(config, name, place)
    spread = getattr(config, "initializer_range", None)
    place.source.update(weights=f"random, seed {seed}", seed=seed, initializer_range=spread)
    # The library draws from the global generator: lend it a seeded one and give the old state back.
    with torch.random.fork_rng(devices=[]), _loading(name, place), quiet_transformers():
        torch.default_generator.manual_seed(seed)
        network = AutoModel.from_config(config, dtype=torch.float32)
    check_class(network, adapter, name)
    return network, adapter, place


def _as_decoder(config, name: str, place: Place) -> None:
    if config.model_type != "bert":
        raise InputError(
            f"expected a BERT to run under a causal mask, got {name!r}, a {config.model_type}; leave "
            "causal out: decoders have their mask anyway, other encoders cannot be given one"
        )
    config.is_decoder, config.use_cache = True, False
    place.source["causal"] = True


def _refuse_non_finite(network, name: str) -> None:
    for key, parameter in network.named_parameters():
        # One pass without a temporary: NaN and infinity both survive into the extremes.
        if parameter.numel() and not all(torch.isfinite(extreme) for extreme in parameter.aminmax()):
            raise InputError(
                f"model {name!r}: expected finite weights, got NaN or infinity in {key} ({parameter.dtype}); "
                "fetch the weights again, or load them in a wider dtype"
            )


def working_type(dtype: torch.dtype | str, device: torch.device | str) -> tuple[torch.dtype, torch.device]:
    """Return dtype and device after trying them on a tiny product."""
    if isinstance(dtype, str):
        dtype = getattr(torch, dtype.removeprefix("torch."), dtype)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InputError(f"expected a floating point dtype, got {dtype!r}; give float64, float32, bfloat16 or float16")
    try:
        device = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"expected a device such as cpu or cuda:1, got {device!r}; choose one") from error
    try:
        torch.zeros(1, device=device)
    except Exception as error:  # a device type without its package raises anything at all
        raise InputError(
            f"expected a device of this machine, got {str(device)!r}, which is not available here; use cpu"
        ) from error
    try:
        probe = torch.ones(2, 2, dtype=dtype, device=device)
        torch.softmax(probe @ probe, -1).sum().item()
    except (RuntimeError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"expected a dtype that the device can compute with, got {dtype} on {device}; use float32"
        ) from error
    return dtype, device


@contextmanager
def _loading(name: str, place: Place, allow_pickle: bool = True) -> Iterator[None]:
    """Turn whatever a library raises while loading into one line that names what was tried."""
    try:
        yield
    except (InputError, MemoryError):
        raise
    except Exception as error:  # loaders raise OSError, ValueError, RuntimeError, KeyError, their own…
        reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
        if place.is_hub and place.local_only:
            reason = "nothing there"  # the library's own words are about a connection that was not tried
        remedy = place.remedy
        pickled = not place.is_hub and place.path and not any(Path(place.path).glob("*.safetensors"))
        if not allow_pickle and (pickled or "safetensors" in reason):
            remedy = (
                "convert the weights to safetensors, or, if you trust them, give allow_pickle=True "
                "(--allow-pickle)"
                f"{'; ' + remedy if place.is_hub else ''}"
            )
        raise InputError(f"cannot load {name!r} ({place.tried}): {reason}; {remedy}") from error


def read_network(
    network: PreTrainedModel, *, dtype=None, device=None, revision: str | None = None
) -> tuple[PreTrainedModel, ModuleType, str, Place]:
    """Return (base model, adapter, name, place) of a transformers model; a head on top of it is left out."""
    kind = type(network).__name__
    name = getattr(network.config, "_name_or_path", "") or kind
    if any(module.training for module in network.modules()):
        raise InputError(f"expected a {kind} in evaluation mode, got one in training mode; call its .eval() first")
    if (dtype, device, revision) != (None, None, None):
        raise InputError(
            f"expected no dtype, device or revision beside a {kind}, which has its own, got "
            f"{', '.join(str(given) for given in (dtype, device, revision) if given is not None)}; "
            "leave it out, and move or convert the model yourself (its .to)"
        )
    adapter = family_of(network.config, name)
    base = _without_head(network)
    check_class(base, adapter, name)
    _refuse_scattered(base, name)
    source = {"kind": "object", "class": kind, "weights": "as given"}
    return base, adapter, name, Place(None, source, local_only=True)


def _without_head(network: PreTrainedModel) -> PreTrainedModel:
    """The network itself if it is what `AutoModel` makes: DINOv3's `base_model` is its encoder, without embeddings."""
    bare = MODEL_MAPPING.get(type(network.config), ())
    return network if type(network) in (bare if isinstance(bare, tuple) else (bare,)) else network.base_model


def check_class(network, adapter: ModuleType, name: str) -> None:
    if not isinstance(network, adapter.NETWORK):
        raise InputError(
            f"model {name!r}: expected a {adapter.NETWORK.__name__}, got a {type(network).__name__}; "
            "its code is not the family's own, so its attention cannot be read"
        )


def _refuse_scattered(network: PreTrainedModel, name: str) -> None:
    devices = sorted({str(parameter.device) for parameter in network.parameters()})
    if len(devices) > 1 or devices == ["meta"]:
        raise InputError(
            f"model {name!r}: expected all weights on one device, got them on {', '.join(devices)}; load it "
            "without a device_map"
        )
