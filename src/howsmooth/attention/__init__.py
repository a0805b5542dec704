"""The attention map and its exact derivative."""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
