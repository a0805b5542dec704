"""Inputs of networks: token numbers, images and sounds, made by the model's own tokenizer or processor.

Images and sounds can also be generated from a seed.
"""

from __future__ import annotations

import importlib.util
import math
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AutoFeatureExtractor, AutoImageProcessor, AutoTokenizer, PreTrainedTokenizerBase

from howsmooth.errors import InputError
from howsmooth.models.locations import ModelLocation, locate
from howsmooth.models.network import quiet_transformers
from howsmooth.texts.cutting import TokenChunk

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_AXES = {"vision": ("an image (c, h, w)", "pixel_values"), "audio": ("features (mel, frames)", "input_features")}


@dataclass(frozen=True)
class Processor:
    """The location of a model's image processor or feature extractor.

    Attributes:
        path: A folder or a name on the hub; None if there is none.
        local_only: Whether only local files are read.
        remote: Arguments of `from_pretrained` for models on the hub.
    """

    path: str | None
    local_only: bool = True
    remote: dict[str, Any] = field(default_factory=dict)

    def read(self, kind: Any, what: str) -> Any:
        """Return the processor, read by an auto class of transformers; `what` names it in error messages."""
        if self.path is None:
            raise InputError(f"expected a model with its own {what}, got one without files; give the tensors yourself")
        try:
            with quiet_transformers():
                return kind.from_pretrained(self.path, local_files_only=self.local_only, **self.remote)
        except Exception as error:  # missing and damaged files raise almost any exception
            reason = (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
            raise InputError(
                f"expected the model's own {what} (preprocessor_config.json) at {self.path}, got none that can be "
                f"read ({reason}); give the tensors yourself"
            ) from error


def images(
    config: Any, processor: Processor, folder: str | os.PathLike[str] | None, count: int | None, seed: int
) -> Tensor:
    """Return images (count, c, h, w): the first of a folder by name, or smooth random ones."""
    _check_count(count)
    if folder is None:
        size = getattr(config, "image_size", 224)
        height, width = (size, size) if isinstance(size, int) else size
        return smooth_images(count or 1, height, width, getattr(config, "num_channels", 3), seed)
    if importlib.util.find_spec("PIL") is None:
        raise InputError("expected Pillow to read image files, got none; run: pip install pillow")
    from PIL import Image, UnidentifiedImageError

    root = Path(folder)
    if not root.is_dir():
        raise InputError(f"expected a folder of images, got {str(folder)!r}, which is none; check the path")
    files = sorted(path for path in root.iterdir() if path.suffix.lower() in _IMAGES)
    if len(files) < (count or 1):
        raise InputError(
            f"expected {count or 1} images in {str(folder)!r}, got {len(files)}; add some, or ask for fewer"
        )
    pictures = []
    for file in files[:count]:
        try:
            with Image.open(file) as image:
                pictures.append(image.convert("RGB"))
        except (UnidentifiedImageError, OSError) as error:
            raise InputError(f"expected an image, got {str(file)!r} ({error}); remove or repair it") from error
    return processor.read(AutoImageProcessor, "image processor")(images=pictures, return_tensors="pt")["pixel_values"]


def smooth_images(count: int, height: int, width: int, channels: int = 3, seed: int = 0) -> Tensor:
    """Return random images (count, channels, height, width), with mean 0 and variance 1 per channel.

    They are sums of a few cosines; low frequencies have larger coefficients, as in photographs.

    Example:
        >>> smooth_images(2, 8, 8).shape
        torch.Size([2, 3, 8, 8])
    """
    generator = torch.Generator().manual_seed(seed)
    y, x = torch.linspace(0, 1, height)[:, None], torch.linspace(0, 1, width)[None]
    total = torch.zeros(count, channels, height, width)
    for u in range(5):
        for v in range(5):
            weight, phase = torch.randn(2, count, channels, 1, 1, generator=generator)
            total += weight / (1 + u + v) * torch.cos(math.pi * (u * x + v * y) + math.pi * phase)
    total -= total.mean((-2, -1), keepdim=True)
    return total / total.std((-2, -1), keepdim=True).clamp_min(1e-6)


def sounds(config: Any, processor: Processor, audio: Any, count: int | None, seed: int) -> Tensor:
    """Return log-mel features (count, mel, frames) of mono sounds at the extractor's rate, or generated ones."""
    if not hasattr(config, "num_mel_bins"):
        raise InputError(
            f"expected a model that takes log-mel features, got {config.model_type!r}; give the tensors "
            "it takes as a dict"
        )
    _check_count(count)
    if audio is None:
        frames = 2 * config.max_source_positions
        # Smooth in time and frequency, within the range of Whisper's feature extractor.
        features = smooth_images(count or 1, config.num_mel_bins, frames, 1, seed)[:, 0]
        return 0.5 * features.clamp(-2, 2)
    several = isinstance(audio, (list, tuple)) and len(audio) and not np.isscalar(audio[0])
    waves: list[np.ndarray] = [np.asarray(wave, dtype=np.float32) for wave in (audio if several else [audio])][:count]
    for wave in waves:
        if wave.ndim != 1 or not wave.size or not np.isfinite(wave).all():
            raise InputError(f"expected a mono sound as finite samples (t,), got shape {wave.shape}; mix and trim it")
    extractor = processor.read(AutoFeatureExtractor, "feature extractor")
    return extractor(waves, sampling_rate=extractor.sampling_rate, return_tensors="pt")["input_features"]


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


def as_batch(input: Any, modality: str) -> Tensor:
    """Return one or more images or features as a batch, checked."""
    what, key = _AXES.get(modality, ("a tensor", modality))
    axes = {"vision": 3, "audio": 2}.get(modality)
    if not isinstance(input, Tensor) or not input.is_floating_point() or axes is None:
        raise InputError(
            f"expected {what} as a floating tensor, got {type(input).__name__}; use model.images() or "
            f"model.sounds(), or give a dict with {key}"
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
    remote: dict[str, Any],
) -> tuple[PreTrainedTokenizerBase | None, str, str | None]:
    """Find the tokenizer of a model.

    Args:
        asked: A tokenizer, or the name or folder to read it from; None for the model's own.
        location: Where the model was loaded from.
        vocabulary: The size of the model's vocabulary.
        cache_dir: The cache folder.
        remote: Arguments of `from_pretrained` for models on the hub.

    Returns:
        The tokenizer or None, why there is none, and where it came from.

    Raises:
        InputError: The tokenizer that was asked for does not exist, or has token numbers beyond the vocabulary.
    """
    if asked is None and location.path is not None:
        tokenizer, reason = _read_tokenizer(location, remote)
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
    tokenizer, reason = _read_tokenizer(locate(name, None, cache_dir), {**remote, "revision": None})
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


def _read_tokenizer(location: ModelLocation, remote: dict[str, Any]) -> tuple[PreTrainedTokenizerBase | None, str]:
    """Return the tokenizer at a location, or None and the reason."""
    try:
        with quiet_transformers():
            tokenizer = AutoTokenizer.from_pretrained(location.path, local_files_only=location.local_only, **remote)
    except Exception as error:  # missing or damaged files raise almost any exception
        if location.is_hub and location.local_only:
            return None, "not in the hub's local cache, and the hub cannot be reached"
        return None, (str(error) or type(error).__name__).strip().splitlines()[0].rstrip(".")
    # Without its files the library may return a tokenizer that has special tokens only.
    if not tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"] or (
        len(tokenizer.get_vocab()) <= len(tokenizer.all_special_ids)
    ):
        return None, "the tokenizer's vocabulary is missing"
    return tokenizer, ""
