"""Studies: the spec of what to measure, its plan, the worker that computes it, engines, and the store of records.

Modules are imported when a name is first used: reading a study file does not import torch.
"""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
