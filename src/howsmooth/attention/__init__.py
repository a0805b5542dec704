"""The attention map and its exact derivative."""

from howsmooth.attention.fields import (
    Field,
    L2Field,
    LinearField,
    MeanPooling,
    Pointwise,
    SigmoidField,
    SinkhornField,
    SoftmaxField,
)
from howsmooth.attention.heads import Rotary, SelfAttention
from howsmooth.attention.jacobian import AttentionJacobian, abstract_jacobian
from howsmooth.attention.l2 import L2Attention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.attention.op import attend

__all__ = [
    "AttentionJacobian",
    "Field",
    "L2Attention",
    "L2Field",
    "LinearField",
    "MeanPooling",
    "Normalisation",
    "Pointwise",
    "Rotary",
    "SelfAttention",
    "SigmoidField",
    "SinkhornField",
    "SoftmaxField",
    "attend",
    "abstract_jacobian",
]
