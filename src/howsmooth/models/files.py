"""What the files of a model say about it, read without torch and transformers.

Errors in a name, a length or the number of a layer can be reported before the seconds that loading takes. Only what is
certain is an error here; loading checks everything again.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from howsmooth.errors import InputError
from howsmooth.models import locations
from howsmooth.models.embedded import EMBEDDED, embedded_path
from howsmooth.models.weights import check_counts, read_json

MEDIA_SUFFIXES = {  # of the files of a folder
    "images": (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff"),
    "audio": (".wav",),
}
# A tokenizer of any kind has one of these files.
_TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "*.model", "*.tiktoken", "tekken.json")
_UNLIMITED = ("t5", "mt5", "umt5", "bloom")  # families without a largest number of positions
_POSITIONS = ("max_position_embeddings", "n_positions")
_HEADS = ("num_attention_heads", "n_head")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers")


@dataclass(frozen=True)
class ModelFiles:
    """The facts about a model that its files state.

    Attributes:
        name: The name it is asked for by.
        config: The content of config.json.
        has_tokenizer: Whether there is a file that may be a tokenizer's.
    """

    name: str
    config: dict[str, Any]
    has_tokenizer: bool

    @property
    def takes(self) -> frozenset[str]:
        """What the model takes, by its config: "text", "images" or "audio"; two of them for a model of two parts."""
        config = self.config
        if "vision_config" in config or "text_config" in config:
            return frozenset({"text", "images"})
        if "num_mel_bins" in config or "conv_dim" in config:
            return frozenset({"audio"})
        if "image_size" in config or "patch_size" in config:
            return frozenset({"images"})
        return frozenset({"text"}) if "vocab_size" in config else frozenset({"text", "images", "audio"})

    @property
    def positions(self) -> int | None:
        """The largest number of tokens of a text, or more; None if it is not stated."""
        if self.config.get("model_type") in _UNLIMITED or self.takes != {"text"}:
            return None
        return self._number(_POSITIONS)

    @property
    def layers(self) -> int | None:
        """The number of layers; None if it is not stated, or if there are two stacks of layers."""
        return None if self.config.get("is_encoder_decoder") else self._number(_LAYERS)

    @property
    def heads(self) -> int | None:
        """The number of heads of a layer; None if it is not stated, or if there are two stacks of layers."""
        return None if self.config.get("is_encoder_decoder") else self._number(_HEADS)

    def _number(self, names: tuple[str, ...]) -> int | None:
        return next((value for name in names if isinstance(value := self.config.get(name), int)), None)


def read_model_files(name: str, revision: str | None = None) -> ModelFiles | None:
    """Return what the files of a model say.

    Args:
        name: A name as `howsmooth.load` takes it.
        revision: The branch, tag or commit of a model on the hub.

    Returns:
        The facts; None where there is no config.json to read: a GGUF file, random weights, attention layers alone.

    Raises:
        InputError: There is no such model.

    Example:
        >>> files = read_model_files("minilm")
        >>> files.layers, files.positions, files.has_tokenizer
        (6, 512, True)
    """
    locations.check_revision(name, revision)
    if name.startswith("random:") or name == "mpnet":
        return None
    if name.endswith(".safetensors"):
        if not Path(name).expanduser().is_file():
            raise InputError(f"expected a .safetensors file, got {name!r}, which does not exist; check the path")
        return None
    if name in EMBEDDED:
        folder = embedded_path(name)
    else:
        locations.check_path(name)
        folder = Path(name).expanduser()
        if not folder.exists():
            return _read_hub_config(name, revision)
    return _read_folder(name, folder) if folder.is_dir() else None


def _read_folder(name: str, folder: Path) -> ModelFiles | None:
    try:
        config = read_json(folder / "config.json")
    except InputError:  # loading reports damaged files
        return None
    check_counts(config, name)
    has_tokenizer = any(any(folder.glob(pattern)) for pattern in _TOKENIZER_FILES)
    return ModelFiles(name, config, has_tokenizer)


def _read_hub_config(name: str, revision: str | None) -> ModelFiles | None:
    """Return what the config of a model on the hub says; raise InputError if there is certainly no such model."""
    import huggingface_hub
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    try:
        cached = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
        if isinstance(cached, str):
            files = _read_folder(name, Path(cached).parent)
            return (
                None if files is None else ModelFiles(name, files.config, True)
            )  # a cache may have a part of the files
        location = locations.locate(name, revision, None)
        if location.local_only:
            raise _unknown_name(name, location)
        huggingface_hub.model_info(name, revision=revision)
    except (HFValidationError, RepositoryNotFoundError):
        raise _unknown_name(name, locations.locate(name, revision, None)) from None
    except InputError:
        raise
    except Exception:  # of the network: loading reports what is wrong
        return None
    return None


def _unknown_name(name: str, location: locations.ModelLocation) -> InputError:
    near = difflib.get_close_matches(name, [*EMBEDDED, "mpnet"], n=1)
    hint = f"did you mean {near[0]!r}?" if near else location.remedy
    return InputError(f"cannot load {name!r} ({location.tried}): nothing there; {hint}")


def check_positions(name: str, positions: int | None, longest: int) -> None:
    """Raise InputError if a length exceeds the positions of a model."""
    if positions is not None and longest > positions:
        raise InputError(
            f"expected lengths of at most {positions} tokens, the positions of {name}, got {longest}; ask for shorter "
            "lengths, or for tokens without a text (--inputs normalised)"
        )


def check_tokenizer(name: str) -> None:
    """Raise InputError if the place to take a tokenizer from is a path that does not exist."""
    if locations.looks_like_path(name) and not Path(name).expanduser().exists():
        raise InputError(
            f"expected a folder or a name to take the tokenizer from, got {name!r}, which does not exist; check it"
        )


def missing_tokenizer(name: str, reason: str, suggested: str = "NAME") -> InputError:
    """Return the error for a model without a tokenizer where a text is given.

    Args:
        name: The name of the model.
        reason: Why there is none.
        suggested: The tokenizer that the message suggests.
    """
    return InputError(
        f"expected a tokenizer for {name!r}, got none ({reason}); name a folder or a hub model that has one: "
        f"--tokenizer {suggested} on the command line, tokenizer={suggested!r} in load(); or measure random token ids: "
        "--inputs ids"
    )


def list_files(media: str, path: str | os.PathLike[str], count: int | None = None) -> list[Path]:
    """Return a file of images or sounds, or the first such files of a folder by name.

    Args:
        media: A key of `MEDIA_SUFFIXES`.
        path: The file or the folder.
        count: How many; by default all.

    Raises:
        InputError: The path does not exist, or has fewer files.
    """
    root, what = Path(path).expanduser(), "images" if media == "images" else "sounds"
    if root.is_dir():
        files = sorted(file for file in root.iterdir() if file.suffix.lower() in MEDIA_SUFFIXES[media])
    elif root.is_file():
        files = [root]
    else:
        raise InputError(f"expected a file or a folder of {what}, got {str(path)!r}, which does not exist; check it")
    if len(files) < (count or 1):
        wanted = f"{count} {what}" if (count or 1) > 1 else f"1 {what[:-1]}"
        raise InputError(f"expected {wanted} in {str(path)!r}, got {len(files)}; add some, or ask for fewer")
    return files[:count]
