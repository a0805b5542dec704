"""Names of a package that are imported when they are first used.

Importing torch and transformers takes seconds; `import howsmooth` and `howsmooth --help` take milliseconds. The names
of such a package, and the modules that define them, are in its `__init__.pyi` alone: type checkers and editors read it
as they read any stub, and `attach` reads it at run time. They are in order of importance, as in the reference.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from howsmooth.extras import missing_package


def attach(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` for a package whose names are imported on first use.

    Args:
        package: The package's `__name__`.

    Returns:
        The two functions and the names. `__getattr__` raises an AttributeError that lists the names for any other name,
        and an error that says what to install if a name needs a package that is missing.

    Example:
        >>> lookup, names, listed = attach("howsmooth.texts")
        >>> lookup("word").__module__, "word" in names(), listed[0]
        ('howsmooth.texts.cutting', True, 'read_corpus')
    """
    stub = Path(str(sys.modules[package].__file__)).with_suffix(".pyi")
    origins = read_stub(stub.read_text(encoding="utf-8"))
    names = [*origins, *(name for name in ("__version__",) if hasattr(sys.modules[package], name))]

    def getattr_(name: str) -> Any:
        if name not in origins:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(origins)}")
        module, original = origins[name]
        try:
            if module == package:
                return importlib.import_module(f"{package}.{original}")
            return getattr(importlib.import_module(module), original)
        except ModuleNotFoundError as error:
            raise missing_package(error, f"for {package}.{name}") or error from None

    return getattr_, lambda: sorted(names), names


def read_stub(source: str) -> dict[str, tuple[str, str]]:
    """Return the names that a stub imports, each with its module and its name there.

    Example:
        >>> read_stub("from json.decoder import JSONDecoder as JSONDecoder")
        {'JSONDecoder': ('json.decoder', 'JSONDecoder')}
    """
    imports = (node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom))
    return {alias.asname or alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}


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
