"""howsmooth: how smooth is attention, in this model, on this text, at this length?

Packages are loaded when first used, so that `import howsmooth` and `howsmooth --help` are instant.
"""

from __future__ import annotations

import importlib

__version__ = "0.2.0"

_ENTRY_POINTS = {
    "SelfAttention": "howsmooth.attention",
    "Rotary": "howsmooth.attention",
    "attend": "howsmooth.attention",
    "local_lipschitz": "howsmooth.lipschitz",
    "lipschitz_penalty": "howsmooth.lipschitz",
    "token_gains": "howsmooth.lipschitz",
    "Estimate": "howsmooth.lipschitz",
    "load": "howsmooth.models",
    "register": "howsmooth.models",
    "measure": "howsmooth.measurements",
    "read": "howsmooth.measurements",
    "Measurements": "howsmooth.measurements",
    "InputError": "howsmooth.errors",
    "NotConverged": "howsmooth.errors",
}

_PACKAGES = ("attack", "attention", "bounds", "dynamics", "fits", "kernels", "lipschitz", "models", "records", "report",
             "spectral", "studies", "texts", "transport")

__all__ = [*_ENTRY_POINTS, *_PACKAGES, "__version__"]


def __getattr__(name: str):
    if name in _ENTRY_POINTS:
        return getattr(importlib.import_module(_ENTRY_POINTS[name]), name)
    if name in _PACKAGES:
        return importlib.import_module(f"howsmooth.{name}")
    raise AttributeError(f"module 'howsmooth' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__():
    return __all__
