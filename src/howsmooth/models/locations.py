"""Where a model is loaded from: an installed package, a GGUF file, a folder, or the hub."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants

from howsmooth.errors import InputError
from howsmooth.models.embedded import EMBEDDED, MPNET_REQUIREMENTS, assemble_mpnet, embedded_path
from howsmooth.models.identity import folder_hashes
from howsmooth.models.weights import check_fits, check_texts, weight_files


@dataclass(frozen=True)
class ModelLocation:
    """Where a model is loaded from.

    Attributes:
        path: The argument of `from_pretrained`; None for a network without files.
        source: The provenance of the weights, for records.
        local_only: Whether only local files are read.
        tried: What was tried, for error messages.
        remedy: What to do if loading fails, for error messages.
        is_hub: Whether the path is a name on the hub.
        tokenizer: The name of the tokenizer on the hub, if there is no path to read one from.
        revision: The branch, tag or commit of a model on the hub.
        trust_remote_code: Whether code that comes with the model is run.
        weights: The weight files, checked; empty for a model on the hub, and where no weights are asked for.
    """

    path: str | None
    source: dict[str, Any]
    local_only: bool
    tried: str = ""
    remedy: str = "check that the folder contains a complete model"
    is_hub: bool = False
    tokenizer: str | None = None
    revision: str | None = None
    trust_remote_code: bool = False
    weights: tuple[Path, ...] = ()

    def read(self, kind: Any, **options: Any) -> Any:
        """Read a config, a model, a tokenizer or a processor from here.

        Args:
            kind: An auto class of transformers.
            options: Further arguments of its `from_pretrained`.
        """
        return kind.from_pretrained(
            self.path,
            local_files_only=self.local_only,
            revision=self.revision,
            trust_remote_code=self.trust_remote_code,  # never None: transformers would ask on the terminal
            **options,
        )


def locate(
    name: str,
    revision: str | None,
    cache_dir: str | os.PathLike[str] | None,
    *,
    trust_remote_code: bool = False,
    weights: bool = True,
) -> ModelLocation:
    """Return the location of the model with a name.

    Args:
        name: The name of an embedded model, a folder, a .gguf file, or a name on the hub.
        revision: The branch, tag or commit of a model on the hub.
        cache_dir: The cache folder.
        trust_remote_code: Whether code that comes with the model may be run.
        weights: Whether the weights of a folder will be read; otherwise they are neither checked nor hashed.

    Raises:
        InputError: The name is a path that does not exist or is not a model, a revision is given of a model that is
            not on the hub, or a package is not installed.
    """
    check_revision(name, revision)
    found = _locate(name, revision, cache_dir, weights)
    return replace(found, revision=revision, trust_remote_code=trust_remote_code)


def _locate(name: str, revision: str | None, cache_dir: str | os.PathLike[str] | None, weights: bool) -> ModelLocation:
    if name in EMBEDDED:
        path = embedded_path(name)
        source = {"origin": "embedded", "package": EMBEDDED[name].requirement}
        return _gguf(path, cache_dir, source) if path.suffix == ".gguf" else _folder(path, source, weights)
    if name == "mpnet":
        source = {"origin": "embedded", "package": " ".join(MPNET_REQUIREMENTS)}
        return _folder(assemble_mpnet(cache_dir), source, weights)
    check_path(name)
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return _gguf(path, cache_dir, {"origin": "gguf", "path": str(path)})
    return _folder(path, {"origin": "folder", "path": str(path)}, weights) if path.is_dir() else _hub(name, revision)


def check_revision(name: str, revision: str | None) -> None:
    """Raise InputError if a revision is given of a model that is not on the hub, where it would have no effect."""
    is_local = name in (*EMBEDDED, "mpnet") or Path(name).expanduser().exists()
    if revision is not None and is_local:
        raise InputError(
            f"expected a revision only of a model on the Hub, got {revision!r} of {name}, which is on this machine; "
            "leave it out"
        )


def looks_like_path(name: str) -> bool:
    """Return whether a name can only be a path, and not a name on the hub.

    Example:
        >>> looks_like_path("./my-model"), looks_like_path("someone/model")
        (True, False)
    """
    return name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name


def check_path(name: str) -> None:
    """Raise InputError if a name is a path that does not exist, or that is not a model."""
    path = Path(name).expanduser()
    if path.is_dir():
        _check_folder(path)
    elif path.suffix == ".gguf":
        if not path.is_file():
            raise InputError(f"expected a GGUF file, got {str(path)!r}, which does not exist; check the path")
    elif path.is_file():
        raise InputError(
            f"expected a model folder, a .gguf file or a name, got the file {name!r}; give the folder it lies in"
        )
    elif looks_like_path(name):
        raise InputError(f"expected a model folder, got {name!r}, which does not exist; check the path")


def _check_folder(path: Path) -> None:
    if not (path / "config.json").is_file():
        hint = next((f"; it contains {file.name}: give that file" for file in path.glob("*.gguf")), "")
        raise InputError(
            f"expected a model folder with a config.json, got {str(path)!r} without one{hint or '; check the path'}"
        )


def _folder(path: Path, origin: dict[str, Any], weights: bool) -> ModelLocation:
    _check_folder(path)
    check_texts(path)  # before they are hashed
    files = weight_files(path) if weights else ()
    if files:
        from howsmooth.models.memory import free_memory  # imports torch; errors about names and folders need none

        check_fits(sum(file.stat().st_size for file in files), free_memory(), path.name, "its weight files")
    form = "safetensors" if files and all(file.suffix == ".safetensors" for file in files) else "pickle"
    source = {**origin, "weights": form, "sha256": folder_hashes(path, weights=weights)}
    return ModelLocation(str(path), source, local_only=True, tried="a local folder", weights=files)


def _gguf(path: Path, cache_dir: str | os.PathLike[str] | None, origin: dict[str, Any]) -> ModelLocation:
    from howsmooth.models.gguf_file import convert_gguf  # imports torch; errors about names and folders need none

    converted = convert_gguf(path, cache_dir)
    source = {**origin, "weights": converted.weights, "sha256": {path.name: converted.sha256}}
    return ModelLocation(str(converted.folder), source, local_only=True, tried="the dequantised copy of a GGUF file")


def _hub(name: str, revision: str | None) -> ModelLocation:
    reachable = _is_hub_reachable()
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
    hub = "the hub" if reachable else f"the hub's local cache ({why})"
    return ModelLocation(
        name,
        {"origin": "hub", "repository": name, "revision": revision, "weights": "safetensors"},
        local_only=not reachable,
        tried=f"not an embedded model ({', '.join(EMBEDDED)}), not a local folder; tried {hub}",
        remedy="check the name and the network, or give a local folder, a .gguf file or an embedded model",
        is_hub=True,
    )


def _is_hub_reachable() -> bool:
    """Return whether the hub can be reached. Without a network its own client would retry for 20 seconds per file."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        huggingface_hub.get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # any failure of DNS, route, proxy or certificate
        return False
    return True


def commit_of(name: str, revision: str | None) -> str | None:
    """Return the commit of a hub model that has just been read, for records: a branch may change later."""
    found = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent.name if isinstance(found, str) else revision
