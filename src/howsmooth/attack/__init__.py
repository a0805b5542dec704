"""Inputs with a large local Lipschitz constant, in closed form and by gradient ascent, and attacks on models.

Names are imported when they are first used: the norms of budgets are listed without importing torch.
"""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
