"""Inputs of networks: token numbers, images and sounds, made by the model's own tokenizer or processor.

Images and sounds can also be generated from a seed.
"""

from __future__ import annotations

import importlib.util
import math
import os
import re
import warnings
import wave
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer, PreTrainedTokenizerBase
from transformers.utils import cached_file

from howsmooth.errors import InputError, first_line
from howsmooth.models.files import list_files
from howsmooth.models.locations import ModelLocation, locate
from howsmooth.models.network import quiet_transformers
from howsmooth.models.weights import read_json
from howsmooth.texts.cutting import TokenChunk

_INPUTS = {  # by the name of the network's input: what one of them is, and the number of its axes
    "pixel_values": ("an image (c, h, w)", 3),
    "input_features": ("features (mel, frames)", 2),
    "input_values": ("a waveform (t,)", 1),
}
_LARGEST_GROWTH = 1000  # of a text by the replacements of a tokenizer
_RATE, _GENERATED_SECONDS = 16_000, 2.0  # of generated waveforms


@dataclass(frozen=True)
class Processor:
    """The location of a model's image processor or feature extractor.

    Attributes:
        location: Where the model was loaded from; None if it has no files.
    """

    location: ModelLocation | None = None

    def read(self, kind: Any, what: str) -> Any:
        """Return the processor, read by an auto class of transformers; `what` names it in error messages."""
        if self.location is None or self.location.path is None:
            raise InputError(f"expected a model with its own {what}, got one without files; give tensors in Python")
        try:
            with quiet_transformers():
                return self.location.read(kind)
        except Exception as error:  # missing and damaged files raise almost any exception
            reason = first_line(error)
            raise InputError(
                f"expected the model's own {what} (preprocessor_config.json) at {self.location.path}, got none that "
                f"can be read ({reason}); add the file, or give tensors in Python"
            ) from error


_EXTRA_TOKENS = {  # parameters of embeddings: what their tokens are called; all of them stand before the patches
    "cls_token": "[CLS]",
    "class_embedding": "[CLS]",
    "distillation_token": "[DIST]",
    "register_tokens": "[REG]",
}


def leading_tokens(network: torch.nn.Module) -> list[str]:
    """Return the names of the tokens that a network of images or sounds puts before the patches or frames."""
    found = {name.rpartition(".")[2]: parameter for name, parameter in network.named_parameters()}
    return [
        word
        for name, word in _EXTRA_TOKENS.items()
        if name in found
        for _ in range(found[name].shape[-2] if found[name].ndim > 1 else 1)
    ]


def is_batch(given: dict[str, Any]) -> bool:
    """Return whether keyword arguments of a network are those of several samples."""
    if isinstance(grid := given.get("grid_thw"), Tensor):  # the patches of all images are one sequence
        return len(grid) != 1
    return any(len(value) != 1 for value in given.values() if isinstance(value, Tensor))


def images(
    config: Any, processor: Processor, path: str | os.PathLike[str] | None, count: int | None, seed: int
) -> Tensor:
    """Return images (count, c, h, w): of a file, the first of a folder by name, or smooth random ones."""
    _check_count(count)
    if path is None:
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return smooth_images(count or 1, height, width, getattr(config, "num_channels", 3), seed)
    if importlib.util.find_spec("PIL") is None:
        raise InputError("expected Pillow to read image files, got none; run: pip install pillow")
    from PIL import Image

    pictures = []
    for file in list_files("images", path, count):
        try:
            # Pillow warns of images that are large by their header, and refuses those of twice that size.
            with (
                warnings.catch_warnings(action="error", category=Image.DecompressionBombWarning),
                Image.open(file) as image,
            ):
                pictures.append(image.convert("RGB"))
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise InputError(
                f"expected an image of at most {Image.MAX_IMAGE_PIXELS:,} pixels, got more in {str(file)!r}; scale it "
                "down"
            ) from None
        except MemoryError:
            raise
        except Exception as error:  # of a damaged file the readers may raise anything
            reason = first_line(error)
            raise InputError(f"expected an image, got {str(file)!r} ({reason}); remove or repair it") from error
    return processor.read(AutoImageProcessor, "image processor")(images=pictures, return_tensors="pt")["pixel_values"]


