"""The attention map and its exact derivative."""

from howsmooth.attention.heads import Rotary, SelfAttention
from howsmooth.attention.jacobian import AttentionJacobian, outline
from howsmooth.attention.l2 import L2Attention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.attention.op import attend

__all__ = ["AttentionJacobian", "L2Attention", "Normalisation", "Rotary", "SelfAttention", "attend",
           "outline"]
