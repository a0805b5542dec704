"""Fields x ↦ Γ_μ(x): maps of measures, such as attention of every kind, mean pooling and pointwise maps."""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
