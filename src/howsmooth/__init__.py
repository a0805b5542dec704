"""howsmooth: how smooth is attention, in this model, on this text, at this length?

Packages are imported when they are first used, so that `import howsmooth` and `howsmooth --help` are instant.
"""

from howsmooth.lazy import attach

__version__ = "0.2.0"
__getattr__, __dir__, __all__ = attach(__name__)
