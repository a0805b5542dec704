"""Packages that `pip install howsmooth` leaves out: the extra that installs each, and the error if one is missing.

`pyproject.toml` has their versions.
"""

from __future__ import annotations

import importlib.util
import sys

from howsmooth.errors import InputError

# The packages of each extra, by their names on the package index.
EXTRAS = {
    "models": (
        "transformers",
        "tokenizers",
        "huggingface_hub",
        "safetensors",
        "click",
        "rich",
        "pydantic",
        "jinja2",
        "matplotlib",
    ),
    "gguf": ("gguf", "accelerate"),
    "parquet": ("pyarrow",),
    "ray": ("ray",),
    "transport": ("POT",),
    "flow": ("torchdiffeq",),
    "lightning": ("lightning",),
    "explore": ("gradio",),
    "datasets": ("datasets", "nltk"),
    "notebook": ("nbclient", "nbformat", "ipykernel"),
    "test": ("pytest", "hypothesis"),
}
_MODULES = {"POT": "ot"}  # where the name to import is another
_EXTRA_OF = {package: extra for extra, packages in EXTRAS.items() for package in packages}
_PACKAGE_OF = {_MODULES.get(package, package): package for package in _EXTRA_OF}


class MissingPackage(InputError, ImportError):
    """A package of an extra is not installed. The message names the extra."""


def require(*packages: str, purpose: str, otherwise: str = "") -> None:
    """Raise MissingPackage unless all of these packages are installed.

    Args:
        packages: Packages of one extra, by their names in `EXTRAS`. They are not imported.
        purpose: What they are needed for: "for …" or "to …".
        otherwise: What to do instead of installing them: "or …".

    Raises:
        MissingPackage: If one is not installed.

    Example:
        >>> require("safetensors", purpose="to read weights")
        >>> EXTRAS["models"][0]
        'transformers'
    """
    missing = [package for package in packages if not _is_installed(_MODULES.get(package, package))]
    if missing:
        raise MissingPackage(
            f"expected {' and '.join(missing)} {purpose}, got none installed; {install(missing[0])}"
            + (f", {otherwise}" if otherwise else "")
        )


def missing_package(error: ModuleNotFoundError, purpose: str) -> MissingPackage | None:
    """Return the error of `require` for a failed import; None if no extra has the module.

    Example:
        >>> print(missing_package(ModuleNotFoundError(name="transformers.models"), "for howsmooth.load"))
        expected transformers for howsmooth.load, got none installed; pip install 'howsmooth[models]'
    """
    package = _PACKAGE_OF.get((error.name or "").partition(".")[0])
    if package is None:
        return None
    return MissingPackage(f"expected {package} {purpose}, got none installed; {install(package)}")


def install(package: str) -> str:
    """Return the command that installs a package of an extra.

    Example:
        >>> install("gradio")
        "pip install 'howsmooth[explore]'"
    """
    return f"pip install 'howsmooth[{_EXTRA_OF[package]}]'"


def _is_installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    return importlib.util.find_spec(module) is not None
