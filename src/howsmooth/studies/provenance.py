"""Where a number comes from: versions, and the commit if the package runs from a checkout."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import howsmooth


def provenance() -> dict[str, Any]:
    """What every record of a run says about the software that made it."""
    packages = ("torch", "transformers", "tokenizers", "numpy", "scipy")
    return {
        "versions": {"howsmooth": howsmooth.__version__, "python": platform.python_version(),
                     **{package: _installed(package) for package in packages}},
        "commit": commit(),
    }


def commit() -> str | None:
    """The commit of the checkout that holds this package, with + if files differ from it; None elsewhere."""
    root = Path(howsmooth.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    try:
        line = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
        head = subprocess.run(line, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() or None


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
