"""Local Lipschitz constants of attention and of any other torch map, with certified intervals."""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
