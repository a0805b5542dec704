"""Depth: tokens as particles under attention, Gaussian flows, densities, clusters.

Modules are imported when a name is first used: reading a declared flow does not import torch.
"""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
