"""The folder of `--artefacts`: tensors that a question saves beside its records."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from howsmooth.errors import InputError

FolderName = Annotated[str, BeforeValidator(lambda name: os.fspath(name) if isinstance(name, os.PathLike) else name)]


def make_folder(name: str, option: str = "--artefacts") -> Path:
    """Create a folder if it does not exist, and return its path.

    Args:
        name: The folder.
        option: The option that names it, for error messages.
    """
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"expected a folder that can be created for {option}, got {name} "
            f"({(error.strerror or str(error)).lower()}); name another one"
        ) from None
    return folder


def make_artefact_folder(spec: Any) -> Path | None:
    """Create the folder of a spec with `artefacts`, and return its path; None if nothing is to be saved."""
    return None if spec.artefacts is None else make_folder(spec.artefacts)


def file_name(at: dict[str, Any], n: int, key: str, prefix: str = "") -> str:
    """Return the name of the file for a place, which no other place has.

    Example:
        >>> file_name({"layer": 3, "head": None, "sample": 0}, 16, "0123456789abcdef0123")
        'layer3-n16-sample0-0123456789abcdef.safetensors'
    """
    numbers = {"layer": at.get("layer"), "head": at.get("head"), "n": n, "sample": at.get("sample")}
    parts = [prefix, *(f"{name}{number}" for name, number in numbers.items() if number is not None), key[:16]]
    return "-".join(part for part in parts if part) + ".safetensors"
