"""The attention map and its exact derivative."""

from howsmooth.attention.heads import Rotary, SelfAttention
from howsmooth.attention.jacobian import AttentionJacobian
from howsmooth.attention.normalisation import Normalisation
from howsmooth.attention.op import attend

__all__ = ["AttentionJacobian", "Normalisation", "Rotary", "SelfAttention", "attend"]
