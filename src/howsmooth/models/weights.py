"""The weight files of a model folder, checked before anything of them is read.

A folder may come from a stranger. Its index names files, its files may be devices or pipes, and a small header can
declare terabytes: which files are read, that they are in the folder, of which form they are and how large is known
from names, file status and safetensors headers alone.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from howsmooth.errors import InputError

ADAPTER = "adapter_config.json"
LARGEST_TEXT = 1 << 28  # bytes of a config, an index or a tokenizer
_TEXTS = (".json", ".txt", ".model", ".tiktoken", ".jinja", ".py")
LARGEST_COUNT = 4096  # layers, experts or blocks in a config
_COUNTS = ("layer", "layers", "expert", "experts", "block", "blocks", "depth")  # how the names of such numbers end


def weight_files(folder: Path) -> tuple[Path, ...]:
    """Return the weight files of a folder that transformers reads.

    Raises:
        InputError: An index cannot be read or names a file outside of the folder, a file is not a regular file, a
            safetensors file has another size than its header says, or the folder has an adapter.
    """
    if (folder / ADAPTER).exists():
        raise adapter_error(folder.name)
    files = [*_checkpoint(folder)]
    for file in files:
        check_regular(file)
        if file.suffix == ".safetensors":
            safetensors_elements(file)
    return tuple(files)


def _checkpoint(folder: Path) -> Iterable[Path]:
    """Return the files of the checkpoint, in the order in which transformers searches for them."""
    explicit = read_json(folder / "config.json").get("transformers_weights")
    names = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
    for name in (explicit,) if isinstance(explicit, str) else names:
        file = folder / name
        if not (file.exists() or file.is_symlink()):
            continue
        if name.endswith(".index.json"):
            return shards(file, folder)
        return (file if explicit is None else _inside(name, folder, "config.json"),)
    return ()


def shards(index: Path, folder: Path) -> list[Path]:
    """Return the files that the index of a sharded checkpoint names, in order.

    Args:
        index: The index, a JSON file.
        folder: The folder that the files are in.

    Raises:
        InputError: The index cannot be read, or names a file outside of the folder.
    """
    named = read_json(index).get("weight_map")
    if not isinstance(named, dict) or not named or not all(isinstance(name, str) for name in named.values()):
        raise InputError(
            f"expected a weight_map with file names in {str(index)!r}, got none; fetch the index of the weights again"
        )
    return [_inside(name, folder, index.name) for name in sorted(set(named.values()))]


def adapter_error(name: str) -> InputError:
    """Return the error for a model with an adapter: without peft it has no effect, and its base may be any model."""
    return InputError(
        f"model {name!r}: expected a whole model, got an adapter ({ADAPTER}); merge it with peft's "
        "merge_and_unload, or remove it"
    )


def _inside(name: str, folder: Path, index: str) -> Path:
    """Return the path of a file that an index names; raise InputError if it is not in the folder, even by a link.

    The hub's cache has links to the folder `blobs` beside `snapshots`, and so have folders that its client made.
    """
    path = folder / name
    target, root = path.resolve(), folder.resolve()
    blobs = target.parent
    in_cache = blobs.name == "blobs" and (blobs.parent / "snapshots").is_dir()
    named_inside = not Path(name).is_absolute() and ".." not in Path(name).parts
    if not named_inside or not (target.is_relative_to(root) or in_cache):
        raise InputError(
            f"expected weights inside of the model folder, got {name!r} in {index} of {str(folder)!r}; put the file "
            "into the folder, and name it there"
        )
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a model.

    Raises:
        InputError: The file is too large, is not a regular file, or has no object.
    """
    check_regular(path)
    if (size := path.stat().st_size) > LARGEST_TEXT:
        raise InputError(
            f"expected at most {LARGEST_TEXT >> 20} MiB of JSON, got {size >> 20} MiB in {str(path)!r}; fetch it again"
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error).splitlines()[0]
        raise InputError(f"expected JSON, got {str(path)!r} ({reason}); fetch the file again") from None
    if not isinstance(content, dict):
        raise InputError(f"expected a JSON object, got {str(path)!r} without one; fetch the file again")
    return content


def check_texts(folder: Path) -> None:
    """Raise InputError if a config, a vocabulary or another text in a model folder is too large, a device or a pipe."""
    for file in sorted(folder.iterdir()):
        if file.suffix not in _TEXTS or file.is_dir() or not file.exists():
            continue
        check_regular(file)
        if (size := file.stat().st_size) > LARGEST_TEXT:
            what = "JSON" if file.suffix == ".json" else "text"
            raise InputError(
                f"expected at most {LARGEST_TEXT >> 20} MiB of {what}, got {size >> 20} MiB in {str(file)!r}; "
                "fetch it again"
            )


def check_regular(path: Path) -> None:
    """Raise InputError unless a path is a regular file, or a link to one."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise InputError(
            f"expected the file {str(path)!r}, got none that can be read ({(error.strerror or str(error)).lower()}); "
            "fetch it again"
        ) from None
    if not stat.S_ISREG(mode):
        raise InputError(
            f"expected a regular file, got {str(path)!r}, a device, a pipe or a folder; replace it by the file itself"
        )


def safetensors_elements(path: Path) -> int:
    """Return the number of weights of a safetensors file by its header; the size of the file is checked against it.

    Raises:
        InputError: The file is not a regular file, or is not as its header says.
    """
    check_regular(path)
    try:
        with safe_open(path, framework="numpy") as file:
            names = file.keys()  # not a dict: it cannot be iterated itself
            return sum(prod(file.get_slice(name).get_shape()) for name in names)
    except (SafetensorError, OSError) as error:
        raise InputError(
            f"expected a whole safetensors file, got {str(path)!r} ({str(error).splitlines()[0]}); fetch it again"
        ) from None


def check_counts(config: dict[str, Any], name: str) -> None:
    """Raise InputError if a config declares more layers or experts than any model has: building them never ends.

    Args:
        config: The content of config.json; configs of parts are searched as well.
        name: The name of the model.
    """
    waiting = [config]
    while waiting:
        part = waiting.pop()
        for key, value in part.items():
            if isinstance(value, dict):
                waiting.append(value)
            elif isinstance(value, int) and value > LARGEST_COUNT and key.endswith(_COUNTS):
                raise InputError(
                    f"model {name!r}: expected at most {LARGEST_COUNT} layers, got {key} = {value} in its config; "
                    "fetch the config again"
                )


def check_fits(needed: int, free: int | None, name: str, what: str) -> None:
    """Raise InputError if a model does not fit into the free memory.

    Args:
        needed: How many bytes it takes.
        free: How many bytes are free; None if that is not known.
        name: The name of the model.
        what: What takes them.
    """
    if free is not None and needed > free:
        raise InputError(
            f"model {name!r}: expected at most {free / 2**30:.1f} GiB, the free memory, got {needed / 2**30:.1f} GiB "
            f"for {what}; use a narrower dtype or a smaller model"
        )
