"""What determines the numbers of a model: every file that is read, and the configuration as the network has it.

A result is used again only for an equal identity. Where code or weights may have been changed in Python, and cannot be
hashed, the identity equals no other one.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from howsmooth.models.embedded import sha256_of
from howsmooth.models.weights import weight_files

if TYPE_CHECKING:
    import torch

    from howsmooth.models.model import Model

_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_OTHER_FILES = ("config.json", "preprocessor_config.json", "processor_config.json", "*.index.json", "*.py")
_SOURCE_FIELDS = ("sha256", "revision", "repository", "architecture", "seed", "initializer_range", "causal", "part")
_NOT_IN_THE_MAP = ("_name_or_path", "transformers_version")  # fields of a config that change no number
_PACKAGED = ("torch", "transformers", "howsmooth")  # code that a record states the version of
_COMMIT = re.compile("[0-9a-f]{40}")  # a branch of a repository on the hub may move
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


def folder_hashes(folder: Path, *, weights: bool = True) -> dict[str, str]:
    """Return the hash of every file of a model folder that loading reads: weights, configs, tokenizer, code.

    Shards are those that the index names.

    Args:
        folder: A folder with a config.json.
        weights: Whether its weights are read.

    Returns:
        SHA-256 by the name of the file, relative to the folder.
    """
    return {name: sha256_of(folder / name) for name in sorted(_files_read(folder, weights))}


def file_states(name: str) -> list[tuple[str, int, int, int, int]]:
    """Return (path, size, times of change, inode) of each file that loading a folder or a file by this name reads.

    They are read without the contents: equal states mean that a model in memory is still that of the files.
    """
    path = Path(name.removeprefix("random:")).expanduser()
    files = [path / inner for inner in sorted(_files_read(path))] if (path / "config.json").is_file() else [path]
    states = [(file, file.stat()) for file in files if file.is_file()]
    # Of both times, a program may set the first one back.
    return [(str(file), state.st_size, state.st_mtime_ns, state.st_ctime_ns, state.st_ino) for file, state in states]


def _files_read(folder: Path, weights: bool = True) -> Iterator[str]:
    names = {file.name for pattern in (*_OTHER_FILES, *_TOKENIZER_FILES) for file in folder.glob(pattern)}
    if weights:
        names |= {file.relative_to(folder).as_posix() for file in weight_files(folder)}
    return (name for name in names if (folder / name).is_file())


def model_identity(model: Model, *, from_files: bool = True) -> dict[str, Any]:
    """Return the fields that distinguish this model's numbers from those of every other model.

    Args:
        model: The model.
        from_files: Whether the model is as `howsmooth.load` read it. A model that a caller had in hand may have been
            changed since: nothing that was computed with it is used again.

    Returns:
        Hashes of files, of the resolved configuration and of code that belongs to no package with a version. If
        something cannot be hashed, a field `unique` makes the identity differ from all others.
    """
    source = model.source
    # In keys the origin is called kind: with another name they would differ from those of all existing records.
    identity = {
        "kind": source["origin"],
        **{name: source[name] for name in _SOURCE_FIELDS if source.get(name) is not None},
    }
    network = getattr(model, "network", None)  # a file of attention layers has none
    if network is not None:
        config = {key: value for key, value in network.config.to_dict().items() if key not in _NOT_IN_THE_MAP}
        text = json.dumps(config, sort_keys=True, default=str)
        identity["config"] = hashlib.sha256(text.encode()).hexdigest()
        if code := _code_hashes(network):
            identity["code"] = code
    is_branch = source["origin"] == "hub" and not _COMMIT.fullmatch(str(identity.get("revision")))
    changed = not from_files or source["origin"] == "object" or is_branch
    if changed or (network is not None and _has_code_of_its_own(network)):
        identity["unique"] = uuid.uuid4().hex
    return identity


def _code_hashes(network: torch.nn.Module) -> dict[str, str]:
    """Return the hash of each source file that defines a module of the network outside of `_PACKAGED`."""
    names = {kind.__module__ for module in network.modules() for kind in type(module).__mro__}
    return {name: sha256_of(file) for name in sorted(names) if _is_foreign(name) and (file := _source_file(name))}


def _has_code_of_its_own(network: torch.nn.Module) -> bool:
    """Return whether the network runs code that has no file to hash: hooks, replaced methods, classes of a session."""
    import torch

    if any(getattr(torch.nn.modules.module, name, None) for name in _GLOBAL_HOOKS):
        return True
    for module in network.modules():
        hooks = [hook for name in _HOOKS for hook in getattr(module, name, {}).values()]
        if any(_is_foreign(getattr(hook, "__module__", None) or type(hook).__module__) for hook in hooks):
            return True
        if "forward" in vars(module):
            return True
    kinds = {type(module) for module in network.modules()}
    return any(
        (_is_foreign(kind.__module__) and _source_file(kind.__module__) is None) or _is_replaced(kind) for kind in kinds
    )


def _is_replaced(kind: type) -> bool:
    """Return whether the forward pass of a class was set by code that neither the class nor a package belongs to."""
    code = getattr(getattr(kind, "forward", None), "__globals__", {}).get("__name__", "")
    return _is_foreign(code) and code not in {base.__module__ for base in kind.__mro__}


def _is_foreign(module: str) -> bool:
    return module.partition(".")[0] not in (*_PACKAGED, "builtins", "abc", "typing")


def _source_file(module: str) -> Path | None:
    file = getattr(sys.modules.get(module), "__file__", None)
    return None if module == "__main__" or file is None or not Path(file).is_file() else Path(file)
