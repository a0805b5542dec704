"""Constants during training: a monitor for a loop of one's own, for transformers' Trainer and for Lightning."""

from howsmooth.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__)
