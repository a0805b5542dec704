"""Matrix-free singular values with certified intervals, for any linear operator."""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
