"""howsmooth: how smooth is attention, in this model, on this text, at this length?

Rooms are loaded when first used, so that `import howsmooth` and `howsmooth --help` are instant.
"""

from __future__ import annotations

import importlib

__version__ = "0.1.0"

_FRONT_DOOR = {
    "SelfAttention": "howsmooth.attention",
    "Rotary": "howsmooth.attention",
    "attend": "howsmooth.attention",
    "local_lipschitz": "howsmooth.lipschitz",
    "lipschitz_penalty": "howsmooth.lipschitz",
    "token_gains": "howsmooth.lipschitz",
    "Estimate": "howsmooth.lipschitz",
    "load": "howsmooth.models",
    "register": "howsmooth.models",
    "InputError": "howsmooth.errors",
    "NotConverged": "howsmooth.errors",
}

_ROOMS = ("attack", "attention", "bounds", "dynamics", "kernels", "lipschitz", "models", "report", "spectral",
          "studies", "texts", "transport")

__all__ = [*_FRONT_DOOR, *_ROOMS, "__version__"]


def __getattr__(name: str):
    if name in _FRONT_DOOR:
        return getattr(importlib.import_module(_FRONT_DOOR[name]), name)
    if name in _ROOMS:
        return importlib.import_module(f"howsmooth.{name}")
    raise AttributeError(f"module 'howsmooth' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__():
    return __all__
