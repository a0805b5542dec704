"""Inputs with a large local Lipschitz constant, in closed form and by gradient ascent, and attacks on models."""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
