"""Models: pretrained or random transformers, the maps of their layers, and the tokens that enter them.

The only package that imports transformers, and only when a name that needs it is first used.
"""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
