"""Texts: corpora from files, folders and datasets, and their division into chunks of n tokens.

Names are imported when they are first used: reading a corpus does not import torch.
"""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
