"""Measures on tokens, attention as a map of measures, and distances between them."""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