def smooth_images(count: int, height: int, width: int, channels: int = 3, seed: int = 0) -> Tensor:
    """Return random images (count, channels, height, width), with mean 0 and variance 1 per channel.

    They are sums of a few cosines; low frequencies have larger coefficients, as in photographs. The first images of
    more are those of fewer.

    Example:
        >>> smooth_images(2, 8, 8).shape
        torch.Size([2, 3, 8, 8])
    """
    y, x = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)[None]
    total = torch.zeros(count, channels, height, width)
    for number, image in enumerate(total):
        generator = _generator(seed, number)
        for u in range(5):
            for v in range(5):
                weight, phase = torch.randn(2, channels, 1, 1, generator=generator)
                image += weight / (1 + u + v) * torch.cos(math.pi * (u * x + v * y) + math.pi * phase)
    total -= total.mean((-2, -1), keepdim=True)
    return total / total.std((-2, -1), keepdim=True).clamp_min(1e-6)


def _generator(seed: int, number: int) -> torch.Generator:
    """Return a stream of its own for each generated input, so that none depends on how many there are."""
    return torch.Generator().manual_seed((1_000_003 * seed + number) % 2**63)


def sounds(network: Any, processor: Processor, audio: Any, count: int | None, seed: int) -> Tensor:
    """Return the inputs of a speech network for mono sounds: log-mel features (count, mel, frames) or waveforms.

    Args:
        network: The network.
        processor: Its feature extractor.
        audio: Samples at the extractor's rate, (t,), or a list of such; a WAV file or a folder of them; None to
            generate sounds.
        count: How many sounds; by default all that are given, or one.
        seed: The seed of generated sounds.
    """
    config, main_input = network.config, network.main_input_name
    if main_input not in ("input_features", "input_values"):
        raise InputError(
            f"expected a model that takes sounds, got {config.model_type!r}; give the tensors it takes as a dict"
        )
    _check_count(count)
    if audio is None:
        if main_input == "input_values":
            return _smooth_waves(count or 1, round(_GENERATED_SECONDS * _RATE), seed)
        if not hasattr(config, "max_source_positions") or not hasattr(config, "num_mel_bins"):
            raise InputError(
                f"expected a config with the number of frames and of frequencies of a sound, got {config.model_type!r} "
                f"without; in Python, give a dict with {main_input}"
            )
        # Smooth in time and frequency, within the range of Whisper's feature extractor.
        frames = 2 * config.max_source_positions
        return 0.5 * smooth_images(count or 1, config.num_mel_bins, frames, 1, seed)[:, 0].clamp(-2, 2)
    extractor = processor.read(AutoFeatureExtractor, "feature extractor")
    if isinstance(audio, (str, os.PathLike)):
        waves = [read_wave(file, extractor.sampling_rate) for file in list_files("audio", audio, count)]
    else:
        several = isinstance(audio, (list, tuple)) and len(audio) and not np.isscalar(audio[0])
        waves = [np.asarray(samples, dtype=np.float32) for samples in (audio if several else [audio])][:count]
    for samples in waves:
        if samples.ndim != 1 or not samples.size or not np.isfinite(samples).all():
            raise InputError(
                f"expected a mono sound as finite samples (t,), got shape {samples.shape}; mix and trim it"
            )
    if main_input == "input_values":  # their lengths are not padded: all are cut to the shortest
        shortest = min(map(len, waves))
        waves = [samples[:shortest] for samples in waves]
    return extractor(waves, sampling_rate=extractor.sampling_rate, return_tensors="pt")[main_input]


