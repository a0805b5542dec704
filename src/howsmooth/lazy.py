"""Names of a package that are imported when they are first used.

Importing torch and transformers takes seconds; `import howsmooth` and `howsmooth --help` take milliseconds. A package
lists its names in a dictionary for Python, and again under `if TYPE_CHECKING:` and in `__all__` for type checkers and
editors. `tests/test_entry_points.py` compares the three.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from howsmooth.extras import missing_package


def attach(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package whose names are imported on first use.

    Args:
        package: The package's `__name__`.
        modules: For each name, the module that defines it. A module listed under its own name is returned itself.

    Returns:
        The two functions. `__getattr__` raises an AttributeError that lists the names for any other name, and an error
        that says what to install if a name needs a package that is missing; `__dir__` returns the package's `__all__`.

    Example:
        >>> lookup, names = attach("json", {"JSONDecoder": "json.decoder", "scanner": "json.scanner"})
        >>> lookup("scanner").__name__, "JSONDecoder" in names()
        ('json.scanner', True)
    """
    names = list(modules)

    def getattr_(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(names)}")
        try:
            module = importlib.import_module(modules[name])
        except ModuleNotFoundError as error:
            raise missing_package(error, f"for {package}.{name}") or error from None
        return module if modules[name] == f"{package}.{name}" else getattr(module, name)

    def dir_() -> list[str]:
        return list(sys.modules[package].__all__)

    return getattr_, dir_


def deferred(location: str) -> Callable[..., Any]:
    """Return a function that imports the one at "module:name" when it is called.

    Tables and figures import torch or scipy; a command must be able to report an error in its options before that.

    Example:
        >>> deferred("math:sqrt")(4.0)
        2.0
    """
    module, _, name = location.partition(":")

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments, **options)

    return call
