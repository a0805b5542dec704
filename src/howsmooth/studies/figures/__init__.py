"""The figures of "How Smooth Is Attention?", each defined by a TOML file, also for other models."""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