def read_wave(file: str | os.PathLike[str], rate: int) -> np.ndarray:
    """Return the samples (t,) of a WAV file with PCM samples, from −1 to 1; channels are averaged.

    Args:
        file: The file.
        rate: The sampling rate that it must have.

    Raises:
        InputError: The file cannot be read, or has another rate.
    """
    try:
        with wave.open(os.fspath(file), "rb") as stream:
            found, channels, width = stream.getframerate(), stream.getnchannels(), stream.getsampwidth()
            raw = np.frombuffer(stream.readframes(stream.getnframes()), dtype=np.uint8)
    except (wave.Error, EOFError, OSError) as error:
        raise InputError(
            f"expected a WAV file with PCM samples, got {str(file)!r} ({error or 'it ends early'}); convert it, for "
            f"example with ffmpeg -i IN -ar {rate} OUT.wav"
        ) from None
    if found != rate:
        raise InputError(
            f"expected a sampling rate of {rate} Hz, got {found} Hz in {str(file)!r}; convert it, for example with "
            f"ffmpeg -i IN -ar {rate} OUT.wav"
        )
    samples = raw[: len(raw) // (width * channels) * width * channels].reshape(-1, width)
    if width == 1:  # unsigned
        values = samples[:, 0].astype(np.float64) / 128 - 1
    else:  # little-endian two's complement, moved to the upper bytes of 32 bits
        padded = np.zeros((len(samples), 4), dtype=np.uint8)
        padded[:, 4 - width :] = samples
        values = padded.view("<i4")[:, 0] / 2.0**31
    return values.reshape(-1, channels).mean(-1).astype(np.float32)


def _smooth_waves(count: int, length: int, seed: int) -> Tensor:
    """Return random waveforms (count, length) with mean 0 and variance 1: tones whose loudness rises and falls."""
    time = torch.arange(length) / _RATE
    total = torch.zeros(count, length)
    for number, sound in enumerate(total):
        generator = _generator(seed, number)
        for _ in range(20):
            pitch = 80 * 2 ** (5 * torch.rand(1, generator=generator))
            phase, slow = torch.rand(2, 1, generator=generator)
            sound += torch.sin(2 * math.pi * (pitch * time + phase)) * torch.sin(math.pi * (2 + 3 * slow) * time) ** 2
    total -= total.mean(-1, keepdim=True)
    return total / total.std(-1, keepdim=True).clamp_min(1e-6)


def token_numbers(tokens: Any, vocabulary: int, positions: int) -> Tensor:
    """Return the token numbers of a tensor, a chunk or a list of chunks as integers (n,) or (b, n), checked.

    Raises:
        InputError: They are not integers, or exceed the vocabulary or the positions.
    """
    if isinstance(tokens, TokenChunk):
        tokens = tokens.ids
    elif isinstance(tokens, (list, tuple)) and tokens and all(isinstance(t, TokenChunk) for t in tokens):
        lengths = sorted({len(chunk) for chunk in tokens})
        if len(lengths) > 1:
            raise InputError(f"expected chunks of one length, got {lengths}; pass them one by one")
        tokens = torch.stack([chunk.ids for chunk in tokens])
    try:
        ids = torch.as_tensor(tokens)
    except (TypeError, ValueError, RuntimeError) as error:
        kind = type(tokens).__name__
        raise InputError(f"expected token numbers or chunks, got {kind} ({error}); tokenize first") from error
    if ids.ndim not in (1, 2) or ids.numel() == 0 or ids.is_floating_point() or ids.is_complex():
        raise InputError(
            f"expected token numbers of shape (n,) or (b, n) with n >= 1, got shape {tuple(ids.shape)} "
            f"of {ids.dtype}; pass a TokenChunk or integers"
        )
    if ids.min() < 0 or ids.max() >= vocabulary:
        raise InputError(
            f"expected token numbers from 0 to {vocabulary - 1}, got {int(ids.min())} to "
            f"{int(ids.max())}; use the model's own tokenizer"
        )
    if ids.shape[-1] > positions:
        raise InputError(f"expected at most {positions} tokens (the model's positions), got {ids.shape[-1]}; cut them")
    return ids.long()


def input_ndim(tokens: Any) -> int:
    """Return the number of axes of an input: 1 for a chunk, 2 for a list of chunks, 0 for a dictionary."""
    if isinstance(tokens, TokenChunk):
        return 1
    if isinstance(tokens, dict):
        return 0
    if isinstance(tokens, (list, tuple)) and tokens and isinstance(tokens[0], TokenChunk):
        return 2
    return torch.as_tensor(tokens).ndim


def as_batch(input: Any, main_input: str) -> Tensor:
    """Return one or more images, features or waveforms as a batch, checked.

    Args:
        input: One of them, or a batch.
        main_input: The name of the network's input.
    """
    what, axes = _INPUTS.get(main_input, ("a tensor", None))
    if not isinstance(input, Tensor) or not input.is_floating_point() or axes is None:
        raise InputError(
            f"expected {what} as a floating tensor, got {type(input).__name__}; use model.images() or "
            f"model.sounds(), or give a dict with {main_input}"
        )
    if input.ndim not in (axes, axes + 1) or not torch.isfinite(input).all():
        raise InputError(f"expected {what}, finite, or a batch of them, got shape {tuple(input.shape)}")
    return input if input.ndim == axes + 1 else input[None]


def move_inputs(given: dict[str, Any], device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """Return keyword arguments with tensors on a device, floating ones in a dtype."""
    if not given or not all(isinstance(key, str) for key in given):
        raise InputError("expected the network's keyword arguments by name, got none")
    return {
        key: value if not isinstance(value, Tensor) else value.to(device, dtype if value.is_floating_point() else None)
        for key, value in given.items()
    }


def _check_count(count: int | None) -> None:
    if count is not None and (not isinstance(count, int) or count < 1):
        raise InputError(f"expected a count of at least 1, got {count!r}")


def find_tokenizer(
    asked: str | os.PathLike[str] | PreTrainedTokenizerBase | None,
    location: ModelLocation,
    vocabulary: int,
    cache_dir: str | os.PathLike[str] | None,
) -> tuple[PreTrainedTokenizerBase | None, str, str | None]:
    """Find the tokenizer of a model.

    Args:
        asked: A tokenizer, or the name or folder to read it from; None for the model's own.
        location: Where the model was loaded from.
        vocabulary: The size of the model's vocabulary.
        cache_dir: The cache folder.

    Returns:
        The tokenizer or None, why there is none, and where it came from.

    Raises:
        InputError: The tokenizer that was asked for does not exist, or has token numbers beyond the vocabulary.
    """
    if asked is None and location.path is not None:
        tokenizer, reason = _read_tokenizer(location)
        return tokenizer, reason, None if tokenizer is None else "the model's own"
    wanted = location.tokenizer if asked is None else asked
    if wanted is None:
        return None, "a model given as an object comes without one", None
    if isinstance(wanted, PreTrainedTokenizerBase):
        name = wanted.name_or_path or type(wanted).__name__
        _check_vocabulary(wanted, name, vocabulary)
        return wanted, "", name
    if not isinstance(wanted, (str, os.PathLike)) or not os.fspath(wanted):
        what = "an empty one" if isinstance(wanted, str) else f"an object of type {type(wanted).__name__}"
        raise InputError(f"expected the name of a tokenizer, or a transformers tokenizer, got {what}; try 'minilm'")
    name = os.fspath(wanted)
    tokenizer, reason = _read_tokenizer(
        locate(name, None, cache_dir, trust_remote_code=location.trust_remote_code, weights=False)
    )
    if tokenizer is None and asked is None:
        return None, f"an architecture without weights has none of its own; {name}: {reason}", None
    if tokenizer is None:
        raise InputError(f"expected a tokenizer at {name!r}, got none ({reason}); name another one")
    _check_vocabulary(tokenizer, name, vocabulary)
    return tokenizer, "", name


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, name: str, vocabulary: int) -> None:
    largest = max(tokenizer.get_vocab().values())
    if largest >= vocabulary:
        raise InputError(
            f"expected a tokenizer within the model's vocabulary of {vocabulary}, got {name!r} with token "
            f"numbers up to {largest}; name a smaller one"
        )


def _check_growth(location: ModelLocation) -> None:
    """Raise InputError if a tokenizer makes a text many times longer before it is cut into tokens."""
    file = cached_file(
        location.path,
        "tokenizer.json",
        revision=location.revision,
        local_files_only=location.local_only,
        _raise_exceptions_for_gated_repo=False,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
    )
    factor = 1.0 if file is None else normalised_growth(read_json(Path(file)).get("normalizer"))
    if factor > _LARGEST_GROWTH:
        raise InputError(
            f"its normalizer may make a text {factor:.0e} times as long, and at most {_LARGEST_GROWTH} is allowed"
        )


def normalised_growth(normalizer: Any) -> float:
    """Return how many times longer the replacements of a normalizer can make a text.

    Args:
        normalizer: The part of tokenizer.json with this name.

    Example:
        >>> tenfold = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10}
        >>> normalised_growth({"type": "Sequence", "normalizers": [tenfold, tenfold]})
        100.0
    """
    factor, waiting = 1.0, [normalizer]
    while waiting:
        part = waiting.pop()
        if not isinstance(part, dict):
            continue
        if isinstance(part.get("normalizers"), list):
            waiting += part["normalizers"]
        if part.get("type") == "Replace":
            pattern, content = part.get("pattern"), part.get("content")
            plain = pattern.get("String") if isinstance(pattern, dict) else None
            longer = len(content) if isinstance(content, str) else 1
            # A regular expression may match a single character, or nothing, before every character.
            factor *= max(1.0, longer / len(plain)) if plain else max(1.0, longer + _matches_nothing(pattern))
    return factor


def _matches_nothing(pattern: Any) -> bool:
    """Return whether a pattern of a replacement matches the empty text, as far as Python can tell."""
    expression = pattern.get("Regex") if isinstance(pattern, dict) else None
    try:
        return not isinstance(expression, str) or re.fullmatch(expression, "") is not None
    except (re.error, RecursionError, OverflowError):
        return True


def _read_tokenizer(location: ModelLocation) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Return the tokenizer at a location, or None and the reason."""
    try:
        with quiet_transformers():
            _check_growth(location)
            tokenizer = location.read(AutoTokenizer)
    except Exception as error:  # missing or damaged files raise almost any exception
        if location.is_hub and location.local_only:
            return None, "not in the hub's local cache, and the hub cannot be reached"
        return None, first_line(error)
    # Without its files the library may return a tokenizer that has special tokens only.
    if not tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"] or (
        len(tokenizer.get_vocab()) <= len(tokenizer.all_special_ids)
    ):
        return None, "the tokenizer's vocabulary is missing"
    return tokenizer, ""
