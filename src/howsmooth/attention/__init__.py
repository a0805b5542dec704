"""The attention map and its exact derivative."""

from howsmooth.attention.drop_in import replace_sdpa, scaled_dot_product_attention
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
from howsmooth.attention.heads import SelfAttention
from howsmooth.attention.implementation import Implementation, implementation
from howsmooth.attention.jacobian import AttentionJacobian, abstract_jacobian
from howsmooth.attention.l2 import L2Attention
from howsmooth.attention.normalisation import Normalisation
from howsmooth.attention.op import attend, attend_with_lse
from howsmooth.attention.rotary import Rotary
from howsmooth.attention.sparse import SparseMask
from howsmooth.attention.statistics import AttentionStatistics, attention_statistics
from howsmooth.attention.weighted import WeightedAttention

__all__ = [
    "SelfAttention",
    "attend",
    "attend_with_lse",
    "SparseMask",
    "scaled_dot_product_attention",
    "replace_sdpa",
    "implementation",
    "Implementation",
    "AttentionJacobian",
    "Rotary",
    "Normalisation",
    "L2Attention",
    "WeightedAttention",
    "Field",
    "SoftmaxField",
    "L2Field",
    "SinkhornField",
    "SigmoidField",
    "LinearField",
    "MeanPooling",
    "Pointwise",
    "attention_statistics",
    "AttentionStatistics",
    "abstract_jacobian",
]
