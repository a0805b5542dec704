"""Provenance of records: versions and commit."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import howsmooth


def provenance() -> dict[str, Any]:
    """Return the versions and the commit that every record contains."""
    recorded_packages = ("torch", "transformers", "tokenizers", "numpy", "scipy")
    return {
        "versions": {
            "howsmooth": howsmooth.__version__,
            "python": platform.python_version(),
            **{package: installed(package) for package in recorded_packages},
        },
        "commit": commit(),
    }


def commit() -> str | None:
    """Return the commit of the checkout that this package is in, with + if files differ; None outside of a checkout."""
    root = Path(howsmooth.__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    # `describe --dirty` would refresh git's index, under a lock that makes a commit at the same time fail.
    line = ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain=2", "--branch", "-uno"]
    try:
        status = subprocess.run(line, capture_output=True, text=True, timeout=10, check=True).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return None
    head = next((text.split()[-1] for text in status if text.startswith("# branch.oid ")), "")
    changed = any(not text.startswith("#") for text in status)
    return head + "+" * changed if head.isalnum() else None  # "(initial)" before the first commit


def installed(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
