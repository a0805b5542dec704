from howsmooth.attention.heads import SelfAttention as SelfAttention
from howsmooth.attention.op import attend as attend, attend_with_lse as attend_with_lse
from howsmooth.attention.sparse import SparseMask as SparseMask
from howsmooth.attention.drop_in import (
    scaled_dot_product_attention as scaled_dot_product_attention,
    replace_sdpa as replace_sdpa,
)
from howsmooth.attention.backend import implementation as implementation, Implementation as Implementation
from howsmooth.attention.jacobian import AttentionJacobian as AttentionJacobian
from howsmooth.attention.rotary import Rotary as Rotary
from howsmooth.attention.normalisation import Normalisation as Normalisation
from howsmooth.attention.l2 import L2Attention as L2Attention
from howsmooth.attention.statistics import (
    attention_statistics as attention_statistics,
    AttentionStatistics as AttentionStatistics,
)
from howsmooth.attention.weighted import WeightedAttention as WeightedAttention
from howsmooth.attention.fields.field import Field as Field
from howsmooth.attention.fields.softmax import SoftmaxField as SoftmaxField, L2Field as L2Field
from howsmooth.attention.fields.sinkhorn import SinkhornField as SinkhornField
from howsmooth.attention.fields.integrals import (
    SigmoidField as SigmoidField,
    LinearField as LinearField,
    MeanPooling as MeanPooling,
    Pointwise as Pointwise,
)
from howsmooth.attention.jacobian import abstract_jacobian as abstract_jacobian
