"""Where a name leads: an installed package, a GGUF file, a folder, or the hub."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

import huggingface_hub
from huggingface_hub import constants

from howsmooth.errors import InputError
from howsmooth.models.embedded import EMBEDDED, embedded_path
from howsmooth.models.gguf_cache import convert_once
from howsmooth.models.joined import REQUIREMENTS, joined_mpnet


@dataclass(frozen=True)
class Place:
    """What to hand to `from_pretrained` (path), to write into records (source), and to say on failure."""

    path: str | None
    source: dict
    local_only: bool
    tried: str = ""
    remedy: str = "check that the folder holds a complete model"
    is_hub: bool = False
    tokenizer: str | None = None  # a hub name, where there is no path to read one from


def locate(name: str, revision: str | None, cache_dir: str | os.PathLike | None) -> Place:
    """Find the one place that `name` means; raise if it clearly means a path that is not there."""
    if name in EMBEDDED:
        path = embedded_path(name)
        origin = {"kind": "embedded", "package": EMBEDDED[name].requirement}
        return _gguf(path, cache_dir, origin) if path.suffix == ".gguf" else _folder(path, origin)
    if name == "mpnet":
        return _folder(joined_mpnet(cache_dir), {"kind": "embedded", "package": " ".join(REQUIREMENTS)})
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return _gguf(path, cache_dir, {"kind": "gguf", "path": str(path)})
    if path.is_dir():
        return _folder(path, {"kind": "folder", "path": str(path)})
    if path.is_file():
        raise InputError(
            f"expected a model folder, a .gguf file or a name, got the file {name!r}; "
            "give the folder it lies in"
        )
    if name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name:
        raise InputError(f"expected a model folder, got {name!r}, which does not exist; check the path")
    return _hub(name, revision)


def _folder(path: Path, origin: dict) -> Place:
    if not (path / "config.json").is_file():
        hint = next((f"; it holds {file.name}: give that file" for file in path.glob("*.gguf")), "")
        raise InputError(
            f"expected a model folder with a config.json, got {str(path)!r} without one"
            f"{hint or '; check the path'}"
        )
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    form = "safetensors" if any(file.suffix == ".safetensors" for file in files) else "pickle"
    source = {**origin, "weights": form, "sha256": {file.name: _sha256(file) for file in files}}
    return Place(str(path), source, local_only=True, tried="a local folder")


def _gguf(path: Path, cache_dir: str | os.PathLike | None, origin: dict) -> Place:
    converted = convert_once(path, cache_dir)
    source = {**origin, "weights": converted.weights, "sha256": {path.name: converted.sha256}}
    return Place(str(converted.folder), source, local_only=True, tried="the dequantised copy of a GGUF file")


def _hub(name: str, revision: str | None) -> Place:
    reachable = _hub_answers()
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
    hub = "the hub" if reachable else f"the hub's local cache ({why})"
    return Place(
        name,
        {"kind": "hub", "repository": name, "revision": revision, "weights": "safetensors"},
        local_only=not reachable,
        tried=f"not an embedded model ({', '.join(EMBEDDED)}), not a local folder; tried {hub}",
        remedy="check the name and the network, or give a local folder, a .gguf file or an embedded model",
        is_hub=True,
    )


def _hub_answers() -> bool:
    """Ask the hub once: without a network its own client would retry for twenty seconds per file."""
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        huggingface_hub.get_session().head(constants.ENDPOINT, timeout=5)
    except Exception:  # any failure of name, route, proxy or certificate means the same here
        return False
    return True


def commit_of(name: str, revision: str | None) -> str | None:
    """Return the commit of a hub model that has just been read: a branch name says nothing a year later."""
    found = huggingface_hub.try_to_load_from_cache(name, "config.json", revision=revision)
    return Path(found).parent.name if isinstance(found, str) else revision


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
